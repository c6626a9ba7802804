"""A device's shared side: its copy of the loop's shared model, and its uploads after rewards.

Two kinds, one protocol (``GlobalSide``). In a loop that takes residuals (fedres-adagrad, fedres-sgd) a device holds
the newest weights it was sent and uploads triplets; in the others it runs the client half of the loop's learner and
uploads what that half makes, now and then. ``global_side`` makes the right one.

How a host uses it, once for each sync and once for each reward:

    side.receive(payload)                      # the bytes of GET federated/model, whole or since side.version
    side.scores(prepared)                      # the shared part of every action's score
    upload = side.learn(outcome)               # a reward came; None if nothing is to be uploaded after it
    # queue {"seq": n, **upload} for POST federated/{side.route}; when it is acknowledged at a position of the log:
    side.acknowledge(upload, position)
    state = side.to_bytes()                    # and side.restore(state) on a fresh side, after a restart
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from fedres.checks import Array
from fedres.global_learners.fedomd import FedOMDClient, Sent
from fedres.messages import BITS_PER_REAL, Down
from fedres.scoring.features import Prepared
from fedres.scoring.federated import Hyperparameter, Wire, as_features, takes_residuals
from fedres.scoring.model import Example, score
from fedres.scoring.sealing import checksum, model_tag

Route = Literal["residuals", "updates"]


class RewardedDecision(NamedTuple):
    """A device's rewarded decision."""

    context: Any  # as JSON values: the shared model's features, nothing private
    action: dict[str, Any]  # {"id": ..., "features": {...}}
    example: Example  # the two, hashed and expanded
    version: int  # of the shared model at the decision
    shared: float  # its part of the score at the decision
    local: float  # the local part, as it may be uploaded
    label: float


class GlobalSide(Protocol):
    route: Route  # of uploads

    @property
    def version(self) -> int:
        """The version of the newest model received, 0 before the first: nothing can be uploaded until then."""

    @property
    def tag(self) -> str:
        """The server's tag of that model."""

    @property
    def reward_range(self) -> tuple[float, float]:
        """The range of the rewards that the server had seen, and of 0."""

    def scores(self, prepared: Prepared) -> Array:
        """Return the shared part of every action's score."""

    def learn(self, outcome: RewardedDecision) -> dict[str, Any] | None:
        """Learn a reward; return the upload (without ``seq``), if any."""

    def acknowledge(self, upload: Mapping[str, Any], position: int) -> None:
        """Record that an upload is in the log: models of at least this version include it."""

    def receive(self, payload: bytes) -> None:
        """Apply a model or the changes since one; older versions than the newest received are ignored."""

    def to_bytes(self) -> bytes:
        """Return the state from which a new side can continue."""

    def restore(self, state: bytes) -> None:
        """Restore the side that wrote ``state``."""


def global_side(
    name: str,
    bits: int,
    hyperparameters: Mapping[str, Hyperparameter] | None = None,
    *,
    timing: str = "on-arrival",
    number: int | None = None,
) -> ResidualSide | LearnerSide:
    """Return the side for a loop in the terms of GET federated/round; ``number`` is the client's, if it has one."""
    if takes_residuals(name):
        return ResidualSide(bits, aligned=timing == "aligned")
    if number is None:
        raise ValueError(f"number must be given for {name!r}: the client's, got None")
    return LearnerSide(Wire(name, bits, hyperparameters), number)


class ResidualSide:
    """The newest weights that the server sent; learns by uploading triplets (x^g, local part, label)."""

    route: Route = "residuals"

    def __init__(self, bits: int, *, aligned: bool = False) -> None:
        self.aligned = aligned  # if so, uploads have the shared part at the decision too
        self._copy = _Copy(bits)

    @property
    def version(self) -> int:
        return self._copy.version

    @property
    def tag(self) -> str:
        return self._copy.tag

    @property
    def reward_range(self) -> tuple[float, float]:
        return self._copy.reward_range

    @property
    def weights(self) -> Array:
        return self._copy.weights

    def scores(self, prepared: Prepared) -> Array:
        return score(prepared, self.weights)[0]

    def learn(self, outcome: RewardedDecision) -> dict[str, Any] | None:
        fields = {name: getattr(outcome, name) for name in ("version", "context", "action", "local", "label")}
        return {**fields, "global": outcome.shared} if self.aligned else fields

    def acknowledge(self, upload: Mapping[str, Any], position: int) -> None:
        """Do nothing: this side keeps no uploads."""

    def receive(self, payload: bytes) -> None:
        self._copy.receive(payload)

    def to_bytes(self) -> bytes:
        return _archive(self._copy.arrays())

    def restore(self, state: bytes) -> None:
        self._copy.restore(_opened(state))


class LearnerSide:
    """The client half of a loop's learner for one client; a round t is a reward that it learned from.

    A model includes this client's uploads up to the last one acknowledged at a position up to the model's version, and
    other clients' uploads up to the round ``newest`` in the model's metadata.
    """

    route: Route = "updates"

    def __init__(self, wire: Wire, number: int) -> None:
        self.wire, self.number = wire, number
        self.t = 0  # rewards learned from
        self.covered = 0  # the last round of this client that the model includes
        self._client = wire.learner.client([number])
        self._copy = _Copy(wire.bits)
        self._acknowledged: list[tuple[int, int]] = []  # round and position of uploads not yet inside

    @property
    def version(self) -> int:
        return self._copy.version

    @property
    def tag(self) -> str:
        return self._copy.tag

    @property
    def reward_range(self) -> tuple[float, float]:
        return self._copy.reward_range

    @property
    def weights(self) -> Array:
        """The weights of predictions: the shared model and, with some learners, the client's own progress."""
        weights: Array = self._client.weights(self.t + 1)[0]
        return weights.astype(np.float32)

    def scores(self, prepared: Prepared) -> Array:
        return score(prepared, self.weights)[0]

    def learn(self, outcome: RewardedDecision) -> dict[str, Any] | None:
        features = as_features(outcome.example, self.wire.bits)
        up = self._client.observe(self.t + 1, features[None], np.array([outcome.local]), np.array([outcome.label]))
        self.t += 1
        if up is None:
            return None
        return {"t": self.t, "version": self.version, "kind": up.kind, "body": self.wire.write(up)}

    def acknowledge(self, upload: Mapping[str, Any], position: int) -> None:
        self._acknowledged.append((upload["t"], position))

    def receive(self, payload: bytes) -> None:
        if not self._copy.receive(payload):
            return
        inside = [t for t, position in self._acknowledged if position <= self.version]
        self._acknowledged = [seen for seen in self._acknowledged if seen[1] > self.version]
        self.covered = max([self.covered, *inside])
        covers = np.full(self.wire.learner.n_clients, self._copy.newest)
        covers[self.number] = self.covered
        weights = self._copy.weights.astype(np.float64)
        self._client.receive(Down(self.version, covers, weights, BITS_PER_REAL * weights.size))

    def to_bytes(self) -> bytes:
        own = {
            "rounds": np.array([self.t, self.covered, self.number]),
            "acknowledged": np.array(self._acknowledged, dtype=np.int64).reshape(-1, 2),
        }
        return _archive({**self._copy.arrays(), **own, **_client_arrays(self._client)})

    def restore(self, state: bytes) -> None:
        arrays = _opened(state)
        t, covered, number = arrays["rounds"].tolist()
        if number != self.number:
            raise ValueError(f"state must be of client {self.number}, got {number}")
        self._copy.restore(arrays)
        self.t, self.covered = t, covered
        self._acknowledged = [(t, position) for t, position in arrays["acknowledged"].tolist()]
        _restore_client(self._client, arrays)


class OtherModelError(ValueError):
    """Changes of another model: the server's model of that version is not this one."""


class _Copy:
    """The shared weights and their metadata, as last sent by the server."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.version = 0
        self.newest = 0  # the last round of any client that the weights include
        self.reward_range = (0.0, 0.0)
        self.weights: Array = np.zeros(2**bits + 1, dtype=np.float32)

    @property
    def tag(self) -> str:
        return model_tag(self.version, self.weights)

    def receive(self, payload: bytes) -> bool:
        """Apply weights or changes in safetensors; return whether they are newer than the current ones."""
        metadata, tensors = _read(payload)
        if metadata.version < self.version:
            return False
        if metadata.bits != self.bits:
            raise ValueError(f"payload must have {self.bits} bits, got {metadata.bits}")
        if metadata.since > self.version:
            raise ValueError(f"payload must hold changes since {self.version} or before, got since {metadata.since}")
        weights = self._changed(tensors, metadata.since)
        if checksum(weights) != metadata.crc32:
            raise OtherModelError(f"payload must hold changes of the model known as {self.version}, got another's")
        if metadata.version == self.version:
            return False
        self.weights = weights
        self.version, self.newest, self.reward_range = metadata.version, metadata.newest, (metadata.low, metadata.high)
        return True

    def _changed(self, tensors: dict[str, Array], since: int) -> Array:
        if "weights" in tensors:
            weights = tensors["weights"]
        else:
            weights = self.weights.copy() if since else np.zeros_like(self.weights)
            indices, values = tensors["indices"], tensors["values"]
            if indices.shape != values.shape or (indices.size and indices.max() >= weights.size):
                raise ValueError(f"payload must hold as many values as indices below {weights.size}, got others")
            weights[indices] = values
        if weights.shape != self.weights.shape or not np.isfinite(weights).all():
            raise ValueError(f"payload must hold {self.weights.size} finite weights, got shape {weights.shape}")
        return weights.astype(np.float32)

    def arrays(self) -> dict[str, Array]:
        return {
            "copy": np.array([self.bits, self.version, self.newest]),
            "reward_range": np.array(self.reward_range),
            "weights": self.weights,
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        bits, version, newest = arrays["copy"].tolist()
        if bits != self.bits:
            raise ValueError(f"state must be of {self.bits} bits, got {bits}")
        self.version, self.newest, self.weights = version, newest, arrays["weights"]
        low, high = arrays["reward_range"].tolist()
        self.reward_range = (low, high)


class _Metadata(msgspec.Struct):
    """The metadata of a model, whose values travel as text."""

    version: int
    bits: int
    low: float
    high: float
    newest: int
    crc32: int  # of all weights, also where only changes are sent
    since: int = 0


def _read(payload: bytes) -> tuple[_Metadata, dict[str, Array]]:
    """Return the metadata and the tensors of safetensors."""
    try:
        tensors = safetensors.numpy.load(payload)
        size = int.from_bytes(payload[:8], "little")
        metadata = msgspec.convert(json.loads(payload[8 : 8 + size])["__metadata__"], _Metadata, strict=False)
    except (SafetensorError, KeyError, msgspec.ValidationError) as error:
        raise ValueError(f"payload must be a model as safetensors, with metadata: {error!r}") from None
    if "weights" not in tensors and not {"indices", "values"} <= set(tensors):
        raise ValueError(f"payload must hold weights, or indices and values, got {sorted(tensors)}")
    return metadata, tensors


def _client_arrays(client: Any) -> dict[str, Array]:
    """Return the state of a client half: its version, its arrays and, for FedOMD, the progress sent."""
    arrays = {f"client.{name}": value for name, value in vars(client).items() if isinstance(value, np.ndarray)}
    arrays["client.version"] = np.array(client.version)
    if isinstance(client, FedOMDClient) and client.sent:
        columns = zip(Sent._fields, zip(*client.sent, strict=True), strict=True)
        arrays |= {f"sent.{name}": np.array(column) for name, column in columns}
    return arrays


def _restore_client(client: Any, arrays: Mapping[str, Array]) -> None:
    for name in [name for name, value in vars(client).items() if isinstance(value, np.ndarray)]:
        setattr(client, name, arrays[f"client.{name}"])
    client.version = int(arrays["client.version"])
    if isinstance(client, FedOMDClient):
        columns = [arrays.get(f"sent.{name}", ()) for name in Sent._fields]
        client.sent = [Sent(int(t), progress, chosen) for t, progress, chosen in zip(*columns, strict=True)]


def _archive(arrays: Mapping[str, Array]) -> bytes:
    file = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez_compressed(file, **named)
    return file.getvalue()


def _opened(state: bytes) -> dict[str, Array]:
    with np.load(io.BytesIO(state), allow_pickle=False) as archive:
        return dict(archive)
