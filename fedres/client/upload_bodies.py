"""Bodies of the requests by which devices upload residuals and updates."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Any

import msgspec

from fedres.client.store import Queued
from fedres_client.wire import Request

SMALLEST_TO_PACK = 1_000  # bytes: gzip does not pay below


def residuals_body(client: str, batch: list[Queued]) -> bytes:
    """Return the JSON of POST residuals."""
    items = [b'{"seq":%d,"version":%d,%s' % (upload.seq, upload.version, upload.body[1:]) for upload in batch]
    return b'{"client":%s,"residuals":[%s]}' % (msgspec.json.encode(client), b",".join(items))


def updates_body(client: str, batch: list[Queued]) -> bytes:
    """Return the msgpack of POST updates."""
    items = [{**read_upload(upload.body), "seq": upload.seq, "version": upload.version} for upload in batch]
    return msgspec.msgpack.encode({"client": client, "updates": items})


def residual(upload: Mapping[str, Any]) -> bytes:
    """Return a residual for the queue: JSON, without its version."""
    return msgspec.json.encode({name: value for name, value in upload.items() if name != "version"})


def update(upload: Mapping[str, Any]) -> bytes:
    """Return an update for the queue: msgpack, without its version."""
    return msgspec.msgpack.encode({name: value for name, value in upload.items() if name != "version"})


def read_upload(body: bytes) -> dict[str, Any]:
    """Return an update that ``update`` wrote."""
    return msgspec.msgpack.decode(body, type=dict[str, Any])


def post(path: str, body: bytes, content_type: str, *, pack: bool, seconds: float = 30.0) -> Request:
    """Return a POST, gzipped if ``pack`` is set and the body is large enough."""
    headers = {"Content-Type": content_type}
    if pack and len(body) > SMALLEST_TO_PACK:
        body = gzip.compress(body, mtime=0)  # the same bytes at any time
        headers["Content-Encoding"] = "gzip"
    return Request("POST", path, body, headers, seconds)
