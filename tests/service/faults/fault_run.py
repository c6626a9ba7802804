"""A service under load that is killed again and again, and the judgement: the ledger against what is stored."""

import asyncio
import math
import os
import random
import signal
from collections import Counter, defaultdict
from contextlib import asynccontextmanager

from fault_clients import EARLIEST, SUMS, Client, Connection, Ledger, Whereabouts, path_of

from service.engine.learner import digest_of, replay
from service.store import Log, sqlite_file
from service.store.postgres import PostgresLog

N_CLIENTS = 16
WAIT_SECONDS = 1.0  # of the loop that sums


class Service:
    """One store, and whichever server runs on it at the moment."""

    def __init__(self, nursery, store, database=None):
        self.store, self.database, self.whereabouts = store, database, Whereabouts()
        self.server = None
        self._nursery = nursery
        self._connection = Connection(self.whereabouts)

    async def start(self, **options):
        await self.begin(**options)
        await self.wait_until_up()

    async def begin(self, **options):
        """Start a server and do not wait for it."""
        self._connection.close()
        self.server = await self._nursery.start(self.store, database=self.database, **options)

    async def wait_until_up(self):
        self.whereabouts.set(await self.server.url())

    def moved_to(self, url):
        """Let everybody ask another server from now on."""
        self._connection.close()
        self.whereabouts.set(url)

    async def kill(self):
        self.whereabouts.unset()
        await self.server.kill()

    async def stop(self, number):
        """Ask it to end; return its exit status."""
        self.whereabouts.unset()
        self.server.signal(number)
        return await self.server.ended()

    async def ask(self, method, path, body=None):
        return await self._connection.ask(method, path, body)

    async def make_loops(self):
        """Make the loops that the clients use."""
        settings = {"aggregation": "sum", "wait_time": WAIT_SECONDS, "reward_range": [0, 1]}
        made = await self.ask("POST", "/v1/loops", {"name": SUMS, "settings": settings})
        assert made.status == 201, made

    async def settle(self):
        """Return the status once no sum waits for more rewards."""
        while True:
            status = (await self.ask("GET", "/v1/status")).json()
            if status["loops"][SUMS]["waiting_events"] == 0 and status["learned_position"] >= status["position"]:
                return status
            await asyncio.sleep(0.05)

    def rebuilt_digests(self):
        """Return the SHA-256 of each loop's models, made from the log alone."""
        with Log(sqlite_file(self.store)) if self.database is None else PostgresLog(self.database) as log:
            return {name: digest_of(state) for name, state in replay(_entries(log)).loops.items()}


def _entries(log):
    after = 0
    while entries := log.read(after):
        yield from entries
        after = entries[-1].seq


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


async def kill_often(service, n_kills, seed, beside=None):
    """Kill the server under load, one time in four while it starts; return the ledger and how often it had grown."""
    rng, ledger, productive = random.Random(seed), Ledger(), 0
    await service.start()
    await service.make_loops()
    async with load(service, ledger, seed, *([] if beside is None else [beside])):
        for _ in range(n_kills):
            before = ledger.n_acknowledged()
            await _a_moment(service, rng)
            await service.kill()
            productive += ledger.n_acknowledged() > before
            await service.begin(snapshot_seconds=rng.choice([0.0, 0.1, 10.0]))
        await service.wait_until_up()
    return ledger, productive


async def _a_moment(service, rng):
    if rng.random() < 0.25:
        await asyncio.sleep(rng.uniform(0.0, 0.2))
        return
    await service.wait_until_up()
    await asyncio.sleep(rng.uniform(0.01, 0.5))


async def kill_workers_often(service, n_kills, seed):
    """Kill one of two workers under load, and once their engine's process in between; return the ledger."""
    rng, ledger = random.Random(seed), Ledger()
    await service.start(workers=2)
    await service.make_loops()
    async with load(service, ledger, seed):
        for i in range(n_kills):
            await ledger.grows()
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            pid = rng.choice(await service.server.workers())
            os.kill(pid, signal.SIGKILL)
            await ledger.grows()
            await _replaced(service, pid)
            if i == n_kills // 2:
                await _restart(service, workers=2)
    return ledger


async def kill_writers_often(service, n_kills, seed):
    """Kill the process that writes for the server under load; return the ledger."""
    rng, ledger = random.Random(seed), Ledger()
    await service.start()
    await service.make_loops()
    async with load(service, ledger, seed):
        for _ in range(n_kills):
            await ledger.grows()
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            os.kill(await service.server.writer(), signal.SIGKILL)
            await ledger.grows()
    service.whereabouts.hang_up()  # one that was idle for so long may be closed
    return ledger


async def _replaced(service, pid):
    """Return once another worker has come for one that was killed."""
    workers = await service.server.workers()
    while len(workers) < 2 or pid in workers:
        await asyncio.sleep(0.05)
        workers = await service.server.workers()


async def _restart(service, **options):
    """Kill the engine's process, wait until its workers have noticed, and start another."""
    url = await service.server.url()
    await service.kill()
    await nobody_at(url)
    await service.start(**options)


async def nobody_at(url):
    """Return once nobody listens there any more."""
    host, port = url.removeprefix("http://").split(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            return
        writer.close()
        await asyncio.sleep(0.02)


async def judge(service, ledger):
    """Return all that contradicts the ledger, none if nothing does."""
    status = await service.settle()
    found = await judge_events(service, ledger)
    if status["rebuilt"]:
        found.append("a snapshot was found damaged")
    for loop in (EARLIEST, SUMS):
        found += _judge_sums(status["loops"][loop], await _expected(service, loop, ledger), loop)
    return found


async def judge_events(service, ledger):
    """Return what in the export contradicts the ledger."""
    await service.settle()
    found = list(ledger.contradictions)
    for loop in (EARLIEST, SUMS):
        events = (await service.ask("GET", path_of(loop, "events"))).lines()
        found += _judge_events(loop, ledger, events, await _expected(service, loop, ledger))
    return found


async def _expected(service, loop, ledger):
    """Return the reward that each event must have, None where none counts; what was late counts no more."""
    late = (await service.ask("GET", path_of(loop, "rewards/unmatched"))).json()["rewards"]
    is_late = Counter((reward["event_id"], reward["id"], reward["value"]) for reward in late)
    assert max(is_late.values(), default=1) == 1, "a reward is listed twice"
    counted = defaultdict(list)
    for event, rewards in ledger.rewards[loop].items():
        counted[event] = [value for name, value in rewards.items() if not is_late[event, name, value]]
    return {event: math.fsum(counted[event]) if counted[event] else None for event in ledger.ranks[loop]}


def _judge_events(loop, ledger, events, expected):
    known, found = ledger.ranks[loop], []
    times = Counter(event["event_id"] for event in events)
    found += [f"{loop}: {event} is there {times[event]} times" for event in known if times[event] != 1]
    found += [f"{loop}: {event} was never acknowledged" for event in times if event not in known]
    for event in events:
        name = event["event_id"]
        told = known.get(name, event)
        for key in ("action", "probability", "model_version"):
            if event[key] != told[key]:
                found.append(f"{loop}: {name} has the {key} {event[key]}, and {told[key]} was told")
        if not _same(event["reward"], _shown(expected.get(name), loop)):
            found.append(f"{loop}: {name} has the reward {event['reward']}, and {expected.get(name)} was acknowledged")
    return found


def _shown(reward, loop):
    """Return what the export says of it: where no reward came in time, the loop that sums has learned the default."""
    return 0.0 if reward is None and loop == SUMS else reward


def _same(left, right):
    return left == right if left is None or right is None else math.isclose(left, right, abs_tol=1e-9)


def _judge_sums(gauges, expected, loop):
    """The model has learned from each event once, if numbers and sums of what it learned are those of the ledger."""
    rewards = [reward for reward in expected.values() if reward is not None]
    n_learned = len(expected) if loop == SUMS else len(rewards)
    wanted = {"ranks": len(expected), "rewarded_events": len(rewards), "learned_events": n_learned}
    found = [f"{loop}: {gauges[name]} {name}, not {n}" for name, n in wanted.items() if gauges[name] != n]
    if not math.isclose(gauges["reward_sum"], math.fsum(rewards), rel_tol=1e-9, abs_tol=1e-9):
        found.append(f"{loop}: rewards of {gauges['reward_sum']} were learned, not {math.fsum(rewards)}")
    return found


async def digests_after_every_way_to_start(service):
    """Return the models' SHA-256 of the live server, of the log, and of servers with and without a snapshot."""
    live = await service.server.digests()
    await service.kill()
    rebuilt = service.rebuilt_digests()
    await service.start()
    restored = await service.server.digests()
    await service.kill()
    for path in service.store.parent.glob(service.store.name + "-models*"):
        path.unlink()
    await service.start()
    return live, rebuilt, restored, await service.server.digests()
