"""What one request may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from fedres import checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Everything the HTTP side refuses by size; the limits of features are the engine's."""

    body_bytes: int = 1_000_000  # of a request, before and after decompression
    rank_bytes: int = 262_144  # the same of one rank call: 500 actions with 500 bytes each
    model_bytes: int = 64_000_000  # of an uploaded model
    update_bytes: int = 8_000_000  # of a request with updates: 100 of 2^14 + 1 numbers in 32 bits, and some room
    actions: int = 500  # in one rank call, and ids that it excludes
    excluded: int = 2_000  # ids that a call for recommendations excludes
    batch: int = 100  # rank calls in one batch
    slots: int = 20  # of a page in one call
    slot_actions: int = 2_000  # slots times actions of a call: each slot is stored with all actions
    residuals: int = 500  # of a device in one request
    updates: int = 100  # the same
    connections: int = 2_000  # of one ranker at once
    requests_per_second: float = 10_000.0  # of one key; twice that many at once after a pause
    # From a connection's or a request's first byte to its last, and for any part of a reply to be taken.
    request_seconds: float = 15.0

    def __post_init__(self) -> None:
        sizes = (
            "body_bytes",
            "rank_bytes",
            "model_bytes",
            "update_bytes",
            "actions",
            "excluded",
            "batch",
            "slots",
            "slot_actions",
            "residuals",
            "updates",
        )
        for name in (*sizes, "connections"):
            checks.whole(name, getattr(self, name))
        checks.positive("requests_per_second", self.requests_per_second)
        checks.positive("request_seconds", self.request_seconds)
