"""What the learner publishes of a loop, and what it notes for devices that fetch only what has changed."""

from __future__ import annotations

import time
from collections.abc import Collection

import numpy as np

from fedres.checks import Array
from service.learn.loop_state import LastPublished, LoopState
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
        name=metadata.name,
        created_at=metadata.created_at,
        position=state.position,
        time=state.time,
        version=metadata.version,
        settings=metadata.settings,
        settings_version=metadata.settings_version,
        statistics=metadata.statistics,
        n_waiting=state.join.n_waiting,
        seen_range=state.shared.reward_range,
        newest=state.shared.newest,
        catalogue_version=metadata.catalogue_version,
        catalogue_pieces=pieces,
        clients_version=metadata.clients.version,
        erased=[token for token in metadata.erased if token in cleaned],
        n_early=state.join.n_early,
        n_users=state.personal.n_users[metadata.id],
        n_assumed=len(state.delayed.assumed_failed),
        events_since=metadata.pruned.before,
        n_early_rewards=state.join.n_early_rewards,
        n_settings=len(metadata.history),
        waiting_bytes=state.waiting_bytes,
        all_waiting_bytes=all_waiting_bytes,
    )
    if state.clients_changed:
        publisher.publish_clients(view, metadata.clients)
        state.clients_changed = False
    publisher.publish(view, *state.shared.publish(metadata.model_replaced_at))


def is_due(state: LoopState, *, urgent: bool) -> bool:
    """Return whether a loop is to be published; what was learned may wait, unless it is ``urgent``, other changes not.

    It counts as published from here on: if that fails, the loop stands still.
    """
    metadata, now = state.metadata, time.monotonic()
    changes = metadata.settings_version, metadata.catalogue_version, len(metadata.erased), metadata.clients.joined
    before = state.published
    if before is not None:
        is_waiting = now - before.time < metadata.settings.update_interval and not urgent
        if state.position == before.position or (is_waiting and changes == before.changes):
            return False
    state.published = LastPublished(state.position, changes, now)
    return True


class WeightHistory:
    """The weights of a version, and when each of them changed, for versions from ``start`` on."""

    def __init__(self, version: int, weights: Array) -> None:
        self.start = self.version = version
        self.weights: Array = weights.copy()
        self._changed_at: Array = np.zeros(weights.size, dtype=np.int64)

    def add(self, version: int, weights: Array) -> None:
        """Note in which weights a version differs, in whatever bit, from the one before."""
        self._changed_at[self.weights.view(np.uint32) != weights.view(np.uint32)] = version
        self.version, self.weights = version, weights.copy()

    def since(self, version: int) -> Array:
        """Return the indices of the weights that changed after a version."""
        return np.flatnonzero(self._changed_at > version)


class WeightHistories:
    """The histories of loops whose devices fetch only what has changed."""

    def __init__(self) -> None:
        self._loops: dict[str, WeightHistory] = {}

    def note(self, state: LoopState) -> None:
        """Note which weights of a loop changed, if devices have asked before."""
        metadata, weights = state.metadata, state.shared.weights
        history = self._loops.get(metadata.name)
        if history is None or history.version == metadata.version or weights is None:
            return
        if history.weights.size == weights.size and history.version >= metadata.created_at:
            history.add(metadata.version, weights)
        else:
            self._loops[metadata.name] = WeightHistory(metadata.version, weights)

    def of_loop(self, state: LoopState) -> WeightHistory | None:
        """Return the history of a loop's weights, which begins with the first call."""
        name, weights = state.metadata.name, state.shared.weights
        if weights is None:
            return None
        if name not in self._loops:
            self._loops[name] = WeightHistory(state.metadata.version, weights)
        return self._loops[name]
