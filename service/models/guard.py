"""Defences of a loop's shared model against hostile clients: a pure function of the uploads in log order.

Uploads are counted in windows of the log. The limits come from the clients of the previous window (of this one in the
first), each with one vote however much it sends, so that a minority of clients cannot move them far:

- norm: features and updates are scaled down to ``max_norm`` times the norm that three in four clients keep;
- share: of one client at most ``client_share`` times the mean client's uploads, plus one, are learned;
- pull: the steps of one client, Σ |error|·‖(x, 1)‖ or Σ ‖update‖, are limited to ``client_pull`` times the mean
  client's, where the mean leaves out the quarter with the largest pull. A client whose error stays large while the
  others' shrink would otherwise steer the model: nothing counteracts it until their errors grow.

So up to a quarter of the clients can be hostile. An attacker with many client ids counts as many clients. With
``residual-kalman``, users for whom the service decides are clients too: all their events are learned and set limits.

The first window has no previous limits, and a flood can make most of its first clients hostile. A huge gradient or
delta cannot be undone, so none is learned until half of the joined clients have sent something, and shares are
computed for at least so many clients.

Coordinate-wise trimmed mean and median: D. Yin, Y. Chen, K. Ramchandran, P. Bartlett. Byzantine-Robust Distributed
Learning: Towards Optimal Statistical Rates. 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median_low

import msgspec
import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.compiling import kernel
from service.settings import Defences

COMBINE = ("mean", "trimmed-mean", "median")
TURNS = 8  # uploads of the mean client in a window
FEWEST_CLIENTS = 8  # a window is as long as if there were so many
PATIENCE = 4  # a window ends after so many times its uploads, those beyond shares counted: clients may have gone
MOST_CLIENTS = 1024  # in a window: more end it early, so that the state stays small
TRIMMED = 0.25  # the share of clients, or of uploads at either end, that has no say


class ClientWindow(msgspec.Struct, array_like=True):
    """What one client has sent in a window."""

    uploads: int = 0
    norm: float = 0.0  # the mean of its uploads, each as it was sent
    pull: float = 0.0  # Σ |error|·‖(x, 1)‖, or Σ ‖update‖, after the norm was clipped


class WindowSummary(msgspec.Struct, frozen=True, array_like=True):
    """What clients sent in a window."""

    clients: int = 0
    uploads: float = 0.0  # of the mean client
    norm: float = 0.0  # norm that three in four clients stay below
    pull: float = 0.0  # of the mean client, the most demanding quarter left out


class Guard(msgspec.Struct):
    """The state of a loop's defenses: at most ``MOST_CLIENTS`` clients, however many upload."""

    sent: dict[str, ClientWindow] = {}
    seen: int = 0  # uploads in this window
    learned: int = 0  # the same, those beyond a client's share not counted
    before: WindowSummary = WindowSummary()  # the previous window; in the first one, how many clients to wait for
    nameless: int = 0  # events without a user in this window
    hosts: int = 0  # users in this window for whom the service decided
    hosted: int = 0  # the same, in the newest window that had some

    def weigh(
        self, client: str, values: Array, defences: Defences, error: Callable[[Array], float] | None = None
    ) -> tuple[Array, float]:
        """Return a residual's feature values, clipped, and its weight in [0, 1]; one of weight 0 must not be learned.

        ``error`` maps the clipped values to label − prediction; without it pulls are not limited.
        """
        window = self._admit(client, self.before.uploads, defences)
        if window is None:
            return values, 0.0
        values, norm = self._clip(window, values, defences, _kept_by_most)
        pull = abs(error(values)) * math.hypot(norm, 1.0) if error else 0.0
        weight = self._weigh(window, pull, defences)
        self._close()
        return values, weight

    def count(self, user: str | None, norm: float, error: float) -> None:
        """Count an event that the service decided and that was learned.

        Every ``TURNS`` events without a user count as one client, since a mean client sends so many.
        """
        if user is None:
            user = f"\0{self.nameless // TURNS}"  # no id has a NUL
            self.nameless += 1
        self.hosts += user not in self.sent
        window = self.sent.setdefault(user, ClientWindow())
        window.uploads += 1
        window.norm += (norm - window.norm) / window.uploads
        window.pull += abs(error) * math.hypot(norm, 1.0)
        self.seen += 1
        self.learned += 1
        self._close()

    def clip(self, client: str, vector: Array, defences: Defences, joined: int = 0) -> Array | None:
        """Return a gradient or delta, clipped; None if it must not be learned.

        ``joined`` is the number of clients, including those that have sent nothing.
        """
        if self._first():
            self.before = WindowSummary(min(joined, MOST_CLIENTS) // 2)  # the others may have gone
        window = self._admit(client, 0.0, defences)  # no client may fill the pools of a combination early in a window
        if window is None:
            return None
        clipped, norm = self._clip(window, vector, defences, median_low)  # one huge step cannot be undone
        weight = self._weigh(window, norm, defences)
        early = self._early() and defences.max_norm is not None
        self._close()
        if early or weight == 0:
            return None
        return clipped if weight == 1 else _scaled(clipped, weight)

    def forget(self, client: str) -> None:
        """Remove a client's name, and what it has sent in this window."""
        uploads = self.sent.pop(client, ClientWindow()).uploads
        self.seen, self.learned = self.seen - uploads, self.learned - uploads

    def _first(self) -> bool:
        """Return whether this is the first window."""
        return self.before.uploads == 0

    def _early(self) -> bool:
        """Return whether too few clients have sent something to set limits."""
        return self._first() and len(self.sent) < self.before.clients

    def _clients(self) -> int:
        """Return the number of clients: those of the previous window may still send."""
        return max(self.before.clients, len(self.sent))

    def _admit(self, client: str, usual: float, defences: Defences) -> ClientWindow | None:
        """Count an upload; return its client's window, or None if the client's share is used up.

        The mean client's uploads are those of this window so far, or ``usual`` if that is more.
        """
        window = self.sent.setdefault(client, ClientWindow())
        mean = max(usual, self.learned / self._clients())
        self.seen += 1
        if defences.client_share is not None and window.uploads >= 1 + defences.client_share * mean:
            self._close()
            return None
        window.uploads += 1
        self.learned += 1
        return window

    def _clip(
        self, window: ClientWindow, values: Array, defences: Defences, at_first: Callable[[list[float]], float]
    ) -> tuple[Array, float]:
        """Return the values, scaled down if their norm is above the limit, and their norm after that.

        In the first window ``at_first`` computes the limit from the norms so far.
        """
        norm: float = _norm(values)
        window.norm += (norm - window.norm) / window.uploads
        if defences.max_norm is None:
            return values, norm
        limit = defences.max_norm * (self.before.norm or at_first([sent.norm for sent in self.sent.values()]))
        return (values, norm) if norm <= limit else (_scaled(values, limit / norm), limit)

    def _weigh(self, window: ClientWindow, pull: float, defences: Defences) -> float:
        """Return the share of a pull that is within the client's budget."""
        if not math.isfinite(pull):
            return 0.0
        spent = window.pull
        window.pull += pull
        if defences.client_pull is None or window.pull <= defences.client_pull * self.before.pull:
            return 1.0
        one_upload = 1 / (self.learned // len(self.sent)) if self._first() else 0.0  # an upload: somebody is first
        budget = max(defences.client_pull * self.before.pull, (defences.client_pull + one_upload) * self._pull())
        return 1.0 if pull == 0 or window.pull <= budget else max(budget - spent, 0.0) / pull

    def _pull(self) -> float:
        """Return the mean client's pull in this window so far."""
        return _trimmed_mean([sent.pull for sent in self.sent.values()], self._clients())

    def _close(self) -> None:
        """Begin a new window if this one is full."""
        length = TURNS * max(self._clients(), FEWEST_CLIENTS)
        full = self.learned >= length and not self._early()
        if not full and self.seen < PATIENCE * length and len(self.sent) < MOST_CLIENTS:
            return
        clients = max(len(self.sent), 3 * self._clients() // 4)  # a burst of a few must not hide the others
        if self.hosts or len(self.sent) >= self.hosted:  # a few devices must not set limits while users are away
            norm = _kept_by_most([sent.norm for sent in self.sent.values()])
            self.before = WindowSummary(clients, self.learned / clients, norm, self._pull())
        self.hosted = self.hosts or self.hosted
        self.sent, self.seen, self.learned, self.nameless, self.hosts = {}, 0, 0, 0, 0


def combine(vectors: Sequence[Array], how: str) -> Array:
    """Return the mean of vectors, or each coordinate's trimmed mean (of the middle half) or median."""
    checks.one_of("combine", how, COMBINE)
    if not len(vectors):
        raise ValueError("vectors must hold at least one, got none")
    stacked = np.stack(vectors)
    if how == "mean":
        result: Array = stacked.mean(axis=0)
    elif how == "median":
        result = np.median(stacked, axis=0)
    else:
        n_trimmed = int(TRIMMED * len(stacked))
        result = np.sort(stacked, axis=0)[n_trimmed : len(stacked) - n_trimmed].mean(axis=0)
    return result


@kernel
def _norm(values: Array) -> float:
    """Return ‖x‖, summed in order: the same bits on every machine, as squares of 32-bit floats are exact in 64."""
    total = 0.0
    for k in range(values.size):
        total += np.float64(values[k]) * np.float64(values[k])
    return math.sqrt(total)


def _scaled(values: Array, factor: float) -> Array:
    return (values.astype(np.float64) * factor).astype(values.dtype)


def _kept_by_most(norms: list[float]) -> float:
    """Return the least norm that three in four clients do not exceed."""
    return sorted(norms)[math.ceil((1 - TRIMMED) * len(norms)) - 1]


def _trimmed_mean(numbers: list[float], n: int) -> float:
    """Return the mean of the numbers, padded with 0 to n, without the greatest quarter (of three, without one)."""
    kept = n - (1 if n == 3 else int(TRIMMED * n))
    rest = kept - (n - len(numbers))
    return math.fsum(sorted(numbers)[:rest]) / kept if rest > 0 else 0.0
