"""The state of all loops for the first page: from the published models at once, and from summaries of their logs.

Summaries are computed by one ranker of a machine, only while somebody looks, and are in a file that all rankers read.
Each loop has a budget of seconds, so that none keeps the others from their turn, and the whole rests between loops.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from service.admin.status import MachineStatus
from service.errors import ApiError
from service.hints import about
from service.log.files import replacing
from service.log.protocol import StoreUnavailable
from service.models.published import Loop
from service.plugins.reports.reader import LoopReader, read_loop
from service.plugins.reports.summary import ActionShare, LiftSummary, LoopSummary, StandingAlarm
from service.plugins.reports.verdicts import STATES, State, Verdict, verdict_of
from service.rank.ranker import RankerContext

SUMMARIES = "summaries.json"  # in the run folder
ASKED = "summaries-asked"  # the same; its time is that of the last request
ASKED_SECONDS = 600.0  # after the last request, for which summaries are computed
STEP_SECONDS = 1.0  # between two looks for loops with an old summary
LEAST_AGE = 30.0  # seconds of a summary before it is computed again because of new records
MOST_AGE = 900.0  # the same without new records: decisions of the day become fewer
RETRY_SECONDS = 60.0  # after a failure
BUDGET_SECONDS = 20.0  # of one loop, after which the next one has its turn
REST = 4.0  # times as long as a summary took, before the next one; loops without a summary do not wait
ROWS_TOGETHER = 50  # made in one step of the event loop
SHARED_SECONDS = 0.2  # for which the rows of all loops are reused by other requests
LONGEST_ERROR = 300  # characters

log = logging.getLogger("fedres.service")


class SummaryEntry(msgspec.Struct):
    """The last summary of a loop, and the last attempt to make one."""

    tried: float = 0.0  # seconds since 1970
    made: float = 0.0
    summary: LoopSummary | None = None
    error: str | None = None  # of the last attempt; null if it succeeded


class LoopState(msgspec.Struct):
    """A loop on the first page."""

    loop: Annotated[str, about("Name of the loop.")]
    verdict: Annotated[Verdict, about("The judgment on it.")]
    hold: Annotated[
        str | None, about("Why the baseline decides for everybody; null if the policy decides.", "wrong prices")
    ]
    alarms: Annotated[
        list[StandingAlarm],
        about(
            "What needs attention.",
            [{"code": "guardrail", "message": "purchase fell by more than 0.5", "since": 1793534400.0}],
        ),
    ]
    control_share: Annotated[float, about("Share of users in the control group.")]
    decisions: Annotated[int, about("Decisions so far.")]
    decisions_day: Annotated[int | None, about("Decisions of the last 24 hours; null if unknown.", 500)]
    reward: Annotated[float | None, about("Mean reward per event of the policy; null without events.", 0.45)]
    control_reward: Annotated[float | None, about("The same of the control group.", 0.29)]
    users: Annotated[int, about("Users with a personal model.")]
    pending: Annotated[int, about("Events that wait for a reward.")]
    learned_uploads: Annotated[int, about("Uploads of devices that the shared model has learned from.")]
    ignored_uploads: Annotated[int, about("Uploads of devices that the defenses left out.")]
    actions: Annotated[list[ActionShare], about("The most frequent actions of the newest decisions.")]
    n_actions: Annotated[int | None, about("Different actions among these decisions; null if unknown.", 3)]
    policy: Annotated[
        list[float | None], about("Mean rewards of the policy by time; null where there are too few events.")
    ]
    control: Annotated[list[float | None], about("The same of the control group.")]
    lift: Annotated[LiftSummary | None, about("The lift against the control group; null without one.")]
    as_of: Annotated[
        float | None, about("When this was computed, in seconds since 1970; null if it was not.", 1793534400.0)
    ]
    settings_version: Annotated[int, about("Version of the settings, for If-Match.")]
    position: Annotated[int, about("Position in the loop's log up to which the models have learned.")]


class Overview(msgspec.Struct):
    """The loops of a service, the most urgent first."""

    time: Annotated[float, about("Time of the reply, in seconds since 1970.")]
    trouble: Annotated[
        str | None,
        about("What is wrong with the service as a whole; null if nothing is.", "no models are published yet"),
    ]
    total: Annotated[int, about("Loops of the service.")]
    matching: Annotated[int, about("Loops that the request is about.")]
    counts: Annotated[dict[State, int], about("Loops in each state.")]
    computing: Annotated[int, about("Loops whose summary is not computed yet.")]
    has_demo: Annotated[bool, about("Whether the demo runs.")]
    loops: Annotated[list[LoopState], about("The loops, the most urgent first.")]


class Rows(NamedTuple):
    until: float
    rows: list[LoopState]


class Summaries:
    """Summaries of loops; without a folder, each request computes those that it finds too old."""

    def __init__(
        self,
        context: RankerContext,
        status: MachineStatus,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._context = context
        self._status = status
        self._now = now
        self._sleep = sleep
        self._entries: dict[str, SummaryEntry] = {}
        self._read: tuple[int, int] | None = None  # of the file: when it was written, and its size
        self._rows: Rows | None = None
        self._refreshing = asyncio.Lock()

    @property
    def _folder(self) -> Path | None:
        return self._status.folder

    async def overview(self, has: str = "", state: State | None = None, limit: int = 100) -> Overview:
        """Return the loops whose name has a text and that are in a state, the most urgent first."""
        await self._prepare([*self._context.models.names()])
        rows = await self._all_rows()
        named = [row for row in rows if has.lower() in row.loop.lower()]
        shown = [row for row in named if state is None or row.verdict.state == state]
        counts = Counter(row.verdict.state for row in named)
        return Overview(
            time=self._now(),
            trouble=self._status.trouble(),
            total=len(rows),
            matching=len(shown),
            counts={name: counts[name] for name in STATES if counts[name]},
            computing=sum(row.as_of is None and row.decisions > 0 for row in rows),
            has_demo=any(process["role"] == "demo" for process in self._status.processes()),
            loops=shown[:limit],
        )

    def check_loop(self, name: str) -> None:
        """Refuse the name of a missing loop."""
        self._context.loop(name)

    async def state(self, name: str) -> LoopState:
        """Return the state of one loop."""
        loop = self._context.loop(name)
        await self._prepare([name])
        return self._row(loop)

    async def watch(self, lock: Path) -> None:
        """Compute summaries while somebody looks, on the one ranker of the machine that holds the lock."""
        with open(lock, "ab") as file:
            while True:
                await self._sleep(STEP_SECONDS)
                if not self._is_asked():
                    continue
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._read_file()
                    await self._refresh_all()
                except BlockingIOError:  # another ranker does it
                    pass
                except Exception:
                    log.exception("summaries could not be computed")

    async def _prepare(self, names: list[str]) -> None:
        """Have entries that are as new as possible without keeping a request waiting for long."""
        if self._folder is not None:
            (self._folder / ASKED).touch()
            self._read_file()
            return
        async with self._refreshing:
            for name in self._outdated(names):
                await self._refresh(name)

    def _is_asked(self) -> bool:
        assert self._folder is not None
        try:
            return self._now() - (self._folder / ASKED).stat().st_mtime < ASKED_SECONDS
        except FileNotFoundError:
            return False

    def _read_file(self) -> None:
        """Read the file of summaries if it has changed."""
        assert self._folder is not None
        path = self._folder / SUMMARIES
        try:
            stat = os.stat(path)
        except FileNotFoundError:
            return
        if self._read != (stat.st_mtime_ns, stat.st_size):
            self._entries = msgspec.json.decode(path.read_bytes(), type=dict[str, SummaryEntry])
            self._read = stat.st_mtime_ns, stat.st_size

    async def _refresh_all(self) -> None:
        """Compute all outdated summaries, the most urgent first; write them as they are made."""
        assert self._folder is not None
        while names := self._outdated([*self._context.models.names()]):
            name = names[0]
            is_first = self._entries.get(self._id(name)) is None
            seconds = await self._refresh(name)
            live = {self._id(other) for other in self._context.models.names()}
            self._entries = {key: entry for key, entry in self._entries.items() if key in live}
            with replacing(self._folder / SUMMARIES) as new:
                new.write_bytes(msgspec.json.encode(self._entries))
            await self._sleep(seconds * (1.0 if is_first else REST))

    def _outdated(self, names: list[str]) -> list[str]:
        """Return the loops whose summary should be computed: those with new settings first, then the oldest ones."""
        waiting = []
        for name in names:
            try:
                view = self._context.loop(name).view
            except ApiError:
                continue
            entry = self._entries.get(self._id(name), SummaryEntry())
            age = self._now() - entry.tried
            position = 0 if entry.summary is None else entry.summary.position
            has_new_settings = view.settings_version > position
            least = RETRY_SECONDS if entry.error is not None else 0.0 if has_new_settings else LEAST_AGE
            if view.statistics.ranks and age >= (least if view.position > position else MOST_AGE):
                waiting.append((not has_new_settings, entry.tried, name))
        return [name for _, _, name in sorted(waiting)]

    async def _refresh(self, name: str) -> float:
        """Compute the summary of a loop within its budget; return the seconds that it took."""
        began = time.monotonic()
        try:
            loop = self._context.loop(name)
        except ApiError:
            return 0.0
        entry = self._entries.setdefault(loop.view.id, SummaryEntry())
        entry.tried = self._now()
        entry.error = None
        try:
            summary = await self._computed(name, loop.view.created_at)
            _keep_since(summary, entry.summary, entry.tried)
            entry.summary = summary
            entry.made = entry.tried
        except TimeoutError:
            entry.error = f"The log could not be read within {BUDGET_SECONDS:g} s; the next try goes on from there."
        except (ApiError, StoreUnavailable) as error:
            entry.error = f"The summary could not be computed: {error}"[:LONGEST_ERROR]
        except Exception as error:
            log.exception("the summary of loop %r could not be computed", name)
            entry.error = f"The summary could not be computed: {type(error).__name__}"
        self._rows = None
        return time.monotonic() - began

    async def _computed(self, name: str, created_at: int) -> LoopSummary:
        """Return a new summary; what was read of the log within the budget is kept for the next try."""
        now = round(self._now() * 1e6)
        until = time.monotonic() + BUDGET_SECONDS
        while time.monotonic() < until:
            answer = await self._context.reports.call(name, read_loop, created_at, LoopReader.summary, now)
            if answer:
                return msgspec.json.decode(answer, type=LoopSummary)
        raise TimeoutError

    def _id(self, name: str) -> str:
        try:
            return self._context.loop(name).view.id
        except ApiError:
            return ""

    async def _all_rows(self) -> list[LoopState]:
        """Return all loops, the most urgent first; other requests run in between."""
        if self._rows is not None and self._now() < self._rows.until:
            return self._rows.rows
        rows = []
        for k, name in enumerate(self._context.models.names()):
            if k % ROWS_TOGETHER == ROWS_TOGETHER - 1:
                await asyncio.sleep(0)
            try:
                rows.append(self._row(self._context.loop(name)))
            except ApiError:  # it is still learned from the log, which the trouble of the service tells
                continue
        rows.sort(key=lambda row: (STATES.index(row.verdict.state), row.loop))
        self._rows = Rows(self._now() + SHARED_SECONDS, rows)
        return rows

    def _row(self, loop: Loop) -> LoopState:
        view = loop.view
        sums = view.statistics
        entry = self._entries.get(view.id, SummaryEntry())
        summary = entry.summary
        return LoopState(
            loop=view.name,
            verdict=verdict_of(view.settings, sums.ranks, summary, entry.error),
            hold=view.settings.control.hold,
            alarms=[] if summary is None else summary.alarms,
            control_share=view.settings.control.share,
            decisions=sums.ranks,
            decisions_day=None if summary is None else summary.decisions_day,
            reward=sums.reward / sums.settled if sums.settled else None,
            control_reward=sums.control_reward / sums.control_settled if sums.control_settled else None,
            users=view.n_users,
            pending=view.n_waiting,
            learned_uploads=sums.uploads,
            ignored_uploads=sums.passed_over,
            actions=[] if summary is None else summary.actions,
            n_actions=None if summary is None else summary.n_actions,
            policy=[] if summary is None else summary.policy,
            control=[] if summary is None else summary.control,
            lift=None if summary is None else summary.lift,
            as_of=entry.made or None,
            settings_version=view.settings_version,
            position=view.position,
        )


def _keep_since(summary: LoopSummary, before: LoopSummary | None, now: float) -> None:
    """Set since when each alarm stands: as before if it stood then."""
    earlier: Mapping[str, float | None] = (
        {} if before is None else {_alarm_key(alarm): alarm.since for alarm in before.alarms}
    )
    for alarm in summary.alarms:
        alarm.since = earlier.get(_alarm_key(alarm)) or now


def _alarm_key(alarm: StandingAlarm) -> str:
    """Return what stays the same of an alarm while its figures change: its code, and the outcome that it names."""
    return f"{alarm.code} {alarm.message.split()[0]}"
