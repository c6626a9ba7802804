"""What the learner publishes of a loop, and what it notes for devices that fetch only what has changed."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from fedres.checks import Array
from service.learn.history import History
from service.learn.loop_state import LoopState
from service.models.kalman_shared import KalmanShared
from service.models.published import Publisher
from service.models.views import LoopView


def publish_loop(publisher: Publisher, state: LoopState, cleaned: Collection[str], all_waiting_bytes: int) -> None:
    """Publish a loop; erasures are complete once no file of this machine has anything of the user.

    ``all_waiting_bytes`` are those of all loops.
    """
    head = state.head
    pieces = publisher.publish_catalogue(head.id, head.catalogue, state.unpublished_actions)
    state.unpublished_actions = set()
    view = LoopView(
        head.name,
        head.since,
        state.position,
        state.time,
        head.version,
        head.settings,
        head.settings_version,
        head.statistics,
        state.join.n_waiting,
        state.models.shared.reward_range,
        state.models.shared.newest,
        head.catalogue_version,
        pieces,
        head.clients.joined * 2**20 + len(head.clients.numbers),
        [token for token in head.erased if token in cleaned],
        state.join.n_early,
        state.models.personal.n_users[head.id],
        len(state.lessons.assumed),
        head.pruned.before,
        state.join.n_early_rewards,
        len(head.history),
        state.waiting_bytes,
        all_waiting_bytes,
    )
    if state.clients_changed:
        publisher.publish_clients(view, head.clients)
        state.clients_changed = False
    publisher.publish(view, *state.models.to_publish(head.installed))


class Published(NamedTuple):
    """What was last published of a loop, and when."""

    position: int
    changes: tuple[int, int, int, int]  # of settings, catalogue, erasures and clients
    time: float  # monotonic

    def is_due(self, state: LoopState, *, urgent: bool) -> bool:
        """Return whether there is something new, and it is time: only what was learned may wait."""
        if state.position == self.position:
            return False
        waited = time.monotonic() - self.time >= state.head.settings.update_interval
        return urgent or waited or _changes(state) != self.changes


def published_now(state: LoopState) -> Published:
    return Published(state.position, _changes(state), time.monotonic())


def _changes(state: LoopState) -> tuple[int, int, int, int]:
    head = state.head
    return head.settings_version, head.catalogue_version, len(head.erased), head.clients.joined


class Followed:
    """Loops whose devices ask what has changed: version and weights as published last, and when each weight changed."""

    def __init__(self) -> None:
        self._loops: dict[str, tuple[int, Array, History | None]] = {}

    def note(self, state: LoopState) -> None:
        """Note which weights changed, for devices that fetch only those."""
        known, shared = self._loops.get(state.head.name), state.models.shared
        if known is None or known[0] == state.head.version or isinstance(shared, KalmanShared):
            return
        version, weights, history = known
        now = shared.weights.copy()
        if weights.size == now.size and version >= state.head.since:
            history = history or History(version, now.size)
            history.add(weights, state.head.version, now)
        else:
            history = None
        self._loops[state.head.name] = (state.head.version, now, history)

    def history(self, state: LoopState) -> History | None:
        """Return which of a loop's weights changed when, from the first call on."""
        loop, shared = state.head.name, state.models.shared
        if isinstance(shared, KalmanShared):
            return None  # devices have no part in it
        if loop not in self._loops:
            self._loops[loop] = (state.head.version, shared.weights.copy(), None)
        return self._loops[loop][2]
