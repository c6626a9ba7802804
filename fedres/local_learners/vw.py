"""Vowpal Wabbit itself as a client's own model.

Numbers reach VW exactly: features as floats, label and offset as hexadecimal text (VW reads decimals
with an error in the last digits).
"""

from __future__ import annotations

import json
import math
import os
import platform
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedres import checks
from fedres.local_learners.adagrad import valid
from fedres.local_learners.linear import finite, refuse, split
from fedres.local_learners.protocol import Features

# VW would clamp to all labels it has received, including those of corrections: we disable that and clamp ourselves.
# It also warns of each correction, whose prediction is NaN: we limit its log to errors.
_ALWAYS = (
    *("--quiet", "--no_stdin", "--adaptive", "--example_queue_limit", "1", "--log_level", "error"),
    *("--min_prediction", "-3.4e38", "--max_prediction", "3.4e38"),
)
_ALLOWED = ("--l1", "--l2", "--power_t")  # options that work with clamping and corrections
_NAMESPACE = ord("x")
_CONSTANT = 11650396  # VW's index of the constant feature, before the mask
_HEADER = struct.Struct("<4sI")  # format and its version, checksum of the rest
_LENGTH = struct.Struct("<I")  # of the settings, which come next; then VW's model
_FORMAT = b"FRV1"
CPU_INFO = Path("/proc/cpuinfo")

Pairs = list[tuple[int, float]]


class VWLearner:
    """One client's VW workspace under ``--adaptive``; ``LinearLearner`` predicts the same to the bit.

    Features are a dense array of any length or sparse ``(indices, values)``, where an index may come twice.
    Indices are weights, of which there are ``2**bits``; the last and the constant's are taken, so with the
    default of 18 bits a dense array has at most 116,060 entries (348 with 10 bits). ``arguments`` may
    set ``--l1``, ``--l2`` and ``--power_t``. A workspace is not thread safe; close it, or use ``with``.
    """

    __slots__ = ("_arguments", "_bits", "_example", "_high", "_importance", "_learning_rate", "_low", "_workspace")

    def __init__(self, learning_rate: float = 10.0, arguments: str = "", *, bits: int = 18) -> None:
        checks.positive("learning_rate", learning_rate)
        finite("learning_rate", learning_rate)
        checks.whole("bits", bits, least=2)
        if bits > 30:
            raise ValueError(f"bits must be at most 30, got {bits}")
        _check_arguments(arguments)
        self._learning_rate = learning_rate
        self._arguments = arguments
        self._bits = bits
        self._importance = 1.0  # λ_i
        self._low = self._high = 0.0
        self._workspace: Any = None
        self._example: Any = None
        self._use(self._open())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the workspace; closing twice is allowed, anything else afterwards is an error."""
        if self._workspace is not None:
            self._workspace.finish_example(self._example)
            self._workspace.finish()
            self._workspace = self._example = None

    @property
    def label_range(self) -> tuple[float, float]:
        """The least and the greatest label seen, and 0: where predictions lie."""
        return self._low, self._high

    def score(self, features: Features) -> float:
        """Return the local part of a prediction: no offset, no clamp."""
        self._put(self._pairs(features), 0.0, 0.0)
        return self._ask()

    def predict(self, features: Features, offset: float = 0.0) -> float:
        """Return offset plus local part, clamped to the range of the labels seen."""
        finite("offset", offset)
        self._put(self._pairs(features), 0.0, offset)
        return self._clamp(self._ask())

    def learn(self, features: Features, label: float, offset: float = 0.0) -> None:
        """Take one step on the squared loss of the joint prediction."""
        finite("label", label)
        finite("offset", offset)
        pairs = self._pairs(features)
        self._put(pairs, label, offset)
        self.see(label)
        joint = self._ask()
        clamped = self._clamp(joint)
        if clamped == joint:
            self._workspace.learn(self._example)
        else:
            self._step(pairs, float(np.float32(label) - np.float32(clamped)))

    def correct(self, features: Features, slope: float) -> None:
        """Take the step of an earlier prediction whose slope was 2(prediction − label)."""
        finite("slope", slope)
        self._step(self._pairs(features), -slope / 2)

    def see(self, label: float) -> None:
        """Widen the range of predictions to hold ``label``; ``correct`` alone never does."""
        self._opened()
        finite("label", label)
        self._low = min(self._low, float(np.float32(label)))
        self._high = max(self._high, float(np.float32(label)))

    def weigh(self, importance: float) -> None:
        """Give all further examples VW's importance weight ``importance``; it is no part of the state."""
        checks.not_negative("importance", importance)
        finite("importance", importance)
        self._importance = float(importance)

    def get_state(self) -> bytes:
        """Return the settings and the learned state, for ``load`` and ``set_state``."""
        workspace = self._opened()
        values = [self._learning_rate, self._arguments, self._bits, self._low, self._high]
        settings = json.dumps(values).encode()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.vw")
            workspace.save(file)
            body = _LENGTH.pack(len(settings)) + settings + file.read_bytes()
        return _HEADER.pack(_FORMAT, zlib.crc32(body)) + body

    def set_state(self, state: bytes) -> None:
        """Restore the state that ``get_state`` of a learner with the same bits and arguments returned."""
        self._opened()
        (_, arguments, bits, low, high), model = _unpack(state)
        if (bits, arguments) != (self._bits, self._arguments):
            ours = f"bits {self._bits} and arguments {self._arguments!r}"
            raise ValueError(f"state must have {ours}, got {bits} and {arguments!r}")
        self._use(self._open(model))
        self._low, self._high = low, high

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``get_state`` to ``path``; a crash leaves the old file or the new, never a part."""
        state, path = self.get_state(), Path(path)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return a learner that goes on where the one saved to ``path`` was."""
        state = Path(path).read_bytes()
        (learning_rate, arguments, bits, _, _), _ = _unpack(state)
        learner = cls(learning_rate, arguments, bits=bits)
        learner.set_state(state)
        return learner

    def _open(self, model: bytes | None = None) -> Any:
        rate = str(np.float32(self._learning_rate))
        options = [*_ALWAYS, "-b", str(self._bits), "-l", rate, *self._arguments.split()]
        if model is None:
            return _workspace(options)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "model.vw")
            file.write_bytes(model)
            return _workspace([*options, "-i", str(file)])  # the options again: VW forgets some of them

    def _use(self, workspace: Any) -> None:
        self.close()
        self._workspace = workspace
        self._example = workspace.example({chr(_NAMESPACE): []})

    def _opened(self) -> Any:
        if self._workspace is None:
            raise RuntimeError("this VWLearner is closed")
        return self._workspace

    def _clamp(self, joint: float) -> float:
        return min(max(joint, self._low), self._high)

    def _pairs(self, features: Features) -> Pairs:
        """Return checked features in VW's format."""
        indices, values = split(features)
        last = (1 << self._bits) - 1
        if not valid(indices, values, last):
            refuse(indices, values, last)
        constant = _CONSTANT & last
        if constant in indices:
            raise ValueError(f"indices must leave out {constant}, VW's constant at {self._bits} bits")
        return list(zip(indices.tolist(), values.astype(np.float32).tolist(), strict=True))

    def _put(self, pairs: Pairs, label: float, offset: float) -> None:
        """Fill the one example, which is reused: making a new one takes VW longer than predicting."""
        workspace, example = self._opened(), self._example
        if example.setup_done:
            example.unsetup_example()
        example.erase_namespace(_NAMESPACE)
        example.push_feature_list(workspace, _NAMESPACE, 0, pairs)
        example.set_label_string(f"{_exactly(label)} {_exactly(self._importance)} {_exactly(offset)}")
        example.setup_example()

    def _ask(self) -> float:
        """Return VW's unclamped prediction for the example."""
        base: Any = type(self._workspace).__base__  # Workspace's own predict takes twice as long
        base.predict(self._workspace, self._example)
        return float(self._example.get_simplelabel_prediction())

    def _step(self, pairs: Pairs, error: float) -> None:
        """Take the step of label − prediction = ``error``, whatever the prediction is now.

        VW replaces a prediction that is NaN by 0. The last weight stays 0, as VW does not train on an
        infinite feature, and 0 times infinity is NaN: then ``error`` is the label to learn.
        """
        self._put([*pairs, ((1 << self._bits) - 1, math.inf)], error, 0.0)
        self._workspace.learn(self._example)


def bits_for(dim: int) -> int:
    """Return the least number of bits, 10 or more, that suffices for a dense array of ``dim`` entries."""
    return next(bits for bits in range(10, 31) if dim <= min(_CONSTANT & ((1 << bits) - 1), (1 << bits) - 1))


def vowpal_wabbit() -> Any:
    """Import Vowpal Wabbit, which is an extra, when the first learner is made."""
    if lacks_avx2(platform.machine(), CPU_INFO):
        hint = 'use the learner "linear", which takes the same steps'
        raise ImportError(f"Vowpal Wabbit's x86-64 wheel needs a processor with AVX2, and dies without one: {hint}")
    try:
        import vowpalwabbit
    except ModuleNotFoundError as error:
        if error.name != "vowpalwabbit":
            raise
        hint = "pip install 'fedres[vw]', or use the learner \"linear\", which takes the same steps"
        raise ModuleNotFoundError(f"Vowpal Wabbit is not installed: {hint}", name=error.name) from None
    return vowpalwabbit


def lacks_avx2(machine: str, cpu_info: Path) -> bool:
    """Return whether this is an x86-64 processor that certainly lacks AVX2; importing VW would end the process."""
    if machine.lower() not in {"x86_64", "amd64"} or not cpu_info.exists():
        return False
    flags = [line for line in cpu_info.read_text(encoding="utf-8").splitlines() if line.startswith("flags")]
    return bool(flags) and "avx2" not in flags[0].split()


def _exactly(number: float) -> str:
    return float(np.float32(number)).hex()


def _workspace(options: list[str]) -> Any:
    try:
        return vowpal_wabbit().Workspace(arg_list=options)
    except RuntimeError as error:
        raise ValueError(f"arguments must be understood by VW: {error}") from error


def _check_arguments(arguments: str) -> None:
    for word in arguments.split():
        if word.startswith("-") and word.split("=")[0] not in _ALLOWED:
            raise ValueError(f"arguments must be among {', '.join(_ALLOWED)}, got {arguments!r}")


def _unpack(state: bytes) -> tuple[list[Any], bytes]:
    """Return the settings and VW's model."""
    if len(state) < _HEADER.size or state[:4] != _FORMAT:
        raise ValueError(f"state must start with {_FORMAT!r} and a header, got {bytes(state[:12])!r}")
    _, checksum = _HEADER.unpack_from(state)
    body = state[_HEADER.size :]
    if zlib.crc32(body) != checksum:
        raise ValueError(f"state must be undamaged, got {len(state)} bytes that do not match their checksum")
    end = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    return json.loads(body[_LENGTH.size : end]), body[end:]
