"""Compares what clients were told with what is there, by a join that knows nothing of the product's."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from world import LOOP_NAME, WAIT, World, patched_batches

from service.learn.learner import replay
from service.log.protocol import StoreUnavailable
from service.log.records import ERASED, RANK, REWARD, DamagedRecord, decode_erased, decode_rank, read_reward

STEPS = 80
MICROSECONDS = 1_000_000


def simulate(seed, **options):
    """Return the world after its story, and all that is wrong with it."""
    with patched_batches():
        world = World(seed, **options)
        try:
            world.play(STEPS)
            if not world.wrong:
                world.wrong += judge(world)
            return world
        except (StoreUnavailable, DamagedRecord, ValueError) as error:  # a store that cannot be opened is lost
            world.wrong.append(repr(error))
            return world
        finally:
            world.close()


def judge(world):
    """Return what contradicts the ledger."""
    entries = world.log.read(LOOP_NAME, 0, 100_000)
    return [
        *_positions(world, entries),
        *_decisions(world, entries),
        *_rewards(world, entries),
        *_erasures(world, entries),
        *_prunings(world, entries),
        *_statistics(world),
        *_models(world),
    ]


def _positions(world, entries):
    head = world.log.heads()[LOOP_NAME]
    positions = [entry.position for entry in entries]
    if positions != sorted(set(positions)) or head.last - head.removed != len(entries):
        yield f"{len(entries)} records, but {head}"
    if any(later.time < earlier.time for earlier, later in pairwise(entries)):
        yield "time goes backwards"


def _decisions(world, entries):
    ranks = {}
    for entry in entries:
        if entry.kind == RANK:
            if entry.event in ranks:
                yield f"{entry.event} is there twice"
            ranks[entry.event] = decode_rank(entry.body)
    for event, (action, probability) in world.ranked.items():
        logged = ranks.get(event)
        if logged is None:
            yield f"{event} was acknowledged and is lost"
        elif (logged.actions[logged.action].id, logged.probabilities[logged.action]) != (action, probability):
            yield f"{event} was decided otherwise than it was answered"


def _rewards(world, entries):
    rewards = {(entry.event, read_reward(entry.example)[1]) for entry in entries if entry.kind == REWARD}
    decided, cut = {entry.event for entry in world.seen.values() if entry.kind == RANK}, _cut(entries)
    for position, entry in world.seen.items():  # what came for no event, and is old, was removed
        if entry.kind == REWARD and position <= cut and entry.event not in decided:
            rewards.add((entry.event, read_reward(entry.example)[1]))
    for event, reward in world.rewarded:
        if (event, reward) not in rewards and event in world.owner:
            yield f"reward {reward} of {event} was acknowledged and is lost"


def _erasures(world, entries):
    live = {*world.owner.values(), *world.left}
    for user in world.erased - live:
        if any(entry.user == user for entry in entries):
            yield f"{user} was erased and is in the log"
        state = world.learner.loops[LOOP_NAME]
        if world.learner.personal.data(state.metadata.id, user) is not None:
            yield f"{user} was erased and has a model"
        files = [file for file in Path(world.folder).glob("models*") if file.is_file()]
        if any(user.encode() in file.read_bytes() for file in files):
            yield f"{user} was erased and is in the snapshot"


def _prunings(world, entries):
    """What was removed is gone, and nothing else is; events that are left have all rewards that may count for them."""
    cut = _cut(entries)
    there = {entry.position for entry in entries}
    needed = {entry.event: entry.time - round(WAIT * MICROSECONDS) for entry in entries if entry.kind == RANK}
    for position, entry in world.seen.items():
        if entry.kind == RANK and position <= cut and position in there:
            yield f"{entry.event} was to be removed and is there"
        if entry.kind == RANK and position > cut and position not in there and not world.erasures:
            yield f"{entry.event} is not old and was removed"
        is_needed = entry.kind == REWARD and entry.time > needed.get(entry.event, entry.time)
        if is_needed and position not in there and not world.erasures:
            yield f"a reward of {entry.event} was removed, which is there"


def _cut(entries):
    return max([0, *(body.cut for body in _completed(entries))])


def _completed(entries):
    return [decode_erased(entry.body) for entry in entries if entry.kind == ERASED]


def _statistics(world):
    """Every event counts once: with its first reward in time, else by its default."""
    entries = [entry for _, entry in sorted(world.seen.items())]
    if any(not body.cut for body in _completed(entries)):  # also one that nobody was told of
        return  # what was learned from erased events stays in the statistics
    statistics = world.learner.loops[LOOP_NAME].metadata.statistics
    settled, rewarded = expected(entries)
    if (statistics.settled, statistics.rewarded) != (settled, rewarded):
        yield f"{statistics.settled} events learned, {statistics.rewarded} rewarded; must be {settled}, {rewarded}"


def expected(entries):
    """Return how many events are settled at the end of the log, and how many of them by a reward."""
    about, wait = {}, round(WAIT * MICROSECONDS)
    for entry in entries:
        if entry.kind in (RANK, REWARD):
            about.setdefault(entry.event, []).append(entry)
    n_settled = n_rewarded = 0
    for story in about.values():
        decided, until, early, done = None, 0, set(), False
        for entry in story:
            if decided is None and entry.time >= until:
                early.clear()  # nobody came for them
            if entry.kind == RANK:
                decided, done = entry.time, bool(early)
                n_rewarded += done
            elif decided is None:
                reward = read_reward(entry.example)[1]
                if reward not in early:  # a repeat changes nothing
                    early.add(reward)
                    until = entry.time + wait
            elif not done and entry.time < decided + wait:
                n_rewarded, done = n_rewarded + 1, True
        n_settled += decided is not None and (done or entries[-1].time >= decided + wait)
    return n_settled, n_rewarded


def _models(world):
    """Models are a function of the log, and what is published is what was learned."""
    live = world.learner.digest(LOOP_NAME)
    again = replay(world.log, world.folder)
    if again.get(LOOP_NAME) != live:
        yield "learning the log again gives other models"
    world.learner.publish()
    shown = world.context.models.loop(LOOP_NAME)
    weights = world.learner.loops[LOOP_NAME].shared.weights
    if weights is not None and not np.array_equal(shown.weights, weights):
        yield "other weights are published than were learned"
