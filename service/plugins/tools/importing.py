"""Decisions of files into a loop's log, with their probabilities, as if they had been made here.

Events are known by their id: an import that was interrupted is run again, and goes on with what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, cast

import msgspec
from msgspec.structs import replace

from bandits.evaluation.logs import read_lines
from fedres.scoring.features import Preparer
from service.errors import ApiError
from service.learn.loop_state import read_settings_body
from service.log.direct import live_loop
from service.log.protocol import Duplicate, Group, Log, Refused
from service.log.records import (
    DELETED,
    LOOP,
    RANK,
    REWARD,
    SETTINGS,
    FeedbackBody,
    InlineAction,
    Place,
    Record,
    RewardBody,
    decode_rank,
    encode,
    encode_reward,
    read_decision,
)
from service.models.published import Loop
from service.plugins.personalizer.configuration import azure_settings
from service.plugins.tools.dsjson import Logged, event_ids, read_line
from service.rank.decide import Decision, prepare
from service.settings import Settings

BATCH = 1_000  # lines that are stored together

Progress = Callable[[int, int], None]  # how much of a file is read
Rows = Sequence[tuple[int, Any]]


class Imported(NamedTuple):
    """What came of the lines."""

    stored: int
    known: int  # events that were there
    wrong: int  # lines that were passed over


class WrongLine(ValueError):  # noqa: N818
    """A line that cannot be taken."""


class DecisionFile(Protocol):
    """A file of decisions, read a row at a time: a line of a text, or a row of a table."""

    unit: str  # what rows are called
    settings: Settings  # of a loop that is made for them
    reward: str  # what the reward is called

    def rows(self, progress: Progress) -> Iterator[tuple[int, Any]]: ...
    def ids(self, number: int, row: Any) -> list[str]: ...
    def read(self, number: int, row: Any) -> list[Logged]: ...


class Dsjson:
    """Lines in dsjson."""

    unit, settings, reward = "line", azure_settings(), "-_label_cost"

    def __init__(self, path: Path) -> None:
        self._path = path

    def rows(self, progress: Progress) -> Iterator[tuple[int, bytes]]:
        return read_lines(self._path, progress)

    def ids(self, number: int, line: bytes) -> list[str]:
        return event_ids(line)

    def read(self, number: int, line: bytes) -> list[Logged]:
        return read_line(line)


def import_decisions(
    log: Log,
    name: str,
    files: Mapping[Path, DecisionFile],
    *,
    progress: Progress,
    wrong: Callable[[str], None] | None = None,
) -> Imported:
    """Append the decisions of files to a loop, which is made if it is not there.

    A wrong row ends the import unless ``wrong`` takes what is said of it. All that came before is stored.
    """
    importer = _Importer(log, name, next(iter(files.values())).settings, wrong)
    for path, file in files.items():
        rows = file.rows(progress)
        while batch := list(islice(rows, BATCH)):
            importer.take(path, file, batch)
    return Imported(importer.stored, importer.known, importer.wrong)


class _Importer:
    def __init__(self, log: Log, name: str, settings: Settings, report: Callable[[str], None] | None) -> None:
        self._log, self._name, self._report = log, name, report
        self._settings, self._position = _settings_in(log, name, settings)
        self._loop = Loop(cast(Any, SimpleNamespace(name=name, settings=self._settings)))
        self._preparer = Preparer()
        self.stored = self.known = self.wrong = 0

    def take(self, path: Path, file: DecisionFile, rows: Rows) -> None:
        """Store the decisions of rows; where one is wrong and not passed over, those before it are stored first."""
        places, logged, ended = [], [], None
        rows = self._unknown(file, rows)
        for place, (number, row) in enumerate(rows):
            try:
                decisions = self._read(file, number, row)
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                ended = self._refuse(path, file.unit, number, str(error))
                if ended is not None:
                    break
                continue
            logged += decisions
            places += [place] * len(decisions)
        prepared = prepare([one.request for one in logged], self._loop, self._preparer)
        wrong = {place: made for place, made in zip(places, prepared, strict=True) if isinstance(made, ApiError)}
        for place, reason in sorted(wrong.items()):
            ended = self._refuse(path, file.unit, rows[place][0], str(reason)) or ended
            if ended is not None:
                break
        last = min(wrong, default=math.inf) if ended is not None else math.inf
        self._append(
            [
                self._records(one, made)
                for place, one, made in zip(places, logged, prepared, strict=True)
                if place not in wrong and place < last
            ]
        )
        if ended is not None:
            raise ended

    def _unknown(self, file: DecisionFile, rows: Rows) -> Rows:
        """Return rows without those that an earlier run has stored: it went on at least to the last of a batch."""
        if not self._known(file, rows[-1:]):
            return rows
        stored, unknown = self._known(file, rows), []
        for number, row in rows:
            ids = _ids(file, number, row)
            if stored.issuperset(ids):
                self.known += len(ids)
            else:
                unknown.append((number, row))
        return unknown

    def _known(self, file: DecisionFile, rows: Rows) -> set[str]:
        events = [name for number, row in rows for name in _ids(file, number, row)]
        return {str(entry.event) for entry in self._log.find(self._name, events) if entry.kind == RANK}

    def _read(self, file: DecisionFile, number: int, row: Any) -> list[Logged]:
        low, high = self._settings.reward_range
        decisions = file.read(number, row)
        for one in decisions:
            if one.reward is not None and not low <= one.reward <= high:
                rule = f"{file.reward} must be in [{low:g}, {high:g}], the loop's reward_range, got {one.reward:g}"
                raise ValueError(f"{rule}: make a loop with another range first")
        return decisions

    def _refuse(self, path: Path, unit: str, number: int, message: str) -> WrongLine | None:
        """Return what ends the import, None where the row is passed over."""
        said = f"{path}, {unit} {number}: {message}"
        if self._report is None:
            return WrongLine(said)
        self._report(said)
        self.wrong += 1
        return None

    def _records(self, logged: Logged, prepared: Any) -> Group:
        scores = [0.0] * len(logged.probabilities)
        prepared = replace(prepared, request=logged.request if logged.is_feedback else logged.dated())
        probabilities = [1.0] if logged.is_feedback else logged.probabilities
        decision = Decision(prepared, logged.action, probabilities, scores, None, self._position, self._position)
        rank = decision.record(self._loop)
        if logged.is_feedback:
            return [_as_feedback(rank, logged)]
        if logged.page is not None:
            rank = _on_page(rank, logged.page)
        if logged.reward is None:
            return [rank]
        example, body = encode_reward(logged.reward, None), encode(RewardBody(logged.reward))
        return [rank, Record(rank.loop, REWARD, rank.event, None, example, body)]

    def _append(self, groups: Sequence[Group]) -> None:
        for outcome in self._log.append(groups) if groups else ():
            if isinstance(outcome, Duplicate):
                self.known += 1
            elif isinstance(outcome, Refused):
                raise ValueError(str(outcome))
            else:
                self.stored += 1


def _on_page(rank: Record, page: Place) -> Record:
    """Return a decision as that on a place of a page, of whose candidates it has one; no baseline is known."""
    body = {**msgspec.json.decode(rank.body), "page": msgspec.to_builtins(page)}
    example = replace(read_decision(rank.example or b""), baseline_weight=0.0)
    return rank._replace(example=example.encode(), body=encode(body))


def _as_feedback(rank: Record, logged: Logged) -> Record:
    """Return what was nobody's decision as feedback."""
    body, happened = decode_rank(rank.body), logged.timestamp
    sent = FeedbackBody(
        body.context,
        [InlineAction(body.actions[0].id, body.actions[0].features or msgspec.Raw(b"{}"))],
        0,
        [],
        [],
        body.version,
        body.settings,
        reward=logged.reward,
        happened=None if happened is None else round(1e6 * float(happened)),
    )
    example = replace(read_decision(rank.example or b""), baseline_weight=0.0, feedback=logged.reward)
    return rank._replace(example=example.encode(), body=encode(sent))


def _ids(file: DecisionFile, number: int, row: Any) -> list[str]:
    """Return the ids of a row's decisions, one that nobody has where it has none."""
    try:
        return file.ids(number, row)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return [""]


def _settings_in(log: Log, name: str, settings: Settings) -> tuple[Settings, int]:
    """Return a loop's newest settings and their position; make the loop with ``settings`` if it is not there."""
    entry = live_loop(log, name)
    if entry is None:
        deleted = log.of_kind(name, DELETED)
        event = f"loop after {deleted[-1].position if deleted else 0}"
        [position] = log.append([[Record(name, LOOP, event, body=encode(settings))]])
        if isinstance(position, Refused):
            raise position
        return settings, position
    position = entry.position
    while entries := log.read(name, position, 2_000, bodies=False):
        position = entries[-1].position
        entry = next((one for one in reversed(entries) if one.kind == SETTINGS), entry)
    return read_settings_body(entry.body), entry.position
