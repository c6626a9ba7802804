"""Publishing of loops by the learner, and the history of weights for devices that fetch only changes."""

from __future__ import annotations

import time
from collections.abc import Collection

from service.learn.loop_state import LastPublished, LoopState
from service.learn.weight_history import WeightHistory
from service.models.loop_metadata import LoopView
from service.models.published import Publisher

SHARE = 0.05  # of the time that publishing a loop takes
MOST_SECONDS = 0.5  # longest delay of a publication


def publish_loop(publisher: Publisher, state: LoopState, cleaned: Collection[str], learner_seconds: float) -> None:
    """Publish a loop; erasures are complete once no file of this machine has anything of the user.

    ``learner_seconds`` is the time spent on this loop.
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
        learner_seconds=learner_seconds,
    )
    if state.clients_changed:
        publisher.publish_clients(view, metadata.clients)
        state.clients_changed = False
    publisher.publish(view, *state.shared.publish(metadata.model_replaced_at))


def is_due(state: LoopState, *, urgent: bool) -> bool:
    """Return whether a loop is to be published; new weights may wait unless ``urgent``, other changes not.

    Large models are published less often. The loop counts as published from here on: if that fails, it is halted.
    """
    metadata, now = state.metadata, time.monotonic()
    changes = metadata.settings_version, metadata.catalogue_version, len(metadata.erased), metadata.clients.joined
    before = state.published
    if before is not None:
        interval = max(metadata.settings.update_interval, min(state.publish_seconds / SHARE, MOST_SECONDS))
        is_waiting = now - before.time < interval and not urgent
        if state.position == before.position or (is_waiting and changes == before.changes):
            return False
    state.published = LastPublished(state.position, changes, now)
    return True


def note_weights(state: LoopState) -> None:
    """Note which weights of a loop changed, if a device has requested its model before."""
    history, version, weights = state.weight_history, state.metadata.version, state.shared.weights
    if history is not None and weights is not None and history.version != version:
        if history.weights.size == weights.size:
            history.add(version, weights)
        else:
            state.weight_history = WeightHistory(version, weights)


def weight_history(state: LoopState) -> WeightHistory | None:
    """Return the history of a loop's weights, which begins with the first call."""
    if state.weight_history is None and state.shared.weights is not None:
        state.weight_history = WeightHistory(state.metadata.version, state.shared.weights)
    return state.weight_history
