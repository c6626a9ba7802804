"""Processes of a service killed and paused under load, one at a time, and what clients may see of it."""

import asyncio
import os
import random
import re
import signal
import time
from collections import Counter, defaultdict
from contextlib import suppress

from fault_changers import Changer, Leaver
from fault_clients import LOST, Ledger
from fault_run import digests_after_every_way_to_start, judge, judge_files, load
from fault_server import ROLES

from service.log.client import Ping, framed
from service.log.protocol import StoreUnavailable

EVENTS = ("rank", "reward", "batch", "slots", "recommend", "feedback")  # requests that need no learner
PAUSE = (0.1, 3.0)  # seconds
AGAIN = 0.15  # of kills are followed by another as soon as the process is there again


class Campaign:
    """Kills and pauses on one service; ``found`` is what went wrong."""

    def __init__(self, service, *, rankers=2, seed=0, pause=PAUSE, say=lambda text: None):
        self._service, self._rankers, self._pause_seconds, self._say = service, rankers, pause, say
        self._rng, self._seed = random.Random(seed), seed
        self.ledger, self.problems = Ledger(), []
        self.kills, self.pauses, self.restarts = Counter(), Counter(), defaultdict(float)
        self.failures = Counter()  # by fault, role, kind of request and status

    async def run(self, n_kills, n_pauses):
        """Kill ``n_kills`` times, spread over the roles, and pause each role ``n_pauses`` times."""
        faults = [(self._kill, ROLES[i % len(ROLES)]) for i in range(n_kills)]
        faults += [(self._pause, role) for role in ROLES for _ in range(n_pauses)]
        self._rng.shuffle(faults)
        service, ledger = self._service, self.ledger
        await self._start()
        await service.make_loops()
        changer = Changer(service.whereabouts, ledger, self._seed)
        await changer.put_actions()
        leaver = Leaver(service.whereabouts, ledger, self._seed, service.files)
        async with load(service, ledger, self._seed, changer, leaver):
            for i, (fault, role) in enumerate(faults):
                await ledger.grows(by=20)
                await asyncio.sleep(self._rng.uniform(0.0, 0.4))
                await fault(role)
                self._say(f"{i + 1} of {len(faults)} faults; {ledger.n_acknowledged()} acknowledged")
        await self._judge()

    async def _kill(self, role):
        self._begin(f"kill {role}")
        await self._kill_once(role)
        if self._rng.random() < AGAIN:
            await self._kill_once(role)
        await self._end()

    async def _kill_once(self, role):
        self.kills[role] += 1
        began = time.monotonic()
        if role == "supervisor":
            self._service.whereabouts.unset()
            self._service.server.signal(signal.SIGKILL)
            await self._service.server.ended()
            await self._start()
        else:
            number, pid = self._rng.choice(sorted(self._service.server.pids(role).items()))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            await self._is_back(role, number, pid)
        self.restarts[role] = max(self.restarts[role], time.monotonic() - began)

    async def _start(self):
        snapshots = self._rng.choice([0.05, 0.5, 10.0])
        await self._service.start(rankers=self._rankers, snapshot_seconds=snapshots)

    async def _is_back(self, role, number, pid):
        """Return once another process has taken over from ``pid``, and answers."""
        while self._service.server.pids(role).get(number) in (0, pid):
            await asyncio.sleep(0.005)
        if role == "log":
            await _answers_ping(self._service.server.socket("log"))
        if role == "learner":
            await _learns(self._service.server)

    async def _pause(self, role):
        self._begin(f"pause {role}")
        self.pauses[role] += 1
        server = self._service.server
        pid = server.pid if role == "supervisor" else self._rng.choice(sorted(server.pids(role).values()))
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._rng.uniform(*self._pause_seconds))
        finally:
            os.kill(pid, signal.SIGCONT)
        await self._end()

    def _begin(self, phase):
        self._service.whereabouts.phase = phase
        self._lost = {connection: connection.n_lost for connection in self._service.whereabouts.connections}

    async def _end(self):
        """Wait until all that the fault concerned is answered; note what breaks the rules."""
        whereabouts = self._service.whereabouts
        await whereabouts.all_answered()
        whereabouts.close_idle()  # connections to a killed process would fail
        for (phase, kind, status), n in sorted(whereabouts.failures.items(), key=str):
            self.failures[phase, kind, status] += n
            if not is_allowed(phase, kind, status):
                self.problems.append(f"{phase}: {n} × {kind} failed with {status}")
        whereabouts.failures.clear()
        if whereabouts.phase == "kill ranker":
            lost = [connection.n_lost - n for connection, n in self._lost.items()]
            if max(lost) > 2:  # the process may be killed twice
                self.problems.append(f"{whereabouts.phase}: a client lost its connection {max(lost)} times")
        whereabouts.phase = "none"

    async def _judge(self):
        service = self._service
        self.problems += await judge(service, self.ledger)
        live, *others = await digests_after_every_way_to_start(service)
        if others != [live] * 3:
            self.problems.append(f"models differ (live, from the log, with and without a snapshot): {[live, *others]}")
        self.problems += [f"after a restart: {problem}" for problem in await judge(service, self.ledger)]
        if await service.stop(signal.SIGTERM) != 0:
            self.problems.append("the service ended badly")
        self.problems += judge_files(service, self.ledger)

    def table(self):
        """Return the lines of a report."""
        yield f"{'role':<12}{'kills':>8}{'pauses':>8}{'longest restart, s':>20}"
        for role in ROLES:
            yield f"{role:<12}{self.kills[role]:>8}{self.pauses[role]:>8}{self.restarts[role]:>20.2f}"
        ledger = self.ledger
        yield f"acknowledged: {ledger.n_acknowledged()}, of them {len(ledger.changes)} settings, "
        yield f"  {sum(map(len, ledger.feedback.values()))} feedback,"
        yield f"  {len(ledger.erased)} erasures"
        yield "failures that clients saw, by fault and status (all were repeated):"
        seen = Counter()
        for (phase, kind, status), n in self.failures.items():
            seen[phase, "events" if kind in EVENTS else "changes", status] += n
        for (phase, kind, status), n in sorted(seen.items(), key=str):
            yield f"  {phase:<18}{kind:<9}{status:<20}{n:>7}"
        yield f"lost, changed, doubled or otherwise wrong: {len(self.problems)}"
        kinds = defaultdict(list)
        for problem in self.problems:
            kinds[re.sub(r"\S*\d\S*", "…", problem)[:100]].append(problem)
        for of_kind in list(kinds.values())[:30]:
            yield f"  {len(of_kind)} × {of_kind[0][:500]}"


def is_allowed(phase, kind, status):
    """Return whether clients may see such a failure."""
    fault, _, role = phase.partition(" ")
    is_503 = status.startswith("503") or status == "200"  # a batch has the 503 in its items
    if role == "supervisor":
        return fault == "kill" and (is_503 or status == LOST)
    if role == "log":
        return fault == "kill" and is_503
    if role == "learner":
        return kind not in EVENTS and is_503
    if role == "ranker":
        return fault == "kill" and status == LOST
    return False  # nothing was wrong


async def _answers_ping(path):
    while True:
        with suppress(OSError, EOFError):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(framed(Ping(1)))
                await reader.readexactly(4)
                return
            finally:
                writer.close()
        await asyncio.sleep(0.005)


async def _learns(server):
    while True:
        with suppress(StoreUnavailable):
            await server.ask_learner("settle")
            return
        await asyncio.sleep(0.005)
