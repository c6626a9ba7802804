"""What the log holds: one struct for each kind of record, one encoder, one checksum (docs: log.md).

A record has a JSON ``body`` for readers. Decisions, rewards and residuals also have an ``example``: what the learner
needs, in binary, so that it parses no JSON.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from service.outcomes import outcome_key

LOOP, SETTINGS, DELETED, ACTIONS, MODEL = "loop", "settings", "deleted", "actions", "model"
RANK, REWARD, ACTIVATE, TICK = "rank", "reward", "activate", "tick"
RESIDUAL, UPDATE, JOIN = "residual", "update", "join"
ERASE, BASE, ERASED = "erase", "base", "erased"
NOTE = "note"  # data that a tool keeps with a loop; ignored by the learner
PIN = "pin"  # a model that decided for a control group; no longer written, and ignored
ONCE = (RANK, RESIDUAL, UPDATE, JOIN, LOOP, SETTINGS)  # an event has at most one record of each of these kinds

# Records deleted with old events: decisions with their rewards at any position, all others by position.
OLD = (RANK, TICK, RESIDUAL, UPDATE, ERASED, PIN)
ABOUT = (REWARD, ACTIVATE)

RARE = (LOOP, DELETED, ERASE, ERASED, BASE)  # kinds with an index

EMPTY = b"{}"


class Record(NamedTuple):
    """A record to append."""

    loop: str
    kind: str
    event: str | None = None
    user: str | None = None
    example: bytes | None = None
    body: bytes = EMPTY


class Entry(NamedTuple):
    """A stored record: ``position`` counts from 1 in each loop, ``time`` is microseconds since 1970.

    ``body`` is ``b""`` if there is an example and the reader requested no bodies.
    """

    loop: str
    position: int
    time: int
    kind: str
    event: str | None
    user: str | None
    example: bytes | None
    body: bytes


class DamagedRecord(Exception):  # noqa: N818
    """A record that does not match its checksum."""

    def __init__(self, loop: str, position: int) -> None:
        super().__init__(loop, position)
        self.loop, self.position = loop, position

    def __str__(self) -> str:
        return (
            f"record {self.position} of loop {self.loop!r} does not match its checksum: restore a backup "
            f"(fedres log restore), or give the record up (fedres log drop {self.loop} {self.position})"
        )


def checksum(entry: Entry) -> bytes:
    """Return 16 bytes: BLAKE2b of the fields that the learner reads, then of the body."""
    return checksum_of(entry) + body_checksum(entry.body)


def checksum_of(entry: Entry) -> bytes:
    loop, position, time, kind, event, user, example, _ = entry
    named = msgspec.msgpack.encode((loop, position, time, kind, event, user, example))
    return hashlib.blake2b(named, digest_size=8).digest()


def body_checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).digest()


def check(entry: Entry, stored: bytes, *, with_body: bool) -> None:
    """Raise ``DamagedRecord`` unless the checksum matches; that of the body is checked if it was read."""
    try:
        good = stored[:8] == checksum_of(entry) and not (with_body and stored[8:] != body_checksum(entry.body))
    except (TypeError, UnicodeEncodeError):  # not even of the right type
        good = False
    if not good:
        raise DamagedRecord(entry.loop, entry.position)


# Examples

_DECISION = struct.Struct("<Bqd I")  # flags, version of the settings, baseline weight, features of the context
_DEFERRED, _APPRENTICE, _AGREED, _FIELDS, _CONTROL, _LEARNS_AFTER, _FEEDBACK = 1, 2, 4, 8, 16, 32, 64
_LEARN_AFTER = struct.Struct("<q")  # microseconds
_REWARD = struct.Struct("<d")
_RESIDUAL = struct.Struct("<Bqddd I")  # flags, version of the model, label, local, global, features of the context
_ALIGNED, _PART = 1, 2
_SPREAD = struct.Struct("<dI")  # variance, how many slopes


class HashedExample(msgspec.Struct, frozen=True, gc=False):
    """The hashed features of a context and of one action: feature hashes and raw values."""

    hashes: bytes  # uint32, little-endian; the context's come first
    values: bytes  # float32
    n_context: int
    fields: bytes = b""  # uint32, hashes of the JSON keys of the action's features; nothing where not logged


class DecisionExample(msgspec.Struct, frozen=True, gc=False):
    """The learner's part of a decision, or of feedback on an action that was chosen elsewhere."""

    features: HashedExample
    settings: int  # position of the settings it was made under
    baseline_weight: float  # 1/p where the action taken was the first one allowed, else 0
    deferred: bool
    # True: the apprentice's policy drew the action taken; None: the loop was no apprentice.
    agreed: bool | None
    # True: the baseline of the control group decided.
    control: bool = False
    learn_after: int | None = None  # microseconds after which it is learned, if callers do not report failures
    feedback: float | None = None  # its reward, where it is feedback

    def encode(self) -> bytes:
        flags = _DEFERRED * self.deferred | _FIELDS * bool(self.features.fields) | _CONTROL * self.control
        if self.agreed is not None:
            flags |= _APPRENTICE | _AGREED * self.agreed
        features, more = self.features, b""
        if self.learn_after is not None:
            flags, more = flags | _LEARNS_AFTER, _LEARN_AFTER.pack(self.learn_after)
        if self.feedback is not None:
            flags, more = flags | _FEEDBACK, more + _REWARD.pack(self.feedback)
        head = _DECISION.pack(flags, self.settings, self.baseline_weight, features.n_context) + more
        return head + features.hashes + features.values + features.fields


def read_decision(data: bytes) -> DecisionExample:
    flags, settings, weight, n_context = _DECISION.unpack_from(data)
    agreed = bool(flags & _AGREED) if flags & _APPRENTICE else None
    start, learn_after, feedback = _DECISION.size, None, None
    if flags & _LEARNS_AFTER:
        [learn_after], start = _LEARN_AFTER.unpack_from(data, start), start + _LEARN_AFTER.size
    if flags & _FEEDBACK:
        [feedback], start = _REWARD.unpack_from(data, start), start + _REWARD.size
    features = _features(data, start, n_context, with_fields=bool(flags & _FIELDS))
    deferred, control = bool(flags & _DEFERRED), bool(flags & _CONTROL)
    return DecisionExample(features, settings, weight, deferred, agreed, control, learn_after, feedback)


class Spread(NamedTuple):
    """How sure a device is of its part of a prediction, in a loop with ``residual-kalman``."""

    variance: float
    slopes: tuple[float, ...]  # of the part by log τ, for block 0 and for each field of the action


class ResidualExample(NamedTuple):
    """The learner's part of a device's residual."""

    features: HashedExample
    version: int
    label: float
    local: float
    global_: float | None
    spread: Spread | None = None

    def encode(self) -> bytes:
        flags = _ALIGNED * (self.global_ is not None) | _PART * (self.spread is not None)
        numbers = (self.version, self.label, self.local, self.global_ if self.global_ is not None else 0.0)
        features = self.features
        head = _RESIDUAL.pack(flags, *numbers, features.n_context)
        if self.spread is None:
            return head + features.hashes + features.values
        slopes = self.spread.slopes
        head += _SPREAD.pack(self.spread.variance, len(slopes)) + struct.pack(f"<{len(slopes)}d", *slopes)
        return head + features.hashes + features.values + features.fields


def read_residual(data: bytes) -> ResidualExample:
    flags, version, label, local, global_, n_context = _RESIDUAL.unpack_from(data)
    start, spread = _RESIDUAL.size, None
    if flags & _PART:
        variance, n = _SPREAD.unpack_from(data, start)
        spread = Spread(variance, struct.unpack_from(f"<{n}d", data, start + _SPREAD.size))
        start += _SPREAD.size + 8 * n
    features = _features(data, start, n_context, with_fields=spread is not None)
    return ResidualExample(features, version, label, local, global_ if flags & _ALIGNED else None, spread)


def _features(data: bytes, start: int, n_context: int, *, with_fields: bool = False) -> HashedExample:
    n_bytes = len(data) - start  # of hashes and values, and of fields but for those of the context
    each, rest = divmod(n_bytes + 4 * n_context, 3) if with_fields else divmod(n_bytes, 2)
    if rest or each % 4 or 4 * n_context > each:
        raise ValueError(f"an example must have columns of one length, got {n_bytes} bytes, {n_context} of the context")
    middle, last = start + each, start + 2 * each
    return HashedExample(data[start:middle], data[middle:last], n_context, data[last:])


def encode_reward(value: float, reward_id: str | None, outcome: str | None = None) -> bytes:
    """Return a reward or a named outcome for the learner: its value, and the key by which a repeat is recognized."""
    key = f"={value!r}" if reward_id is None else reward_id
    return _REWARD.pack(value) + (key if outcome is None else outcome_key(outcome, key)).encode()


def read_reward(data: bytes) -> tuple[float, str]:
    """Return the value and the key by which a repeat is recognized."""
    return _REWARD.unpack_from(data)[0], data[_REWARD.size :].decode()


# Bodies


class InlineAction(msgspec.Struct, gc=False):
    """An action whose features came with the request."""

    id: str
    features: msgspec.Raw


class CatalogueReference(msgspec.Struct, gc=False):
    """An action named by its id: the catalogue record at position ``put`` has its features."""

    id: str
    put: int


class LoggedAction(msgspec.Struct, gc=False):
    """An inline action or a catalogue reference, decoded."""

    id: str
    features: msgspec.Raw = msgspec.Raw(b"")
    put: int = 0


class RankBody(msgspec.Struct, gc=False):
    """A decision as it was made."""

    context: msgspec.Raw
    actions: list[Any]  # InlineAction or CatalogueReference
    # The place of the action taken.
    action: int
    probabilities: list[float]  # of all actions; the one taken was drawn from these
    scores: list[float]
    version: int  # of the model
    settings: int  # position of the settings
    exclude: list[str] = []
    deferred: bool = False
    # The action that the policy drew, if an apprentice took the first one.
    policy_action: int | None = None
    arm: str | None = None  # control, treatment or held, where the loop has a control group


class Asked(msgspec.Struct, omit_defaults=True, gc=False):
    """From which items of the catalogue those of a page were drawn."""

    n: int  # requested places
    places: int  # filled places: fewer if there were not enough candidates
    catalogue: int  # position of its last change
    time: int  # by which items expire; microseconds since 1970
    filter: msgspec.Raw = msgspec.Raw(b"{}")
    exclude: list[str] = []
    exclude_seen: bool | float = False
    seen: list[str] = []  # the excluded items
    popular: bool = False  # drawn by popularity, as the loop had learned nothing


class Place(msgspec.Struct, omit_defaults=True, gc=False):
    """Which place of a page a decision is for; the first one has what all were drawn from."""

    place: int  # from 1
    # Number of actions left to draw from; the record has one of them.
    candidates: int
    asked: Asked | None = None


class RecommendBody(RankBody, gc=False):
    """The decision on a place of a page: its item is the only action, with its probability among all candidates."""

    page: Place | None = None


class FeedbackBody(RankBody, omit_defaults=True, gc=False):
    """Feedback on the only action, which was chosen elsewhere: there are no probabilities and no scores."""

    reward: float | None = None
    happened: int | None = None  # microseconds since 1970


class LoggedRank(RankBody, gc=False):
    """A decision, a recommended item or feedback, decoded."""

    actions: list[LoggedAction]
    page: Place | None = None  # of a recommended item
    reward: float | None = None  # of feedback
    happened: int | None = None

    @property
    def is_feedback(self) -> bool:
        return self.reward is not None


class RewardBody(msgspec.Struct, omit_defaults=True, gc=False):
    value: float
    id: str | None = None
    outcome: str | None = None  # its name, where the loop's reward is a formula


class ActionsBody(msgspec.Struct):
    """A change of the catalogue."""

    put: list[InlineAction] = []
    retire: list[str] = []


class ResidualBody(msgspec.Struct, omit_defaults=True, gc=False):
    """A device's residual for an example: [FedRes]'s triplet, and the model it was made with."""

    context: msgspec.Raw
    action: InlineAction
    local: float  # the device's own part of the prediction
    label: float
    version: int  # of the shared model
    global_: float | None = msgspec.field(default=None, name="global")  # the shared part, where errors are aligned
    variance: float | None = None  # of the device's own part, and its slopes, where the model is residual-kalman
    slopes: list[float] | None = None


class UpdateBody(msgspec.Struct, gc=False):
    """What a device sends to a learner that takes gradients or deltas."""

    number: int  # of the client
    t: int  # its round
    version: int
    kind: str
    body: bytes


class EraseBody(msgspec.Struct, omit_defaults=True):
    """A request to erase a user; the record names the user and is deleted with the user's other records.

    Without a user it is about old events: a request to delete those ``before`` a time or, with a ``cut``, the
    announcement of the loop's holder up to which position they are deleted.
    """

    token: str  # identifies the erasure when it is complete
    before: int = 0  # microseconds since 1970
    cut: int = 0


class ErasedBody(msgspec.Struct, omit_defaults=True):
    """A complete erasure, without the user: the models as of position ``base`` are in the base records before it.

    With a ``cut``, events decided up to there are deleted from here on.
    """

    records: int
    base: int
    token: str
    others: list[str] = []  # tokens of repeated requests to erase the same user, whose records were deleted too
    cut: int = 0
    begun: int = 0  # position of the record that made learners forget these events
    before: int = 0  # older ones are deleted; microseconds since 1970


encode = msgspec.json.Encoder().encode
decode_rank = msgspec.json.Decoder(LoggedRank).decode
decode_reward = msgspec.json.Decoder(RewardBody).decode
decode_actions = msgspec.json.Decoder(ActionsBody).decode
decode_update = msgspec.msgpack.Decoder(UpdateBody).decode
decode_erase = msgspec.json.Decoder(EraseBody).decode
decode_erased = msgspec.json.Decoder(ErasedBody).decode


def ranks_in(entries: Iterable[Entry]) -> dict[str, tuple[Entry, LoggedRank]]:
    """Return the decisions among records by their event."""
    return {str(entry.event): (entry, decode_rank(entry.body)) for entry in entries if entry.kind == RANK}
