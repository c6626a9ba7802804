"""Imports decisions from files into a loop's log, with their probabilities, as if they had been made here.

Events are identified by their id: an interrupted import can be run again, and continues with the missing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from fedres.progress import Progress
from fedres.scoring.features import Preparer
from service.errors import ApiError
from service.learn.loop_state import read_settings_body
from service.log.protocol import Duplicate, Group, Log, Refused, live_loop
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
from service.models.loop_metadata import LoopStatistics, LoopView
from service.models.published import Loop
from service.plugins.tools.decision_files import DecisionFile
from service.plugins.tools.dsjson import Logged
from service.rank.decide import Decision, prepare
from service.settings import Settings, of_new_loop

BATCH = 1_000  # lines that are stored together
UNREADABLE = (ValueError, RecursionError, msgspec.MsgspecError)  # errors of an invalid line

Rows = Sequence[tuple[int, Any]]


class Imported(NamedTuple):
    """The result of an import."""

    stored: int
    existed: int  # events that existed already
    wrong: int  # lines that were skipped


def import_decisions(
    log: Log,
    name: str,
    files: Mapping[Path, DecisionFile],
    *,
    progress: Progress,
    wrong: Callable[[str], None] | None = None,
) -> Imported:
    """Append the decisions of files to a loop, which is created if missing.

    An invalid row ends the import, after earlier rows are stored, unless the callback ``wrong`` accepts its message.
    """
    importer = _Importer(log, name, next(iter(files.values())).settings, wrong)
    for path, file in files.items():
        rows = file.rows(progress)
        while batch := list(islice(rows, BATCH)):
            importer.take(path, file, batch)
    return Imported(importer.stored, importer.existed, importer.wrong)


class _Importer:
    def __init__(self, log: Log, name: str, settings: Settings, report: Callable[[str], None] | None) -> None:
        self._log, self._name, self._report = log, name, report
        self._settings, self._position = _settings_in(log, name, settings)
        self._loop = Loop(_unpublished(name, self._settings, self._position))
        self._preparer = Preparer.within(self._settings.largest_number)
        self.stored = self.existed = self.wrong = 0

    def take(self, path: Path, file: DecisionFile, rows: Rows) -> None:
        """Store the decisions of rows; if an invalid one ends the import, those before it are stored first."""
        read = [(number, *self._read(file, number, row)) for number, row in self._unknown(file, rows)]
        requests = [decision.request for _, decisions, _ in read for decision in decisions]
        prepared = iter(prepare(requests, self._loop, self._preparer))
        groups: list[Group] = []
        for number, decisions, error in read:
            made = [next(prepared) for _ in decisions]
            refused = [str(each) for each in made if isinstance(each, ApiError)]
            if error is None and not refused:
                groups += map(self._records, decisions, made)
                continue
            message = f"{path}, {file.unit} {number}: {error or refused[0]}"
            if self._report is None:
                self._append(groups)
                raise ValueError(message)
            self._report(message)
            self.wrong += 1
        self._append(groups)

    def _unknown(self, file: DecisionFile, rows: Rows) -> Rows:
        """Return the rows that no earlier run has stored; if the last one is new, all are taken as new."""
        if not self._stored_ids(file, rows[-1:]):
            return rows
        stored, unknown = self._stored_ids(file, rows), []
        for number, row in rows:
            ids = _ids(file, number, row)
            if stored.issuperset(ids):
                self.existed += len(ids)
            else:
                unknown.append((number, row))
        return unknown

    def _stored_ids(self, file: DecisionFile, rows: Rows) -> set[str]:
        events = [name for number, row in rows for name in _ids(file, number, row)]
        return {str(entry.event) for entry in self._log.find(self._name, events) if entry.kind == RANK}

    def _read(self, file: DecisionFile, number: int, row: Any) -> tuple[list[Logged], str | None]:
        """Return the decisions of a row, or none and an error message."""
        low, high = self._settings.reward_range
        try:
            decisions = file.read(number, row)
        except UNREADABLE as error:
            return [], str(error)
        for decision in decisions:
            if decision.reward is not None and not low <= decision.reward <= high:
                rule = f"{file.reward} must be in [{low:g}, {high:g}], the loop's reward_range, got {decision.reward:g}"
                return [], f"{rule}: make a loop with another range first"
        return decisions, None

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
                self.existed += 1
            elif isinstance(outcome, Refused):
                raise ValueError(str(outcome))
            else:
                self.stored += 1


def _on_page(rank: Record, page: Place) -> Record:
    """Return a decision as one for a place of a page, with one of the candidates and without a baseline."""
    body = {**msgspec.json.decode(rank.body), "page": msgspec.to_builtins(page)}
    example = replace(read_decision(rank.example or b""), baseline_weight=0.0)
    return rank._replace(example=example.encode(), body=encode(body))


def _as_feedback(rank: Record, logged: Logged) -> Record:
    """Return the record of an event without a decision as feedback."""
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


def _unpublished(name: str, settings: Settings, position: int) -> LoopView:
    """Return the view of a loop that has learned nothing and has no catalogue."""
    return LoopView(
        name=name,
        created_at=position,
        position=position,
        time=0,
        version=position,
        settings=settings,
        settings_version=position,
        statistics=LoopStatistics(),
        n_waiting=0,
        seen_range=settings.reward_range,
        newest=0,
        catalogue_version=0,
        catalogue_pieces=(0, 0),
        clients_version=0,
        erased=[],
    )


def _ids(file: DecisionFile, number: int, row: Any) -> list[str]:
    """Return the ids of a row's decisions, or one unused id if it has none."""
    try:
        return file.ids(number, row)
    except UNREADABLE:
        return [""]


def _settings_in(log: Log, name: str, settings: Settings) -> tuple[Settings, int]:
    """Return a loop's newest settings and their position; create the loop with ``settings`` if missing."""
    entry = live_loop(log, name)
    if entry is None:
        deleted = log.of_kind(name, DELETED)
        event = f"loop after {deleted[-1].position if deleted else 0}"
        settings = of_new_loop(settings)
        [position] = log.append([[Record(name, LOOP, event, body=encode(settings))]])
        if isinstance(position, Refused):
            raise position
        return settings, position
    position = entry.position
    while entries := log.read(name, position, 2_000, bodies=False):
        position = entries[-1].position
        entry = next((newest for newest in reversed(entries) if newest.kind == SETTINGS), entry)
    return read_settings_body(entry.body), entry.position
