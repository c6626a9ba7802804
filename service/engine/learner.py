"""The learner: the state of all loops as a pure function of the log's records in order.

No clock, no I/O, no threads, no randomness. Whatever is due at a record's time is settled before the record itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from fedres.scoring.features import Prepared, Preparer
from fedres.scoring.flattening import Limits
from fedres.scoring.model import PersonalModel, SharedModel, learn
from service.engine.given import Features, features_in
from service.engine.handed import Handed, Known, agreed
from service.engine.heads import Base, CatalogueAction, LoopHead, Statistics
from service.engine.joining import Case, Join, Rules, Settled
from service.engine.records import (
    ACTIONS,
    ACTIVATE,
    BASE,
    ERASED,
    GIVEN,
    JOIN,
    MODEL,
    RANK,
    RESIDUAL,
    REWARD,
    SETTINGS,
    UPDATE,
    Offered,
    read_actions,
    read_offered,
    read_rank,
    read_reward,
)
from service.engine.settings import Settings
from service.engine.shared import new_model, read_model
from service.engine.uploads import learn_residual, learn_update
from service.store import Entry

ANY = Limits(features=2**40, depth=2**20, name=2**40, crosses=2**60)  # what is in the log was within its limits

Pause = Callable[[], None]
Stored = Callable[[int, str], PersonalModel | None]  # (loop's first position, user) -> the model as last taken away


class Erasure(msgspec.Struct, frozen=True):
    """Whom the next ``erased`` record is about: the log does not say."""

    loop: str
    user: str
    events: tuple[str, ...]


class LoopState:
    """One loop, learning. ``working`` holds the personal models that changed since they were last taken away."""

    def __init__(
        self,
        head: LoopHead,
        join: Join,
        shared: SharedModel,
        preparer: Preparer,
        stored: Stored,
        given: Features,
    ) -> None:
        self.head = head
        self.join = join
        self.shared = shared
        self.working: dict[str, PersonalModel] = {}
        self._preparer = preparer
        self._stored, self._given = stored, given
        self._rules = (head.settings, rules_of(head.settings))

    def apply(self, entry: Entry, pause: Pause) -> None:
        seq, time, _, kind, *_ = entry
        if kind == BASE:  # holds the state just before it, so nothing may be settled in between
            self._install(entry)
            return
        for settled in self.join.expire(time):
            self._learn(settled, seq)
            pause()
        action = _APPLY.get(kind)
        settled_now = action(self, entry) if action else None
        if settled_now is not None:
            self._learn(settled_now, seq)

    def apply_ranks(self, entries: Iterable[Entry]) -> int:
        """Apply the first entries, as far as they are decisions that can simply wait; return how many."""
        name, rules, n = self.head.name, self.rules(), 0
        for seq, time, loop, kind, event, _, body in entries:
            if kind != RANK or loop != name or event is None or not isinstance(body, Handed):
                break
            known = body.known
            if known.deferred or known.agreed is not None or not self.join.begin(event, seq, time, rules, known.case):
                break
            n += 1
        self.head.statistics.ranks += n
        return n

    def personal(self, user: str) -> PersonalModel:
        """Return the user's model, to be changed."""
        model = self.working.get(user)
        if model is None:
            known = self._stored(self.head.since, user)
            model = self.working[user] = PersonalModel() if known is None else known.copy()
        return model

    def rules(self) -> Rules:
        if self._rules[0] is not self.head.settings:
            self._rules = (self.head.settings, rules_of(self.head.settings))
        return self._rules[1]

    def _learn(self, settled: Settled, seq: int) -> None:
        _, case, reward, delay = settled
        settings, statistics = self.head.settings, self.head.statistics
        if delay is not None:
            statistics.rewarded += 1
            statistics.delay += delay
        if reward is None:
            return
        own = self.personal(case.user) if settings.personal and case.user is not None else None
        self.shared.learning_rate = settings.learning_rate
        if own is not None:
            own.learning_rate = settings.learning_rate
        learn(_prepared(case, settings.crosses), 0, reward, self.shared, own)
        self.head.version = seq
        statistics.settled += 1
        statistics.reward += reward
        statistics.baseline_weight += case.baseline_weight
        statistics.baseline_reward += case.baseline_weight * reward

    def _rank(self, entry: Entry) -> Settled | None:
        seq, time, _, _, event, _, body = entry
        known, statistics = body.known if isinstance(body, Handed) else self._read_rank(entry), self.head.statistics
        statistics.ranks += 1
        if known.agreed is not None:
            statistics.apprentice += 1
            statistics.agreed += known.agreed
        assert event is not None
        return self.join.rank(event, seq, time, self.rules(), known.case, known.deferred)

    def _read_rank(self, entry: Entry) -> Known:
        body = read_rank(entry.body)
        offered = read_offered(body.actions[body.action])
        prepared = self._preparer.prepare(bytes(body.context), [(offered.id, self._features(offered))])
        first = _first_allowed(body.probabilities, body.exclude, body.actions)
        weight = 1 / body.probabilities[body.action] if body.action == first else 0.0
        n_context = int(prepared.starts[0])
        case = Case(entry.user, prepared.hashes.tobytes(), prepared.values.tobytes(), n_context, weight)
        return Known(case, body.deferred, agreed(body))

    def _features(self, offered: Offered) -> bytes:
        if offered.given:
            return self._given(offered.given, offered.id)
        return self.head.catalogue[offered.id].features if offered.put else bytes(offered.features)

    def _reward(self, entry: Entry) -> Settled | None:
        body = read_reward(entry.body)
        return self.join.reward(_event(entry), entry.seq, entry.time, body.value, body.key(), self.rules())

    def _activate(self, entry: Entry) -> Settled | None:
        return self.join.activate(_event(entry), entry.seq, entry.time, self.rules())

    def _settings(self, entry: Entry) -> None:
        self.head.settings = _read_settings(entry)
        self.head.settings_version = entry.seq

    def _actions(self, entry: Entry) -> None:
        body = read_actions(entry.body)
        catalogue = dict(self.head.catalogue)
        for action in body.put:
            catalogue[action.id] = CatalogueAction(entry.seq, bytes(action.features))
        for name in body.retire:
            catalogue.pop(name, None)
        self.head.catalogue = catalogue

    def _model(self, entry: Entry) -> None:
        self.shared = read_model(self.head.settings, entry.body)
        self.head.version = entry.seq

    def _residual(self, entry: Entry) -> None:
        self._uploaded(learn_residual(entry, self.head, self.shared, self._preparer), entry.seq)

    def _update(self, entry: Entry) -> None:
        self._uploaded(learn_update(entry, self.head, self.shared), entry.seq)

    def _uploaded(self, learned: bool, seq: int) -> None:
        """Count an upload; the version moves either way, so that its device sees that it is covered."""
        self.head.version = seq
        self.head.statistics.uploads += learned
        self.head.statistics.passed_over += not learned

    def _join(self, entry: Entry) -> None:
        assert entry.user is not None
        self.head.clients.add(entry.user, self.head.settings.n_clients)

    def _install(self, entry: Entry) -> None:
        if entry.user is not None:
            self.working[entry.user] = PersonalModel.from_bytes(entry.body)
            return
        base = msgspec.msgpack.decode(entry.body, type=Base)
        self.shared = read_model(self.head.settings, base.shared)
        self.head.version, self.head.statistics, self.head.base = base.version, base.statistics, entry.seq
        self.head.clients, self.head.guard = base.clients, base.guard

    def forget(self, user: str, events: Iterable[str]) -> None:
        """Leave nothing of a user but what the shared model learned."""
        self.working.pop(user, None)
        self.join.forget(user, events)
        self.head.clients = self.head.clients.without(user)
        self.head.guard.forget(user)


_APPLY: dict[str, Callable[[LoopState, Entry], Settled | None]] = {
    RANK: LoopState._rank,
    REWARD: LoopState._reward,
    ACTIVATE: LoopState._activate,
    SETTINGS: LoopState._settings,
    ACTIONS: LoopState._actions,
    MODEL: LoopState._model,
    RESIDUAL: LoopState._residual,
    UPDATE: LoopState._update,
    JOIN: LoopState._join,
}


def _nothing_given(position: int, action: str) -> bytes:
    raise LookupError(f"the features of {action!r} must be in record {position}, got no records to look into")


class Learner:
    """All loops. ``stored`` finds personal models that were taken out of ``working``; without it they stay there.

    ``given`` finds features in records that were applied before.
    """

    def __init__(self, stored: Stored = lambda since, user: None, given: Features = _nothing_given) -> None:
        self.loops: dict[str, LoopState] = {}
        self.position = 0  # of the last record applied
        self.time = 0  # its time
        self.dropped: list[int] = []  # first positions of loops that were deleted
        self.erasing: Erasure | None = None
        self.basing = False  # the next records of users' models hold what is here already
        self.erased: list[tuple[int, str]] = []  # (first position of the loop, user) of whom nothing may be left
        self._stored, self._given = stored, given
        self._preparer = Preparer(limits=ANY, cache_bytes=32_000_000)

    def apply(self, entry: Entry, pause: Pause = lambda: None) -> None:
        """Take the next record of the log; ``pause`` is called between events that are settled by it, maybe many."""
        seq, time, loop, kind, _, user, _ = entry
        if kind == SETTINGS:
            self._make_or_drop(entry)
        state = self.loops.get(loop)
        if state is not None and not (self.basing and kind == BASE and user is not None):
            state.apply(entry, pause)
        if kind == ERASED and self.erasing is not None:
            self._erase(self.erasing)
        self.position, self.time = seq, time

    def apply_ranks(self, entries: Sequence[Entry]) -> int:
        """Return how many of the first records were taken, all at once; what is left is for ``apply``."""
        state = self.loops.get(entries[0].loop)
        n = 0 if state is None else state.apply_ranks(entries)
        if n:
            self.position, self.time = entries[n - 1].seq, entries[n - 1].time
        return n

    def next_deadline(self) -> list[tuple[int, str]]:
        """Return when something is due in each loop where anything waits, the nearest first."""
        found = [(state.join.next_deadline(), name) for name, state in self.loops.items()]
        return sorted((deadline, name) for deadline, name in found if deadline is not None)

    def add(self, head: LoopHead, join: Join, shared: SharedModel) -> None:
        """Put in a loop as it was at ``position``."""
        self.loops[head.name] = LoopState(head, join, shared, self._preparer, self._stored, self._given)

    def _make_or_drop(self, entry: Entry) -> None:
        if _is_deletion(entry):
            state = self.loops.pop(entry.loop, None)
            self.dropped += [state.head.since] if state else []
        elif entry.loop not in self.loops:
            settings = _read_settings(entry)
            head = LoopHead(entry.loop, entry.seq, settings, entry.seq, entry.seq, Statistics())
            self.add(head, Join(), new_model(settings))

    def _erase(self, erasure: Erasure) -> None:
        state = self.loops[erasure.loop]
        state.forget(erasure.user, erasure.events)
        self.erased.append((state.head.since, erasure.user))
        self.erasing = None


def replay(entries: Iterable[Entry]) -> Learner:
    """Return the learner that has read the entries of a log, and nothing else."""
    given: dict[int, dict[str, bytes]] = {}
    learner = Learner(given=lambda position, action: given[position][action])
    for entry in entries:
        if entry.kind == GIVEN:
            given[entry.seq] = features_in(entry)
        learner.apply(entry)
    return learner


def digest(shared: SharedModel, personal: Iterable[tuple[str, bytes]]) -> str:
    """Return the SHA-256 of a loop's models; the personal ones by rising user (UTF-8)."""
    seen = hashlib.sha256(shared.to_bytes())
    for user, model in personal:
        seen.update(user.encode() + b"\0" + model)
    return seen.hexdigest()


def digest_of(state: LoopState) -> str:
    """Return the same for a loop whose personal models were never taken away."""
    users = sorted(state.working, key=str.encode)
    return digest(state.shared, ((user, state.working[user].to_bytes()) for user in users))


def rules_of(settings: Settings) -> Rules:
    """Return how events are joined under the settings."""
    return Rules(round(settings.wait_time * 1e6), settings.default_reward, settings.aggregation == "sum")


def _event(entry: Entry) -> str:
    assert entry.event is not None
    return entry.event


def _read_settings(entry: Entry) -> Settings:
    return msgspec.json.decode(entry.body, type=Settings)


def _is_deletion(entry: Entry) -> bool:
    fields: dict[str, Any] = msgspec.json.decode(entry.body)
    return bool(fields.get("deleted"))


def _first_allowed(probabilities: list[float], exclude: list[str], actions: list[msgspec.Raw]) -> int:
    """Return the position of the baseline action: the first that was not excluded."""
    if not exclude:
        return 0
    return next(k for k in range(len(probabilities)) if read_offered(actions[k]).id not in exclude)


def _prepared(case: Case, crosses: bool) -> Prepared:
    hashes, values = np.frombuffer(case.hashes, np.uint32), np.frombuffer(case.values, np.float32)
    return Prepared(hashes, values, np.array([case.n_context, hashes.size], np.int64), crosses)
