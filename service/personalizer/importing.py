"""dsjson into a loop's log, with its probabilities, as if it had been decided here.

Events are known by their id: an import that was interrupted is run again, and goes on with what is missing.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from fedres.scoring.features import Preparer
from service.errors import ApiError
from service.learn.loop_state import read_settings_body
from service.log.protocol import Duplicate, Group, Log, Refused
from service.log.records import DELETED, LOOP, RANK, REWARD, SETTINGS, Record, RewardBody, encode, encode_reward
from service.models.published import Loop
from service.personalizer.configuration import azure_settings
from service.personalizer.dsjson import Logged, event_ids, read_line
from service.ranking.decide import Decision, prepare_all
from service.settings import Settings

BATCH = 1_000  # lines that are stored together

Progress = Callable[[int, int], None]  # bytes read so far, and of all files


class Imported(NamedTuple):
    """What came of the lines."""

    stored: int
    known: int  # events that were there
    wrong: int  # lines that were passed over


class WrongLine(ValueError):  # noqa: N818
    """A line that cannot be taken."""


def import_dsjson(
    log: Log,
    name: str,
    files: Sequence[Path],
    *,
    progress: Progress,
    wrong: Callable[[str], None] | None = None,
) -> Imported:
    """Append the decisions of files to a loop, which is made if it is not there.

    A wrong line ends the import unless ``wrong`` takes what is said of it. All that came before is stored.
    """
    importer = _Importer(log, name, wrong)
    sizes, before = [file.stat().st_size for file in files], 0
    for file, size in zip(files, sizes, strict=True):
        with open(file, "rb") as raw, _plain(file, raw) as lines:
            numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
            while batch := list(islice(numbered, BATCH)):
                importer.take(file, batch)
                progress(before + min(raw.tell(), size), sum(sizes))
        before += size
    return Imported(importer.stored, importer.known, importer.wrong)


def _plain(file: Path, raw: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.open(raw)) if file.name.endswith(".gz") else raw


class _Importer:
    def __init__(self, log: Log, name: str, report: Callable[[str], None] | None) -> None:
        self._log, self._name, self._report = log, name, report
        self._settings, self._position = _settings_in(log, name)
        self._loop = Loop(cast(Any, SimpleNamespace(name=name, settings=self._settings, patience=None)))
        self._preparer = Preparer()
        self.stored = self.known = self.wrong = 0

    def take(self, file: Path, lines: Sequence[tuple[int, bytes]]) -> None:
        """Store the decisions of lines; where one is wrong and not passed over, those before it are stored first."""
        numbers, logged, ended = [], [], None
        for number, line in self._unknown(lines):
            try:
                found = self._read(line)
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                ended = self._refuse(file, number, str(error))
                if ended is not None:
                    break
                continue
            logged += found
            numbers += [number] * len(found)
        prepared = prepare_all([one.request for one in logged], self._loop, self._preparer)
        wrong = {number: made for number, made in zip(numbers, prepared, strict=True) if isinstance(made, ApiError)}
        for number, reason in sorted(wrong.items()):
            ended = self._refuse(file, number, str(reason)) or ended
            if ended is not None:
                break
        last = min(wrong, default=math.inf) if ended is not None else math.inf
        self._append(
            [
                self._records(one, made)
                for number, one, made in zip(numbers, logged, prepared, strict=True)
                if number not in wrong and number < last
            ]
        )
        if ended is not None:
            raise ended

    def _unknown(self, lines: Sequence[tuple[int, bytes]]) -> Sequence[tuple[int, bytes]]:
        """Return lines without those that an earlier run has stored: it went on at least to the last of a batch."""
        if not self._known(lines[-1:]):
            return lines
        known, unknown = self._known(lines), []
        for number, line in lines:
            ids = _ids(line)
            if known.issuperset(ids):
                self.known += len(ids)
            else:
                unknown.append((number, line))
        return unknown

    def _known(self, lines: Sequence[tuple[int, bytes]]) -> set[str]:
        asked = [name for _, line in lines for name in _ids(line)]
        return {str(entry.event) for entry in self._log.find(self._name, asked) if entry.kind == RANK}

    def _read(self, line: bytes) -> list[Logged]:
        low, high = self._settings.reward_range
        found = read_line(line)
        for one in found:
            if one.reward is not None and not low <= one.reward <= high:
                raise ValueError(f"-_label_cost must be in [{low:g}, {high:g}], got {one.reward:g}")
        return found

    def _refuse(self, file: Path, number: int, message: str) -> WrongLine | None:
        """Return what ends the import, None where the line is passed over."""
        said = f"{file}, line {number}: {message}"
        if self._report is None:
            return WrongLine(said)
        self._report(said)
        self.wrong += 1
        return None

    def _records(self, logged: Logged, prepared: Any) -> Group:
        scores = [0.0] * len(logged.probabilities)
        prepared = prepared._replace(request=logged.dated())
        decision = Decision(prepared, logged.action, logged.probabilities, scores, None, self._position, self._position)
        rank = decision.record(self._loop)
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


def _ids(line: bytes) -> list[str]:
    """Return the ids of a line's decisions, one that nobody has where it has none."""
    try:
        return event_ids(line)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return [""]


def _settings_in(log: Log, name: str) -> tuple[Settings, int]:
    """Return a loop's newest settings and their position; make the loop if it is not there."""
    made, deleted = log.of_kind(name, LOOP), log.of_kind(name, DELETED)
    if not made or (deleted and deleted[-1].position > made[-1].position):
        settings = azure_settings()
        event = f"loop after {deleted[-1].position if deleted else 0}"
        [position] = log.append([[Record(name, LOOP, event, body=encode(settings))]])
        if isinstance(position, Refused):
            raise position
        return settings, position
    entry = made[-1]
    position = entry.position
    while entries := log.read(name, position, 2_000, bodies=False):
        position = entries[-1].position
        entry = next((one for one in reversed(entries) if one.kind == SETTINGS), entry)
    return read_settings_body(entry.body), entry.position
