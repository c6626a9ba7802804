"""The bodies of the log's records, as JSON that other tools can read; those of updates, which are bytes, as msgpack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

RANK, REWARD, ACTIVATE, SETTINGS, ACTIONS, MODEL, BASE, ERASED, TICK, RESIDUAL, UPDATE, JOIN, GIVEN = (
    "rank",
    "reward",
    "activate",
    "settings",
    "actions",
    "model",
    "base",
    "erased",
    "tick",
    "residual",
    "update",
    "join",
    "given",
)
NOTHING = b"{}"


class Inline(msgspec.Struct):
    """An action whose features came with the request."""

    id: str
    features: msgspec.Raw


class Registered(msgspec.Struct):
    """An action of the catalogue, as the record at position ``put`` has it."""

    id: str
    put: int


class StoredApart(msgspec.Struct, gc=False):
    """An action whose features came with the request, and with others before it: the record ``given`` has them."""

    id: str
    given: int


class Offered(msgspec.Struct, gc=False):
    """Any of them, read."""

    id: str
    features: msgspec.Raw = msgspec.Raw(b"")
    put: int = 0
    given: int = 0


class RankBody(msgspec.Struct, gc=False):
    """A decision as it was made."""

    context: msgspec.Raw
    actions: Sequence[Any]  # Inline, or what has the same fields, Registered, StoredApart
    action: int  # which of them was taken
    probabilities: list[float]  # of all, as drawn from
    scores: list[float]
    version: int  # of the model
    settings: int  # position of the settings in force
    exclude: list[str] = []
    deferred: bool = False
    wished: int | None = None  # what the policy drew, where the loop is an apprentice and took the first


class LoggedRank(msgspec.Struct, gc=False):
    """The same, read; actions only as far as needed."""

    context: msgspec.Raw
    actions: list[msgspec.Raw]
    action: int
    probabilities: list[float]
    scores: list[float]
    version: int
    settings: int
    exclude: list[str] = []
    deferred: bool = False
    wished: int | None = None


class RewardBody(msgspec.Struct, omit_defaults=True, gc=False):
    value: float
    id: str | None = None

    def key(self) -> str:
        """Return what tells this reward from others of its event: its id, or else its value."""
        return f"={self.value!r}" if self.id is None else self.id


class ActionsBody(msgspec.Struct):
    put: list[Inline] = []
    retire: list[str] = []


class GivenBody(msgspec.Struct):
    """Features of actions as they came with requests of several users."""

    given: list[Inline]


class ResidualBody(msgspec.Struct, omit_defaults=True, gc=False):
    """What a device says of an example: [FedRes]'s triplet, and the model it was made with."""

    context: msgspec.Raw
    action: Inline
    local: float  # the device's own part of the prediction
    label: float
    version: int  # of the shared model
    global_: float | None = msgspec.field(default=None, name="global")  # the shared part, where errors are aligned


class UpdateBody(msgspec.Struct, gc=False):
    """What a device sends to a learner that takes gradients or deltas."""

    number: int  # of the client
    t: int  # its round
    version: int
    kind: str
    body: bytes


encode = msgspec.json.encode
read_rank = msgspec.json.Decoder(LoggedRank).decode
read_offered = msgspec.json.Decoder(Offered).decode
read_reward = msgspec.json.Decoder(RewardBody).decode
read_actions = msgspec.json.Decoder(ActionsBody).decode
read_given = msgspec.json.Decoder(GivenBody).decode
read_residual = msgspec.json.Decoder(ResidualBody).decode
read_update = msgspec.msgpack.Decoder(UpdateBody).decode
