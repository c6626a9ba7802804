"""A service under load, and the judgement: the clients' ledger against what is stored and learned."""

import asyncio
import json
import math
import os
import signal
import tempfile
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from fault_changers import SETTINGS
from fault_clients import EARLIEST, SUMS, Client, Connection, Whereabouts, path_of
from fault_server import RunningServer

from service.learn.learner import replay
from service.log.opening import Store, open_log
from service.log.records import (
    ERASE,
    ERASED,
    RANK,
    REWARD,
    EraseBody,
    Record,
    decode_erased,
    decode_rank,
    decode_reward,
    encode,
    read_decision,
)
from service.log.writer import is_pruned

N_CLIENTS = 16
LOOPS = (EARLIEST, SUMS)


class Service:
    """One store, and whichever supervisor runs on it at the moment."""

    def __init__(self, store, database=None):
        self.store, self.database, self.whereabouts = store, database, Whereabouts()
        self.server = None
        self._connection = Connection(self.whereabouts)

    async def start(self, **options):
        await self.begin(**options)
        await self.wait_until_up()

    async def begin(self, **options):
        """Start a service and do not wait for it."""
        self._connection.close()
        self.server = RunningServer(self.store, database=self.database, **options)

    async def wait_until_up(self):
        self.whereabouts.set(await self.server.url())

    def moved_to(self, url):
        """Let everybody ask another service from now on."""
        self._connection.close()
        self.whereabouts.set(url)

    async def kill(self):
        """End all processes of the service this very moment."""
        self.whereabouts.unset()
        await self.server.kill()

    async def clear(self):
        """End what runs, and remove what the next service on the store would."""
        self.whereabouts.hang_up()
        if self.server is not None:
            await self.server.kill()
            self.server.clean_up()

    async def stop(self, number):
        """Ask it to end; return its exit status."""
        self.whereabouts.unset()
        self.server.signal(number)
        return await self.server.ended()

    async def ask(self, method, path, body=None):
        self._connection.close()  # one that was idle for long may be closed at the other end
        return await self._connection.ask(method, path, body)

    async def make_loops(self):
        """Make the loops that the clients use."""
        made = await self.ask("POST", "/v1/loops", {"name": SUMS, "settings": SETTINGS[SUMS]})
        assert made.status == 201, made
        put = await self.ask("PUT", path_of(EARLIEST, "settings"), SETTINGS[EARLIEST])
        assert put.status == 200, put

    async def settle(self):
        """Return the status once no sum waits for more rewards, or to be learned from."""
        while True:
            status = (await self.ask("GET", "/v1/status")).json()
            waiting = status["loops"][SUMS]["waiting_events"] + status["loops"][SUMS]["waiting_bytes"]
            if waiting == 0 and status["learned_position"] >= status["position"]:
                return status
            await asyncio.sleep(0.05)

    async def digests(self):
        """Return the SHA-256 of each loop's models in the running service."""
        loops = (await self.ask("GET", "/v1/loops")).json()["loops"]
        return {loop: await self.server.digest(loop) for loop in loops}

    def log(self):
        return open_log(Store(self.store, self.database))

    def rebuilt_digests(self):
        """Return the SHA-256 of each loop's models, made from the log alone."""
        log = self.log()
        try:
            with tempfile.TemporaryDirectory(dir=self.store.parent) as folder:
                return replay(log, Path(folder))
        finally:
            log.close()

    def now(self):
        with closing(self.log()) as log:
            return log.now()

    def ask_to_prune(self, loop, before):
        """Ask to remove events from before a time, as ``fedres log prune`` does; return the token of that."""
        token = os.urandom(8).hex()
        with closing(self.log()) as log:
            log.append([[Record(loop, ERASE, body=encode(EraseBody(token, before)))]])
        return token

    def is_pruned(self, loop, token):
        with closing(self.log()) as log:
            bodies = [decode_erased(entry.body) for entry in log.of_kind(loop, ERASED)]
            return any(body.token == token and is_pruned(log, loop, body.begun) for body in bodies)

    async def kill_role(self, role):
        """Kill a process of a role, which is restarted, or all of them."""
        if role == "all":
            await self.kill()
            await self.start(snapshot_seconds=0.2)
        else:
            for pid in self.server.pids(role).values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def files(self):
        """Return the files beside the store in which records or models are."""
        names = ("", "-wal", "-models", "-models-wal")
        return [file for name in names if (file := self.store.with_name(self.store.name + name)).exists()]


@asynccontextmanager
async def load(service, ledger, seed, *others, n_clients=N_CLIENTS):
    """Run clients, and others that run like them; at the end each finishes what it has begun."""
    clients = [Client(f"c{seed}-{i}", service.whereabouts, ledger, seed) for i in range(n_clients)]
    async with asyncio.TaskGroup() as tasks:
        for client in [*clients, *others]:
            tasks.create_task(client.run())
        yield
        for client in [*clients, *others]:
            client.stopped = True


# The judgement


async def judge(service, ledger):
    """Return all that contradicts the ledger, none if nothing does.

    Where users were erased, a learner that is killed at the wrong moment may have to rebuild its models.
    """
    status = await service.settle()
    problems = list(ledger.contradictions)
    if status["rebuilt"] and not ledger.erased:
        problems.append("a snapshot was found damaged")
    problems += await judge_changes(service, ledger)
    stored = await asyncio.to_thread(read_log, service)
    for loop in LOOPS:
        rewards = _expected(loop, ledger, stored[loop])
        problems += await _judge_unmatched(service, loop, rewards)
        expected = {
            event: math.fsum(value for _, value in counted) if counted else None for event, counted in rewards.items()
        }
        events = (await service.ask("GET", path_of(loop, "events"))).lines()
        problems += _judge_events(loop, ledger, events, expected)
        problems += judge_log(loop, ledger, stored[loop])
        n_erased = len(ledger.erased) if loop == EARLIEST else 0
        problems += _judge_sums(status["loops"][loop], expected, loop, n_erased)
        n_feedback = len(ledger.feedback[loop]) + n_erased
        if status["loops"][loop]["feedback"] != n_feedback:
            problems.append(f"{loop}: {status['loops'][loop]['feedback']} feedback was learned, not {n_feedback}")
    return problems


def read_log(service):
    """Return all records by loop, bodies too; reading checks their checksums."""
    log, stored = service.log(), {}
    try:
        for loop, head in log.heads().items():
            entries = stored[loop] = []
            while more := log.read(loop, entries[-1].position if entries else 0):
                entries += more
            n_known = sum(entry.position <= head.last for entry in entries)  # ticks go on
            assert n_known == head.last - head.removed, f"{loop}: {n_known} records of {head}"
    finally:
        log.close()
    return stored


def judge_log(loop, ledger, entries):
    """Return what is acknowledged and not in the log once and unchanged."""
    problems, erased = [], set(ledger.erased)
    ranks = defaultdict(list)
    rewards = set()
    for entry in entries:
        if entry.user in erased or (entry.event or "")[:-1] in erased:
            problems.append(f"{loop}: record {entry.position} is of the erased {entry.user or entry.event}")
        if entry.kind == RANK:
            ranks[entry.event].append(entry)
        elif entry.kind == REWARD:
            reward = decode_reward(entry.body)
            rewards.add((entry.event, reward.id, reward.value))
    for event, answer in ledger.ranks[loop].items():
        if len(ranks[event]) != 1:
            problems.append(f"{loop}: {event} is logged {len(ranks[event])} times")
        elif not _is_logged(answer, ledger.requests[loop].get(event), ranks[event][0]):
            problems.append(f"{loop}: {event} is logged as {ranks[event][0]}, and {answer} was told")
    for event, sent in ledger.feedback[loop].items():
        if len(ranks[event]) != 1:
            problems.append(f"{loop}: the feedback {event} is logged {len(ranks[event])} times")
        elif not _is_sent(sent, ranks[event][0]):
            problems.append(f"{loop}: the feedback {event} is logged as {ranks[event][0]}, and {sent} was sent")
    for event, of_event in ledger.rewards[loop].items():
        missing = [(event, name, value) for name, value in of_event.items() if (event, name, value) not in rewards]
        problems += [f"{loop}: the reward {reward} is not in the log" for reward in missing]
    return problems


def _is_sent(sent, entry):
    """Return whether feedback is logged as it was sent, for people and for the learner."""
    body, action = decode_rank(entry.body), sent["action"]
    same = (body.reward, entry.user) == (sent["reward"], sent["user"])
    same &= body.actions[0].id == (action if isinstance(action, str) else action["id"])
    return same and read_decision(entry.example).feedback == sent["reward"]


def _is_logged(answer, request, entry):
    body = decode_rank(entry.body)
    ids = [action.id for action in body.actions]
    ranking = {one["id"]: (one["probability"], one["score"]) for one in answer["ranking"]}
    same = {name: (body.probabilities[k], body.scores[k]) for k, name in enumerate(ids) if name in ranking} == ranking
    same &= (ids[body.action], body.version) == (answer["action"], answer["model_version"])
    if request is None:
        return same
    features = [json.loads(bytes(action.features) or b"null") for action in body.actions]
    same &= [action.get("features") for action in request["actions"]] == features
    same &= [action["id"] for action in request["actions"]] == ids
    return same and (entry.user, json.loads(bytes(body.context))) == (request["user"], request["context"])


async def judge_changes(service, ledger):
    """Return what of settings and catalogue is not as it was acknowledged."""
    problems, changes = [], {}
    for loop, version, settings in ledger.changes:
        changes[loop] = version, settings
    for loop, (version, settings) in changes.items():
        answer = (await service.ask("GET", path_of(loop, "settings"))).json()
        same = all(answer["settings"][name] == value for name, value in settings.items())
        if not same or answer["version"] < version:
            problems.append(f"{loop}: the settings are {answer}, and {settings} were acknowledged as {version}")
    actions = (await service.ask("GET", path_of(EARLIEST, "actions"))).json()["actions"]
    if {action["id"]: action["features"] for action in actions} != ledger.catalogue:
        problems.append(f"the catalogue is {actions}, and {ledger.catalogue} was acknowledged")
    return problems


def _expected(loop, ledger, entries):
    """Return the reward that each event must have, None where none counts: what came too late counts no more."""
    ranks = {entry.event: entry.time for entry in entries if entry.kind == RANK}
    times, wait = {}, 1e6 * SETTINGS[loop]["wait_time"]
    for entry in entries:
        if entry.kind == REWARD:
            reward = decode_reward(entry.body)
            times.setdefault((entry.event, reward.id, reward.value), entry.time)  # repeats do not matter
    counted = defaultdict(list)
    for event, rewards in ledger.rewards[loop].items():
        for name, value in rewards.items():
            time = times.get((event, name, value))
            if event in ranks and time is not None and abs(time - ranks[event]) < wait:
                counted[event].append((name, value))
    return {event: counted[event] for event in ledger.ranks[loop]}


async def _judge_unmatched(service, loop, expected):
    """Return which rewards are listed twice, or although they counted."""
    listed = (await service.ask("GET", path_of(loop, "rewards/unmatched"))).json()["rewards"]
    times = Counter((reward["event_id"], reward["id"], reward["value"]) for reward in listed)
    problems = [f"{loop}: the unmatched {reward} is listed {n} times" for reward, n in times.items() if n > 1]
    counted = {(event, name, value) for event, rewards in expected.items() for name, value in rewards}
    return problems + [f"{loop}: {reward} is listed as unmatched, and counted" for reward in times.keys() & counted]


def _judge_events(loop, ledger, events, expected):
    ranks, sent, problems = ledger.ranks[loop], ledger.feedback[loop], []
    shown = {event["event_id"]: event for event in events if event["status"] == "feedback"}
    problems += [f"{loop}: the feedback {event} is not exported" for event in sent if event not in shown]
    problems += [f"{loop}: the feedback {event} was never acknowledged" for event in shown if event not in sent]
    for name in shown.keys() & sent.keys():
        if shown[name]["reward"] != sent[name]["reward"]:
            problems.append(f"{loop}: the feedback {name} is exported with {shown[name]['reward']}")
    events = [event for event in events if event["status"] != "feedback"]
    times = Counter(event["event_id"] for event in events)
    problems += [f"{loop}: {event} is there {times[event]} times" for event in ranks if times[event] != 1]
    problems += [f"{loop}: {event} was never acknowledged" for event in times if event not in ranks]
    for event in events:
        name = event["event_id"]
        answer = ranks.get(name, event)
        for key in ("action", "probability", "model_version"):
            if event[key] != answer[key]:
                problems.append(f"{loop}: {name} has the {key} {event[key]}, and {answer[key]} was told")
        if not _same(event["reward"], _shown(expected.get(name), loop)):
            problems.append(
                f"{loop}: {name} has the reward {event['reward']}, and {expected.get(name)} was acknowledged"
            )
    return problems


def _shown(reward, loop):
    """Return what the export says of it: where no reward came in time, the loop that sums has learned the default."""
    return 0.0 if reward is None and loop == SUMS else reward


def _same(left, right):
    return left == right if left is None or right is None else math.isclose(left, right, abs_tol=1e-9)


def _judge_sums(gauges, expected, loop, n_erased):
    """The model has learned from each event once, if numbers and sums of what it learned are those of the ledger."""
    rewards = [reward for reward in expected.values() if reward is not None] + [1.0] * n_erased
    n_ranks = len(expected) + 2 * n_erased
    n_learned = n_ranks if loop == SUMS else len(rewards)
    counts = {"ranks": n_ranks, "rewarded_events": len(rewards), "learned_events": n_learned}
    problems = [f"{loop}: {gauges[name]} {name}, not {n}" for name, n in counts.items() if gauges[name] != n]
    if not math.isclose(gauges["reward_sum"], math.fsum(rewards), rel_tol=1e-9, abs_tol=1e-9):
        problems.append(f"{loop}: rewards of {gauges['reward_sum']} were learned, not {math.fsum(rewards)}")
    return problems


async def digests_after_every_way_to_start(service):
    """Return the models' SHA-256 of the live service, of the log, and of services with and without a snapshot."""
    live = await service.digests()
    await service.kill()
    rebuilt = await asyncio.to_thread(service.rebuilt_digests)
    await service.start()
    restored = await service.digests()
    await service.kill()
    for path in service.store.parent.glob(service.store.name + "-models*"):
        path.unlink()
    await service.start()
    return live, rebuilt, restored, await service.digests()


def judge_files(service, ledger):
    """Return in which files there is something of an erased user; for a service that has ended."""
    problems = []
    for file in service.files():
        content = file.read_bytes()
        if b"leaver-" in content:
            problems += [f"{file.name} has the erased {user}" for user in ledger.erased if user.encode() in content]
    return problems
