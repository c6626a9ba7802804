"""One loop as a pure function of its log: records in order go in, models, statistics and pending events come out.

No clock, no I/O, no threads, no randomness. All events due at a record's time are settled before the record itself.
Events that settle are gathered and learned from together, by one compiled call for each step. How much work a step is
gets estimated before it is done, so that a caller can stop after any step; the models do not depend on where steps end.
"""

from __future__ import annotations

import hashlib
import platform
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from service.learn.join import Decided, DelayedExamples, Join, Rules, Settled
from service.learn.weight_history import WeightHistory
from service.log.protocol import Pruning
from service.log.records import (
    ACTIONS,
    ACTIVATE,
    ERASE,
    ERASED,
    JOIN,
    MODEL,
    RANK,
    RESIDUAL,
    REWARD,
    SETTINGS,
    UPDATE,
    Entry,
    decode_actions,
    decode_erase,
    decode_erased,
    read_decision,
    read_reward,
)
from service.models.loop_metadata import CatalogueAction, LoopMetadata
from service.models.personal import PersonalModels
from service.models.protocol import LearnedEvent, LearnerModel, ModelKind
from service.models.table import model_kind
from service.settings import Settings

REMEMBERED_ERASURES = 1_000  # complete ones; the holder of a loop completes a tenth of them before it publishes them
REJOINED = 20_000  # records, at most, that are read again only to tell late rewards of finished events from early ones
SPARE_SETTINGS = 100  # before the oldest that is needed: rankers decide under settings that are not quite the newest
EXAMPLE_TICK = 1_000_000  # microseconds that a delayed example may be late where no record comes

# Work in microseconds, roughly: of a record, an event that is settled, a feature, a pair of features, a body's byte.
STEP_WORK = 10_000  # after which ``taking`` yields
RECORD_WORK, EVENT_WORK, FEATURE_WORK, PAIR_WORK, BYTE_WORK = 5, 30, 10, 0.1, 0.05

_decode_settings = msgspec.json.Decoder(Settings).decode


def read_settings_body(body: bytes) -> Settings:
    """Return the settings in a record.

    A control group could once have a pinned model. Such records are still in logs; models learn from them what they
    learned then, as from a uniform baseline.
    """
    try:
        return _decode_settings(body)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(body)
        control = fields.get("control")
        if not isinstance(control, dict) or "pinned" not in control:
            raise
        del control["pinned"]
        if control["baseline"] == "pinned":
            control["baseline"] = "uniform"
        return msgspec.convert(fields, Settings)


class LastPublished(NamedTuple):
    """What was last published of a loop, and when."""

    position: int
    changes: tuple[int, int, int, int]  # of settings, catalogue, erasures and clients
    time: float  # monotonic


class LoopState:
    """A loop while it learns. Its metadata have its position; ``take`` advances it.

    Records before ``learn_from`` are joined but not learned: the models have learned them already.
    """

    def __init__(self, metadata: LoopMetadata, shared: LearnerModel, personal: PersonalModels) -> None:
        self.metadata, self.shared, self.personal, self.join = metadata, shared, personal, Join()
        self.delayed = DelayedExamples()
        self.position = metadata.created_at
        self.time = 0  # of the last record
        self.record_checksum = 0  # of the last record: distinguishes it from others there
        self.learn_from = 0
        self.pruned_to = metadata.pruned.cut  # decisions up to there are being deleted: some may still be read
        self.clients_changed = True
        self.published: LastPublished | None = None
        # Seconds of the last publication.
        self.publish_seconds = 0.0
        self.weight_history: WeightHistory | None = None  # from the first request of a device on
        self.unpublished_actions: set[str] | None = None  # of the catalogue; None: all
        self.unsaved_actions: set[str] = set()  # changed since the snapshot
        self.forgotten: list[str] = []  # users that the snapshot may still have
        self.missed_erasure = False  # an erasure was complete before its beginning was read
        self.unreadable_base = 0  # position of a base of another version, without which the loop is learned
        self.careful = False  # learn one event at a time, to find the one that cannot be learned
        self.is_midway = False  # in the middle of a record or a restart: it must not be published or saved
        self._work = 0.0  # since the last step ended
        self._checked = metadata.version  # of the model whose numbers were last found finite
        self._ignored: dict[str, set[str]] = {user: set() for user in metadata.erasing}  # whose events are ignored
        self._settled: list[Settled] = []  # not counted and learned from yet
        self._rules: dict[int, Rules] = {}

    @property
    def kind(self) -> ModelKind:
        return model_kind(self.metadata.settings)

    def take(self, entries: Sequence[Entry]) -> None:
        """Process records that follow each other."""
        for _ in self.taking(entries):
            pass
        self.check()

    def check(self) -> None:
        """Refuse a model whose numbers are not all finite."""
        if self.metadata.version != self._checked:
            self._check_finite()
            self._checked = self.metadata.version

    def taking(self, entries: Sequence[Entry]) -> Iterator[bool]:
        """Process records that follow each other; yield after each step whether a whole number of them is done.

        If so, the loop is as if there were no more records. Else it must be left alone until the next step.
        Call ``check`` before others see the models.
        """
        join = self.join
        for entry in entries:
            _, position, time, kind, event, _, example, _ = entry
            self.position, self.time = position, time
            yield from self._passing_time(time)
            join.current = None
            if kind in _REQUESTS:
                self.metadata.traffic.note(time)
            if kind == REWARD:
                if event is not None and example is not None and not self._is_ignored(event):
                    value, key = read_reward(example)
                    settled_now = join.reward(event, position, time, value, key, self._rules_at(position))
                    if settled_now is not None:
                        self._settle(settled_now, position)
            elif kind == RANK:
                self._rank(entry)
            elif kind in _CHANGES:
                self.learn()
                _CHANGES[kind](self, entry)
                self._work += BYTE_WORK * len(entry.body)
            self._work += RECORD_WORK
            if self._work >= STEP_WORK:
                self._end_step(entry)
                yield True
        if entries:
            self._end_step(entries[-1])
            yield True

    def _end_step(self, entry: Entry) -> None:
        """Learn from all settled events, after the last record of a step."""
        self.learn()
        late, unmatched = self.join.take_counts()
        if self.position >= self.learn_from:
            self.metadata.statistics.late_rewards += late
            self.metadata.statistics.unmatched_rewards += unmatched
        self.record_checksum = record_checksum(entry)

    def begin_at(self, position: int, time: int) -> None:
        """Continue from a position with its models in place; forget events due by then, which the models include."""
        self.position, self.time = position, time
        for _ in self._passing_time(time):
            pass
        self._settled.clear()
        self.join.take_counts()

    def learn(self) -> None:
        """Learn from all settled events."""
        events, self._settled = self._settled, []
        self._work = 0.0
        start = 0
        for k in range(1, len(events) + 1):  # runs of events that were decided under the same settings
            ends = k == len(events) or events[k].decided.settings != events[start].decided.settings
            if ends or self.careful:
                self.join.current = events[start].event
                self._learn_run(events[start:k], _settings_of(self.metadata, events[start].decided.settings))
                start = k

    def _rank(self, entry: Entry) -> None:
        assert entry.event is not None
        assert entry.example is not None
        if entry.position <= self.pruned_to:
            return
        if entry.user in self._ignored:
            self._ignored[entry.user].add(entry.event)
            return
        decision, statistics = read_decision(entry.example), self.metadata.statistics
        decided = Decided(entry.user, decision.features, decision.settings, decision.baseline_weight, decision.control)
        if decision.feedback is not None:
            statistics.feedback += entry.position >= self.learn_from
            settled_now = self.join.feedback(entry.event, entry.position, entry.time, decided, decision.feedback)
            self._settle(settled_now, entry.position)
            return
        if entry.position >= self.learn_from:
            statistics.ranks += 1
            if decision.agreed is not None:
                statistics.apprentice += 1
                statistics.agreed += decision.agreed
        rules = self._rules_of(decision.settings)
        if decision.learn_after is not None:
            self.delayed.put(entry.event, entry.position, entry.time + decision.learn_after, decided)
        settled = self.join.rank(entry.event, entry.position, entry.time, rules, decided, decision.deferred)
        if settled is not None:
            self._settle(settled, entry.position)

    def _passing_time(self, time: int) -> Iterator[bool]:
        """Settle and learn the events that are due; yield False after each step, as the record is not done."""
        for settled in self.join.expire(time):
            self._settle(settled, self.position)
            if self._work >= STEP_WORK:
                self.learn()
                yield False
        for example in self.delayed.due(time):
            default = self._rules_of(example.decided.settings).default
            reward = default if example.reward is None else example.reward
            if self.position >= self.learn_from:
                settled = Settled(example.event, example.decided, reward, None, position=self.position, counts=False)
                self._settled.append(settled)
                self._work += work_of(example.decided)
                if self._work >= STEP_WORK:
                    self.learn()
                    yield False

    def next_deadline(self) -> int | None:
        """Return by when the log must show that time has passed, None if nothing is pending."""
        deadline, example = self.join.next_deadline(), self.delayed.next_time()
        if example is not None:  # other records may show it first
            example += EXAMPLE_TICK
        return min([time for time in (deadline, example) if time is not None], default=None)

    def oldest_needed(self) -> int | None:
        """Return the position of the first record that must be read again after a restart."""
        return min([at for at in (self.join.oldest(), self.delayed.oldest()) if at is not None], default=None)

    @property
    def waiting_bytes(self) -> int:
        """Approximate memory in bytes of the events that wait for a reward or to be learned."""
        return self.join.n_bytes + self.delayed.n_bytes

    def pending_from(self) -> int:
        """Return the position from which a restart reads the log again, for pending events and late rewards."""
        oldest, first = self.oldest_needed(), max(self.metadata.created_at + 1, self.position - REJOINED)
        return first if oldest is None else min(oldest, first)

    def _settle(self, settled: Settled, position: int) -> None:
        learns = not self.delayed.settle(settled.event, settled.reward)
        self._work += RECORD_WORK
        if position >= self.learn_from:
            self._work += work_of(settled.decided)
            settled.position, settled.learns = position, learns
            self._settled.append(settled)

    def _learn_run(self, events: Sequence[Settled], settings: Settings) -> None:
        learned: list[LearnedEvent] = []
        for settled in events:
            decided, reward, learns = settled.decided, settled.reward, settled.learns
            if settled.counts:
                self._count(settled, settings)
                learns = settings.control.learns if decided.control else learns
            if reward is not None and learns:
                learned.append(LearnedEvent(decided.user, decided.features, reward, settled.position))
        if learned:
            self.metadata.version = learned[-1].position
            self.shared.learn(learned, settings, self.metadata, self.personal)
            if self.careful:
                self._check_finite()

    def _count(self, settled: Settled, settings: Settings) -> None:
        statistics, decided, reward = self.metadata.statistics, settled.decided, settled.reward
        if settled.delay is not None and not decided.control:
            statistics.rewarded += 1
            statistics.delay += settled.delay
        if reward is None:
            return
        if decided.control:
            statistics.control_settled += 1
            statistics.control_reward += reward
            statistics.control_learned += settings.control.learns
            return
        statistics.settled += 1
        statistics.reward += reward
        statistics.low += settings.default_reward is not None and reward <= settings.default_reward
        statistics.baseline_weight += decided.baseline_weight
        statistics.baseline_reward += decided.baseline_weight * reward

    def _check_finite(self) -> None:
        if not self.shared.is_finite():
            raise FloatingPointError("the shared model would have numbers that are not finite")

    # settings and rules

    def _rules_of(self, position: int) -> Rules:
        rules = self._rules.get(position)
        if rules is None:
            rules = rules_of(_settings_of(self.metadata, position))
            if position in self.metadata.history:
                self._rules[position] = rules
        return rules

    def _rules_at(self, position: int) -> Rules:
        """Return the rules of the settings that were the newest at a position."""
        if position >= self.metadata.settings_version:
            return self._rules_of(self.metadata.settings_version)
        return self._rules_of(max([at for at in self.metadata.history if at <= position], default=0))

    # rare records

    def _activate(self, entry: Entry) -> None:
        assert entry.event is not None
        if not self._is_ignored(entry.event):
            rules = self._rules_at(entry.position)
            settled = self.join.activate(entry.event, entry.position, entry.time, rules)
            if settled is not None:
                self._settle(settled, entry.position)

    def _take_settings(self, entry: Entry) -> None:
        metadata = self.metadata
        if entry.position > metadata.settings_version:
            settings = read_settings_body(entry.body)
            metadata.settings, metadata.settings_version = settings, entry.position
            metadata.history = {**self._needed_settings(), entry.position: bare_settings(settings)}
            self._rules = {at: rules for at, rules in self._rules.items() if at in metadata.history}

    def _needed_settings(self) -> dict[int, Settings]:
        """Return the settings of pending events, and of events that a restart reads again."""
        history, first = self.metadata.history, self.pending_from()
        n_older = sum(at <= first for at in history)  # the newest of these was in force there
        return dict(sorted(history.items())[max(n_older - 1 - SPARE_SETTINGS, 0) :])

    def _take_actions(self, entry: Entry) -> None:
        if entry.position <= self.metadata.catalogue_version:
            return
        body, catalogue = decode_actions(entry.body), self.metadata.catalogue
        for action in body.put:
            catalogue[action.id] = CatalogueAction(entry.position, bytes(action.features))
        for name in body.retire:
            catalogue.pop(name, None)
        self.metadata.catalogue_version = entry.position
        changed = {*(action.id for action in body.put), *body.retire}
        self.unsaved_actions |= changed
        if self.unpublished_actions is not None:
            self.unpublished_actions |= changed

    def _take_model(self, entry: Entry) -> None:
        self.metadata.model_replaced_at = max(self.metadata.model_replaced_at, entry.position)
        if entry.position >= self.learn_from:
            self.shared = self.kind.from_bytes(self.metadata.settings, entry.body)
            self.metadata.version = entry.position

    def _take_upload(self, entry: Entry) -> None:
        """Learn from an upload; the version moves either way, so that its device sees that it is covered."""
        if entry.position >= self.learn_from and entry.user not in self._ignored:
            learned = self.shared.learn_upload(entry, self.metadata)
            self.metadata.version = entry.position
            self.metadata.statistics.uploads += learned
            self.metadata.statistics.passed_over += not learned

    def _take_client(self, entry: Entry) -> None:
        if entry.position >= self.learn_from and entry.user is not None and entry.user not in self._ignored:
            self.metadata.clients.add(entry.user, self.metadata.settings.n_clients)
            self.clients_changed = True

    def _take_erase(self, entry: Entry) -> None:
        """Forget a user, and ignore the user's records until the erasure is complete."""
        if entry.user is None:
            self._take_prune(entry)
            return
        events = self.join.events_of(entry.user)
        self.join.forget(events)
        self.delayed.forget(events)
        self._ignored[entry.user] = self._ignored.get(entry.user, set()) | events
        self.metadata.erasing = {**self.metadata.erasing, entry.user: decode_erase(entry.body).token}
        if entry.position >= self.learn_from:
            self.forgotten.append(entry.user)
            self.forget_models(entry.user)
            if self.shared.forget_events():
                self.metadata.version = entry.position  # so that the snapshot's copy is written anew

    def _take_prune(self, entry: Entry) -> None:
        """Forget old events, or the request to remove them."""
        body, metadata = decode_erase(entry.body), self.metadata
        if not body.cut:
            metadata.to_prune = {**metadata.to_prune, body.token: body.before}
            return
        metadata.to_prune = {token: before for token, before in metadata.to_prune.items() if token != body.token}
        if entry.position > metadata.pruned.begun:
            metadata.pruned = Pruning(body.cut, entry.position, before=body.before, token=body.token)
        self.pruned_to = max(self.pruned_to, body.cut)
        self.join.forget_old(body.cut, body.before)

    def forget_models(self, user: str) -> None:
        """Forget a user, except for what the shared model learned."""
        metadata = self.metadata
        self.personal.remove(metadata.id, [user])
        number = metadata.clients.numbers.get(user)
        if number is not None:
            self.shared.forget_client(number)
        metadata.clients, self.clients_changed = metadata.clients.without(user), True
        metadata.guard.forget(user)

    def _take_erased(self, entry: Entry) -> None:
        body = decode_erased(entry.body)
        tokens = [body.token, *body.others]
        begun = not {*self.metadata.erasing.values(), *self.metadata.erased, self.metadata.pruned.token}.isdisjoint(
            tokens
        )
        least = max(self.metadata.base, self.unreadable_base)
        if entry.position >= self.learn_from and body.base > least and not begun:
            self.missed_erasure = True
        for user in [user for user, token in self.metadata.erasing.items() if token in tokens]:
            events = self._ignored.pop(user, set()) | self.join.events_of(user)
            self.join.forget(events)
            self.delayed.forget(events)
            # A snapshot may have a part of the erasure.
            self.personal.remove(self.metadata.id, [user])
            self.metadata.erasing = {name: token for name, token in self.metadata.erasing.items() if name != user}
            self.forgotten.append(user)  # the snapshot may still name this user
        if entry.position >= self.learn_from and body.base > least:
            self.metadata.base = body.base
        if body.cut:
            if body.begun == self.metadata.pruned.begun:
                self.metadata.pruned = msgspec.structs.replace(self.metadata.pruned, done=entry.position)
            return
        new = [token for token in tokens if token not in self.metadata.erased]
        self.metadata.erased = [*self.metadata.erased, *new][-REMEMBERED_ERASURES:]

    def _is_ignored(self, event: str) -> bool:
        return bool(self._ignored) and any(event in events for events in self._ignored.values())


_REQUESTS = (RANK, REWARD, ACTIVATE, RESIDUAL, UPDATE)
_CHANGES: dict[str, Callable[[LoopState, Entry], None]] = {
    ACTIVATE: LoopState._activate,
    SETTINGS: LoopState._take_settings,
    ACTIONS: LoopState._take_actions,
    MODEL: LoopState._take_model,
    RESIDUAL: LoopState._take_upload,
    UPDATE: LoopState._take_upload,
    JOIN: LoopState._take_client,
    ERASE: LoopState._take_erase,
    ERASED: LoopState._take_erased,
}


def bare_settings(settings: Settings) -> Settings:
    """Return settings without those that do not affect learning."""
    return msgspec.structs.replace(settings, annotations={})


def _settings_of(metadata: LoopMetadata, position: int) -> Settings:
    return metadata.history.get(position, metadata.settings)


def new_loop(entry: Entry, personal: PersonalModels) -> LoopState:
    """Return the loop that a ``loop`` record makes."""
    settings, position = read_settings_body(entry.body), entry.position
    metadata = LoopMetadata(
        entry.loop, position, settings, position, position, history={position: bare_settings(settings)}
    )
    state = LoopState(metadata, model_kind(settings).new(settings), personal)
    state.time, state.record_checksum = entry.time, record_checksum(entry)
    return state


def work_of(decided: Decided) -> float:
    """Return an estimate of the time to learn from an event, in microseconds: by its features and their pairs."""
    n_features = len(decided.features.hashes) // 4
    n_context = decided.features.n_context
    return EVENT_WORK + FEATURE_WORK * n_features + PAIR_WORK * n_context * (n_features - n_context)


def record_checksum(entry: Entry) -> int:
    """Return a checksum that distinguishes a record from others at its position."""
    named = f"{entry.loop} {entry.position} {entry.time} {entry.kind} {entry.event} {entry.user}"
    return zlib.crc32(named.encode("utf-8", "surrogatepass"))


def rules_of(settings: Settings) -> Rules:
    """Return how events are joined under the settings."""
    from_rank = settings.wait_from == "rank"
    rules = Rules(round(settings.wait_time * 1e6), settings.default_reward, settings.aggregation, from_rank)
    if settings.formula is None:
        return rules
    windows = {name: round(window * 1e6) for name, window in settings.outcomes.items()}
    return rules._replace(formula=settings.formula, windows=windows, reward_range=settings.reward_range)


def digest(shared: LearnerModel, personal: Iterable[tuple[str, bytes]]) -> str:
    """Return the architecture and the SHA-256 of a loop's models; the personal ones by rising user (UTF-8).

    The same log gives other bits on another architecture, whose multiply-and-add rounds otherwise.
    """
    seen = hashlib.sha256(shared.to_bytes())
    for user, model in personal:
        seen.update(user.encode() + b"\0" + model)
    return f"{platform.machine()}:{seen.hexdigest()}"
