"""What the learner publishes of a loop, and what it notes for devices that fetch only what has changed."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from fedres.checks import Array
from service.learn.history import History
from service.learn.loop_state import LoopState
from service.models.loop_metadata import LoopView
from service.models.published import Publisher


def publish_loop(publisher: Publisher, state: LoopState, cleaned: Collection[str], all_waiting_bytes: int) -> None:
    """Publish a loop; erasures are complete once no file of this machine has anything of the user.

    ``all_waiting_bytes`` are those of all loops.
    """
    metadata = state.metadata
    pieces = publisher.publish_catalogue(metadata.id, metadata.catalogue, state.unpublished_actions)
    state.unpublished_actions = set()
    view = LoopView(
        metadata.name,
        metadata.created_at,
        state.position,
        state.time,
        metadata.version,
        metadata.settings,
        metadata.settings_version,
        metadata.statistics,
        state.join.n_waiting,
        state.shared.reward_range,
        state.shared.newest,
        metadata.catalogue_version,
        pieces,
        metadata.clients.joined * 2**20 + len(metadata.clients.numbers),
        [token for token in metadata.erased if token in cleaned],
        state.join.n_early,
        state.personal.n_users[metadata.id],
        len(state.lessons.assumed),
        metadata.pruned.before,
        state.join.n_early_rewards,
        len(metadata.history),
        state.waiting_bytes,
        all_waiting_bytes,
    )
    if state.clients_changed:
        publisher.publish_clients(view, metadata.clients)
        state.clients_changed = False
    publisher.publish(view, *state.shared.publish(metadata.model_replaced_at))


class Published(NamedTuple):
    """What was last published of a loop, and when."""

    position: int
    changes: tuple[int, int, int, int]  # of settings, catalogue, erasures and clients
    time: float  # monotonic

    def is_due(self, state: LoopState, *, urgent: bool) -> bool:
        """Return whether there is something new, and it is time: only what was learned may wait."""
        if state.position == self.position:
            return False
        waited = time.monotonic() - self.time >= state.metadata.settings.update_interval
        return urgent or waited or _changes(state) != self.changes


def published_now(state: LoopState) -> Published:
    return Published(state.position, _changes(state), time.monotonic())


def _changes(state: LoopState) -> tuple[int, int, int, int]:
    metadata = state.metadata
    return metadata.settings_version, metadata.catalogue_version, len(metadata.erased), metadata.clients.joined


class Followed:
    """Loops whose devices ask what has changed: version and weights as published last, and when each weight changed."""

    def __init__(self) -> None:
        self._loops: dict[str, tuple[int, Array, History | None]] = {}

    def note(self, state: LoopState) -> None:
        """Note which weights changed, for devices that fetch only those."""
        known, now = self._loops.get(state.metadata.name), state.shared.weights
        if known is None or known[0] == state.metadata.version or now is None:
            return
        version, weights, history = known
        now = now.copy()
        if weights.size == now.size and version >= state.metadata.created_at:
            history = history or History(version, now.size)
            history.add(weights, state.metadata.version, now)
        else:
            history = None
        self._loops[state.metadata.name] = (state.metadata.version, now, history)

    def history(self, state: LoopState) -> History | None:
        """Return which of a loop's weights changed when, from the first call on."""
        loop, weights = state.metadata.name, state.shared.weights
        if weights is None:
            return None
        if loop not in self._loops:
            self._loops[loop] = (state.metadata.version, weights.copy(), None)
        return self._loops[loop][2]
