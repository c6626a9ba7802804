"""Ranker, log writer and learner in one thread, with virtual time and a scheduler that a seed decides.

The code is the product's; what is simulated is around it: clients whose messages are delayed, reordered and repeated
and whose replies get lost, a disk that loses and tears what was not synced, a clock that jumps, processes that die. The
same seed gives the same trace. ``judging.py`` compares what clients were told with what is there.
"""

import asyncio
import contextlib
import random
import shutil
import tempfile
from functools import partial
from pathlib import Path

import msgspec
from machine import Clock, InlineLearner, InlineWriter, LearnerWriter
from power_cut_vfs import Disk

from service.admin.admin import Admin
from service.errors import ApiError
from service.learn import follower as follower_module
from service.learn import pruning
from service.learn.learner import Learner
from service.learn.snapshots import Snapshots
from service.log import sqlite
from service.log.records import ERASE, LOOP, RANK, EraseBody, Record, encode
from service.log.sqlite import SqliteLog
from service.log.writer import is_pruned
from service.models.published import PublishedModels, Publisher, make_current, new_generation
from service.rank.ranker import Ranker, RankerContext
from service.rank.requests import Action, RankRequest
from service.settings import Settings

LOOP_NAME = "default"
WAIT = 600.0  # seconds
BATCH = 4  # records that the learner takes at once: it is often behind
ADAGRAD = {"model": "adagrad", "policy": "epsilon-greedy", "bits": 8}
USERS = [f"user-{k}" for k in range(5)]
ACTIONS = [Action(f"a{k}", msgspec.Raw(b'{"topic":"t%d"}' % k)) for k in range(3)]


class SimulatedMachine(RankerContext):
    """Looks things up at once, and lets the learner step while something waits for it."""

    learner_core: Learner

    async def look_up(self, loop, function):
        return function(self.archive())

    async def until(self, published, seconds=15.0):
        for _ in range(200):
            if published():
                return
            self.learner_core.step()
        raise ApiError(503, "not_published", "later")


class World:
    """A machine and its clients. ``told`` is the ledger: what clients know for sure."""

    def __init__(self, seed, *, synchronous="EXTRA", erasures=None, prunings=None):
        self.rng = random.Random(f"simulation {seed}")
        self.folder = Path(tempfile.mkdtemp(prefix="fedres-sim-", dir="/dev/shm"))
        self.loop = asyncio.new_event_loop()
        self.clock, self.synchronous = Clock(), synchronous
        self.erasures = self.rng.random() < 0.5 if erasures is None else erasures
        about_age = random.Random(f"prunings {seed}")
        self.prunings = about_age.random() < 0.5 if prunings is None else prunings
        self.retention = about_age.choice([None, 3 * WAIT]) if self.prunings else None
        self.n_prunings, self.seen = 0, {}  # all records that ever were in the log, by position
        self.trace, self.wrong = [], []
        self.ranked, self.rewarded, self.erased = {}, {}, set()  # by event; by event and id; users
        self.owner = {}  # event: user
        self.left = set()  # users of whom old events may be in the log, and models
        self.messages, self.n_events = [], 0
        self.disk = Disk()
        self.log = None
        self.start()
        usual = {"wait_time": WAIT, "retention": self.retention}
        settings = self.rng.choice([Settings(**usual), Settings(**usual, **ADAGRAD)])
        self.log.append([[Record(LOOP_NAME, LOOP, "loop after 0", body=encode(settings))]])
        self.learner.step()

    # the machine

    def start(self):
        self.run_folder = Path(tempfile.mkdtemp(dir=self.folder))
        make_current(self.run_folder)
        self.log = SqliteLog(partial(self.disk.connect, self.synchronous), clock=self.time)
        self.last_time = max([0, *(head.time for head in self.log.heads().values())])
        self.start_learner()

    def start_learner(self):
        publisher = Publisher(self.run_folder, new_generation(self.run_folder))
        snapshots = Snapshots(self.folder / "models")
        self.learner = Learner(self.log, LearnerWriter(self.log), snapshots, publisher, snapshot_seconds=1e9)
        self.learner.open()
        self.context = SimulatedMachine(
            PublishedModels(self.run_folder), InlineWriter(self.log), InlineLearner(self.learner), lambda: self.log
        )
        self.context.learner_core = self.learner
        self.ranker, self.admin = Ranker(self.context), Admin(self.context)

    def time(self):
        return max(self.clock(), getattr(self, "last_time", 0))

    def stop_learner(self):
        self.learner.snapshots.close()
        self.learner.publisher.close()

    def close(self):
        with contextlib.suppress(Exception):
            self.stop_learner()
        self.log.close()
        self.disk.unregister()
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # what happens

    def play(self, n_steps):
        moves = [self.send] * 6 + [self.deliver] * 10 + [self.learn] * 6 + [self.pass_time] * 2
        moves += [self.save, self.kill_learner, self.cut_power] + [self.prune] * self.prunings
        for _ in range(n_steps):
            move = self.rng.choice(moves)
            self.trace.append(move.__name__)
            move()
            self.see()
            self.check_published()
            if self.wrong:
                return
        self.messages.clear()
        self.clock.pass_seconds(2 * WAIT)
        self.see()
        self.settle()

    def settle(self):
        for _ in range(500):
            self.learner.step()
            heads = self.log.heads()
            if LOOP_NAME not in heads:
                self.wrong.append("the log is gone")
                return
            if self.learner.positions.get(LOOP_NAME) == heads[LOOP_NAME].last and not self.is_pruning():
                self.see()
                return
        self.wrong.append("the learner does not reach the end of the log, or does not remove what is old")

    def is_pruning(self):
        """Return whether old events are to be removed that are still there."""
        head = self.learner.loops[LOOP_NAME].metadata
        return bool(head.to_prune) or (head.pruned.begun > 0 and not is_pruned(self.log, LOOP_NAME, head.pruned.begun))

    def see(self):
        """Note what is in the log, before any of it is removed; who is too old is not asked for any more."""
        last = self.log.heads()[LOOP_NAME].last if LOOP_NAME in self.log.heads() else 0
        entries = {entry.position: entry for entry in self.log.read(LOOP_NAME, 0, 100_000)} if last else {}
        self.seen = {position: entry for position, entry in self.seen.items() if position <= last} | entries
        if self.retention is not None:
            self.forget_old(self.log.now() - round(self.retention * 1e6))

    def prune(self):
        """Ask that old events go, as ``fedres log prune`` does."""
        before = self.log.now() - round(self.rng.choice([0.0, WAIT / 2, 2 * WAIT]) * 1e6)
        self.n_prunings += 1
        body = encode(EraseBody(f"pruning {self.n_prunings}", before))
        self.log.append([[Record(LOOP_NAME, ERASE, body=body)]])
        self.forget_old(before)

    def forget_old(self, before):
        """Forget what clients know of events that may go; nothing is sent about them from now on."""
        old = {e.event for e in self.seen.values() if e.kind == RANK and e.time < before} & self.owner.keys()
        self.left |= {self.owner[event] for event in old}
        self.forget_events(old)

    def send(self):
        """Let a client begin something."""
        kind = self.rng.choice(["rank", "rank", "reward", "reward", "early"] + ["erase"] * self.erasures)
        if kind == "rank":
            event, user = f"e{self.n_events}", self.rng.choice(USERS)
            self.n_events, self.owner[event] = self.n_events + 1, user
            self.messages.append(("rank", event, user))
        elif kind == "early":  # the reward of the next event, which is then decided
            event, user = f"e{self.n_events}", self.rng.choice(USERS)
            self.n_events, self.owner[event] = self.n_events + 1, user
            self.messages += [("reward", event, f"r{self.rng.randrange(2)}"), ("rank", event, user)]
        elif kind == "reward" and self.owner:
            self.messages.append(("reward", self.rng.choice([*self.owner]), f"r{self.rng.randrange(2)}"))
        elif kind == "erase":
            self.messages.append(("erase", self.rng.choice(USERS)))

    def deliver(self):
        """Let one message arrive, any of them; it may come again, and its reply may get lost."""
        if self.messages:
            message = self.messages.pop(self.rng.randrange(len(self.messages)))
            again, lost = self.rng.random() < 0.15, self.rng.random() < 0.1
            self.trace.append(f"{message} {again} {lost}")
            if again or lost:
                self.messages.append(message)
            self.tell(message, self.ask(message), lost)

    def ask(self, message):
        """Return the reply, None where the request was refused."""
        kind, *about = message
        try:
            return self.loop.run_until_complete(getattr(self, f"ask_{kind}")(*about))
        except ApiError as error:
            self.trace.append(error.code)
            if error.status >= 500 and error.code != "not_published":
                self.wrong.append(f"{message}: {error.code} {error}")
            return None

    async def ask_rank(self, event, user):
        return await self.ranker.rank(LOOP_NAME, RankRequest(user=user, event_id=event, actions=ACTIONS))

    async def ask_reward(self, event, reward):
        await self.ranker.reward(LOOP_NAME, event, 1.0 if reward == "r0" else 0.5, reward)
        return True

    async def ask_erase(self, user):
        await self.admin.erase_user(LOOP_NAME, user)
        return True

    def tell(self, message, reply, lost):
        """Write into the ledger what a client was told."""
        kind, *about = message
        if kind == "erase":
            self.forget(about[0])
            if reply:
                self.erased.add(about[0])
        if reply is None or lost or self.is_being_erased(self.owner.get(about[0])):
            return
        if kind == "rank":
            event = about[0]
            answer = (reply.action_id, reply.probability)
            if self.ranked.setdefault(event, answer) != answer:
                self.wrong.append(f"{event} was decided twice: {self.ranked[event]}, {answer}")
        elif kind == "reward":
            self.rewarded[tuple(about)] = True

    def is_being_erased(self, user):
        """Return whether an erasure is under way, which takes with it what comes until it is complete."""
        return any(entry.user == user for entry in self.log.of_kind(LOOP_NAME, ERASE))

    def forget(self, user):
        """Forget what clients know of a user who is erased; what they send from now on is new."""
        self.forget_events({event for event, owner in self.owner.items() if owner == user})
        self.left.discard(user)

    def forget_events(self, events):
        for event in events:
            self.ranked.pop(event, None)
            del self.owner[event]
            self.rewarded = {key: value for key, value in self.rewarded.items() if key[0] != event}
            self.messages = [message for message in self.messages if event not in message]

    def learn(self):
        self.learner.step()

    def pass_time(self):
        self.clock.pass_seconds(self.rng.choice([0.1, 30.0, WAIT / 2, WAIT, -5.0, -WAIT]))

    def save(self):
        self.learner.saver.flush(self.learner.loops)

    def kill_learner(self):
        self.stop_learner()
        self.start_learner()

    def cut_power(self):
        """Let the machine lose its power in the middle of one more message, whose client hears nothing."""
        before = len(self.disk.trace)
        if self.messages:
            kind, *about = message = self.messages[0]
            self.ask(message)
            if kind == "erase":  # it may be complete, to be completed, or never have arrived
                self.forget(about[0])
                self.erased.discard(about[0])  # an erasure before says nothing of what came since
        if self.prunings:
            self.see()
            self.learner.step()
        files = self.disk.cut(self.rng.randint(before, len(self.disk.trace)), self.rng)
        self.stop_learner()
        self.log.close()
        self.disk.unregister()
        if self.rng.random() < 0.3:
            for file in self.folder.glob("models*"):
                file.unlink()
        self.disk = Disk(files)
        self.start()

    def check_published(self):
        """What is published must have been learned."""
        shown = self.context.models.loop(LOOP_NAME)
        learned = self.learner.loops[LOOP_NAME].position if LOOP_NAME in self.learner.loops else 0
        if shown is not None and shown.view.position > learned:
            self.wrong.append(f"position {shown.view.position} is published, but {learned} is learned")


def patched_batches():
    """Let the learner take and remove few records at once, so that it is often behind."""
    stack = contextlib.ExitStack()
    fewer = [(follower_module, "BATCH", BATCH), (pruning, "LEAST_RETENTION", 0.0), (pruning, "LEAST_INTERVAL", 0)]
    fewer += [(sqlite, "PRUNED_AT_ONCE", 3), (sqlite, "BASES_AT_ONCE", 2), (sqlite, "PAGES_AT_ONCE", 2)]
    for module, name, number in fewer:
        stack.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, number)
    return stack
