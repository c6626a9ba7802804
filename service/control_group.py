"""Control groups: users whose decisions a baseline makes, so that the policy has something to be compared with."""

from __future__ import annotations

from typing import Literal

import msgspec

from fedres.draws import event_draw
from fedres.event_ids import LONGEST_ID

LONGEST_REASON = 1_000


class Control(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A control group: users whose decisions a baseline makes. Any change of it begins a new experiment."""

    share: float = 0.0  # of users, or of events where there is no user; 0 is no experiment
    # The caller's first action, any with the same chance, or the shared model as it was when the experiment began.
    baseline: Literal["first", "uniform", "pinned"] = "first"
    pinned: int | None = None  # position of that model in the log; None pins the model of now
    experiment: str = "experiment 1"  # its name, which also decides who is in the group
    learn: bool | None = None  # whether models learn from the group; None: unless the baseline is first
    hold: str | None = None  # why the baseline decides for everybody, where it does; a guardrail may have set it

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 0.95:
            raise ValueError(f"control.share must be in [0, 0.95], got {self.share}")
        if not 1 <= len(self.experiment) <= LONGEST_ID:
            raise ValueError(f"control.experiment must have 1 to {LONGEST_ID} characters, got {len(self.experiment)}")
        if self.hold is not None and not 1 <= len(self.hold) <= LONGEST_REASON:
            raise ValueError(f"control.hold must have 1 to {LONGEST_REASON} characters, got {len(self.hold)}")
        if self.pinned is not None and (self.baseline != "pinned" or self.pinned < 1):
            raise ValueError("control.pinned must be the position of a model, and null unless the baseline is 'pinned'")
        if self.learn and self.baseline == "first":
            raise ValueError("control.learn must be false for the baseline 'first', whose actions are not drawn")

    @property
    def learns(self) -> bool:
        return self.baseline != "first" and self.learn is not False

    def has(self, name: str) -> bool:
        """Return whether a user, or an event without one, is in the group; the same answer for ever."""
        return self.share > 0 and event_draw(f"{self.experiment}\0{name}") < self.share
