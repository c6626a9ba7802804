"""The download of ``residual-kalman`` for devices: the arrays for predictions with the shared part, as safetensors.

Covariances are sent as the half below the diagonal and, like means, as 32-bit floats; tables without empty slots.
Personal models, bases and arrays needed only for learning stay on the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from fedres.checks import Array
from fedres.decisions.constants import CORE_SIZE, MAX_BASES, MAX_BLOCKS, MAX_FIELDS, MAX_SCALES, TAIL_BITS
from fedres.decisions.kalman_state import (
    BASES,
    BLOCKS,
    FIELDS,
    LEARNED,
    LENGTH,
    NOISE,
    SCALES,
    Shared,
    new_shared,
    with_room,
    with_table,
)

FORM = "residual-kalman"
_TYPES = {"float64": "F64", "float32": "F32", "uint32": "U32", "int32": "I32"}


class Metadata(msgspec.Struct, kw_only=True):
    """The metadata of a document, whose values are sent as text."""

    model: str
    version: int  # of the loop's log
    tag: str  # unique among all models
    learned: int  # rewards
    settled: int  # 0 before the start is over: then there are no arrays
    noise: float = 0.0
    length: float = 1.0


class Document(NamedTuple):
    metadata: Metadata
    shared: Shared | None  # None before the start is over


def write_document(shared: Shared | None, version: int, tag: str, learned: int) -> bytes:
    """Return a model for devices; None is one whose start is not over."""
    metadata = {"model": FORM, "version": str(version), "tag": tag, "learned": str(learned)}
    if shared is None:
        return write_safetensors({}, {**metadata, "settled": "0"})
    n_blocks, n_fields = (int(shared.counts[k]) for k in (BLOCKS, FIELDS))
    slots, tail = slice(shared.counts[SCALES]), np.flatnonzero(shared.tail.any(axis=1))
    rows, columns = np.tril_indices(shared.means.shape[1])
    arrays = {
        "scale_keys": shared.scale_keys[slots],
        "scale_core": shared.scale_core[slots],
        "scale_stats": shared.scale_stats[slots],
        "field_keys": shared.field_keys[:n_fields],
        "log_tau": shared.log_tau[:n_fields],
        "pair_log_tau": shared.pair_log_tau[:n_fields, :n_fields],
        "block_keys": shared.block_keys[:n_blocks],
        "block_log_tau": shared.block_log_tau[:n_blocks],
        "means": shared.means[:n_blocks].astype(np.float32),
        "covariances": shared.covariances[:n_blocks, rows, columns].astype(np.float32),
        "tail_places": tail.astype(np.uint32),
        "tail": shared.tail[tail],
    }
    numbers = {"noise": repr(float(shared.numbers[NOISE])), "length": repr(float(shared.numbers[LENGTH]))}
    return write_safetensors(arrays, {**metadata, "settled": "1", **numbers})


def write_safetensors(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file: a length, a JSON header and the data.

    The package of that name writes metadata in no fixed order; here the same model is always the same bytes.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    data, end = [], 0
    for name, array in arrays.items():
        piece = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        shape, place = array.shape, (end, end + len(piece))
        header[name] = {"dtype": _TYPES[array.dtype.name], "shape": shape, "data_offsets": place}
        data.append(piece)
        end += len(piece)
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def read_metadata(payload: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file."""
    size = int.from_bytes(payload[:8], "little")
    metadata: dict[str, str] = json.loads(payload[8 : 8 + size])["__metadata__"]
    return metadata


def read_document(payload: bytes) -> Document:
    """Return the document that ``write_document`` wrote; refuse arrays that are unsafe for kernels."""
    try:
        arrays = safetensors.numpy.load(payload)
        metadata = msgspec.convert(read_metadata(payload), Metadata, strict=False)
    except (SafetensorError, KeyError, ValueError, msgspec.ValidationError) as error:
        raise ValueError(f"payload must be a model as safetensors, with metadata: {error!r}") from None
    _require(metadata.model == FORM, f"must be of {FORM}, got {metadata.model!r}")
    return Document(metadata, _shared(metadata, arrays) if metadata.settled else None)


def _shared(metadata: Metadata, arrays: Mapping[str, Array]) -> Shared:
    n_blocks, d = _check(metadata, arrays)
    shared = new_shared(d, metadata.length, MAX_BLOCKS, TAIL_BITS)
    shared.numbers[NOISE] = metadata.noise
    shared.counts[LEARNED], shared.counts[BLOCKS], shared.counts[BASES] = metadata.learned, n_blocks, MAX_BASES
    shared.counts[SCALES] = arrays["scale_keys"].size
    for name in ("scale_keys", "scale_core", "scale_stats"):
        getattr(shared, name)[: shared.counts[SCALES]] = arrays[name]
    shared = with_table(shared, SCALES, MAX_SCALES)
    n_fields = shared.counts[FIELDS] = arrays["field_keys"].size
    shared.field_keys[:n_fields] = arrays["field_keys"]
    shared.log_tau[:n_fields] = arrays["log_tau"]
    shared.pair_log_tau[:n_fields, :n_fields] = arrays["pair_log_tau"]
    shared.tail[arrays["tail_places"]] = arrays["tail"]
    shared = with_room(shared, n_blocks)
    for name in ("block_keys", "block_log_tau", "means"):
        getattr(shared, name)[:] = arrays[name]
    rows, columns = np.tril_indices(d)
    shared.covariances[:, rows, columns] = shared.covariances[:, columns, rows] = arrays["covariances"]
    return with_table(shared, BLOCKS, MAX_BLOCKS)


def _check(metadata: Metadata, arrays: Mapping[str, Array]) -> tuple[int, int]:
    """Return the numbers of blocks and coordinates; refuse missing or unsuitable arrays."""
    like = {
        "scale_keys": "u4", "scale_core": "i4", "scale_stats": "f8", "field_keys": "u4", "log_tau": "f8",
        "pair_log_tau": "f8",
        "block_keys": "u4", "block_log_tau": "f8", "means": "f4", "covariances": "f4", "tail_places": "u4",
        "tail": "f4",
    }  # fmt: skip
    _require(arrays.keys() == like.keys(), f"must hold {sorted(like)}, got {sorted(arrays)}")
    _require(all(arrays[name].dtype == kind for name, kind in like.items()), "must have arrays of the right types")
    _require(arrays["means"].ndim == 2, "must have a mean for each block and coordinate")
    n_blocks, d = arrays["means"].shape
    n_scales, n_fields, n_tail = (arrays[name].size for name in ("scale_keys", "field_keys", "tail_places"))
    shapes = {
        "scale_keys": (n_scales,), "scale_core": (n_scales,), "scale_stats": (n_scales, 4),
        "field_keys": (n_fields,), "log_tau": (n_fields, 5), "pair_log_tau": (n_fields, n_fields),
        "block_keys": (n_blocks,), "block_log_tau": (n_blocks, 2),
        "means": (n_blocks, d), "covariances": (n_blocks, d * (d + 1) // 2), "tail_places": (n_tail,),
        "tail": (n_tail, 2),
    }  # fmt: skip
    _require(all(arrays[name].shape == shape for name, shape in shapes.items()), "must have arrays that fit")
    _require(1 <= d <= CORE_SIZE and 1 <= n_blocks <= MAX_BLOCKS, "must keep within the bounds of a model")
    _require(n_scales <= MAX_SCALES and 1 <= n_fields <= MAX_FIELDS, "must keep within the bounds of a model")
    _require(np.unique(arrays["block_keys"]).size == n_blocks, "must have every block once")
    _require(bool((arrays["scale_keys"] != 0).all()), "must have scales with a key")
    _require(np.unique(arrays["scale_keys"]).size == n_scales, "must have every scale once")
    core, places = arrays["scale_core"], arrays["tail_places"]
    _require(bool(((core >= -1) & (core < d)).all()), "must have a core of its own coordinates")
    _require(bool((places < 1 << TAIL_BITS).all()), "must have tail weights at places that exist")
    finite = all(bool(np.isfinite(array).all()) for array in arrays.values() if array.dtype.kind == "f")
    numbers = (metadata.noise, metadata.length)
    _require(finite and all(0 < number < 1e9 for number in numbers), "must have finite numbers")
    return n_blocks, d


def _require(good: bool, rule: str) -> None:
    if not good:
        raise ValueError(f"payload {rule}")
