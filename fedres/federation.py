"""The readable loop: clients, server and the links between them, one round at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from fedres import checks
from fedres.channels import Channel, Fixed, group_by_delay
from fedres.checks import Array
from fedres.global_learners.base import ObservedRound, blank
from fedres.global_learners.protocol import GlobalClient, GlobalServer
from fedres.local_learners.protocol import Correction, LocalGroup
from fedres.losses import Loss
from fedres.messages import Down, Up
from fedres.models import Linear, Model

LOCAL_TIMINGS = ("aligned", "immediate")


class GlobalLearner(Protocol):
    """A rule for the shared weights, as ``fedres.global_learner`` makes them."""

    @property
    def model(self) -> Model: ...
    @property
    def loss(self) -> Loss: ...
    @property
    def n_clients(self) -> int: ...
    @property
    def minibatch(self) -> int: ...
    @property
    def brings_local_model(self) -> bool: ...
    def importance(self, who: Array) -> Array: ...
    def check(
        self,
        n: int,
        features: npt.ArrayLike,
        local_prediction: npt.ArrayLike,
        label: npt.ArrayLike,
        present: npt.ArrayLike | None = None,
    ) -> ObservedRound: ...
    def client(self, who: npt.ArrayLike | None = None) -> GlobalClient: ...
    def server(self) -> GlobalServer: ...


@dataclass(frozen=True, slots=True)
class Example:
    """One round's data of all K clients; ``present`` is False for those without any."""

    features: Array  # x^g, (K, d)
    label: Array  # y, (K,)
    local_features: Array | None = None  # x^l, (K, d_l)
    present: Array | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """What happened in one round, client by client."""

    t: int
    rule: Loss  # ℓ
    weights: Array  # the weights of each client's prediction, (K, D)
    offset: Array  # the global part of the prediction
    prediction: Array  # ŷ, global and local part
    label: Array
    present: Array

    @property
    def loss(self) -> Array:
        """ℓ(ŷ, y), 0 for clients without data."""
        return np.where(self.present, self.rule.value(self.prediction, self.label), 0.0)


@dataclass(frozen=True, slots=True)
class Site:
    """Clients that share a link, and the models they keep to themselves."""

    who: Array
    uplink: Channel[Up] = field(default_factory=lambda: Channel(Fixed(0)))
    downlink: Channel[Down] = field(default_factory=lambda: Channel(Fixed(0)))
    local: LocalGroup | None = None


def delayed_sites(
    n_clients: int,
    uplink_delay: int | Sequence[int] = 0,
    downlink_delay: int | Sequence[int] = 0,
    local: Callable[[Array], LocalGroup] | None = None,
) -> list[Site]:
    """Return sites with fixed delays, one number for all or one each; ``local(who)`` makes their local models."""
    up = _each("uplink_delay", uplink_delay, n_clients)
    down = _each("downlink_delay", downlink_delay, n_clients)
    return [
        Site(who, Channel(Fixed(alpha)), Channel(Fixed(beta)), None if local is None else local(who))
        for who, alpha, beta in group_by_delay(up, down)
    ]


def _each(name: str, delay: int | Sequence[int], n_clients: int) -> list[int]:
    """Return one delay per client."""
    delays = np.asarray(delay)
    if delays.shape not in ((), (n_clients,)):
        raise ValueError(f"{name} must be one number or {n_clients}, one per client, got {delay!r}")
    result: list[int] = np.broadcast_to(delays, n_clients).tolist()
    return result


class Federation:
    """A server and its clients: ``play`` one round, or iterate over ``run``.

    ``bits_up`` and ``bits_down`` count what each client sent and was sent.

    ``local_timing`` says when a local model learns from a round: ``aligned``, once the shared model that includes the
    round's upload is back (the paper's rule, eq. 7: one round trip later; at once where nothing was uploaded), or
    ``immediate``.
    """

    def __init__(
        self, learner: GlobalLearner, sites: Sequence[Site] | None = None, *, local_timing: str = "aligned"
    ) -> None:
        checks.one_of("local_timing", local_timing, LOCAL_TIMINGS)
        sites = [Site(np.arange(learner.n_clients))] if sites is None else sites
        covered = np.sort(np.concatenate([site.who for site in sites]))
        if not np.array_equal(covered, np.arange(learner.n_clients)):
            raise ValueError(f"sites must hold each of the {learner.n_clients} clients once, got {covered.tolist()}")
        self.learner = learner
        self.server = learner.server()
        self.parties = [_Party(learner, site, local_timing) for site in sites]
        self.in_order = self.parties[0].everybody
        self.t = 0
        self.bits_up = np.zeros(learner.n_clients, dtype=np.int64)
        self.bits_down = np.zeros(learner.n_clients, dtype=np.int64)

    def run(self, stream: Iterable[Example]) -> Iterator[Round]:
        for example in stream:
            yield self.play(example)

    def play(self, example: Example) -> Round:
        """Play one round; an example that is refused changes nothing."""
        example = self._checked(example)
        self.t += 1
        rounds = [party.play(self.t, example) for party in self.parties]
        for party in self.parties:
            self._exchange(party)
        down = self.server.step(self.t)
        if down is not None:
            for party in self.parties:
                party.site.downlink.send(down, self.t + 1)  # usable from round t + 1 + β on
                self.bits_down[party.site.who] += down.bits
        return rounds[0] if self.in_order else _merge(rounds, [party.site.who for party in self.parties])

    def known_to(self, client: int) -> Array:
        """Return the shared weights with which a client predicts in the next round; not to be written to."""
        party, row = self._place(client)
        party.deliver(self.t + 1)
        weights: Array = party.client.weights(self.t + 1)[row]
        return weights

    def local_part(self, client: int, features: Array) -> float:
        """Return what a client's own model adds to a prediction in the next round."""
        party, row = self._place(client)
        party.deliver(self.t + 1)
        rows = np.zeros((len(party.site.who), features.size))
        rows[row] = features
        return 0.0 if party.local is None else float(party.local.score(rows)[row])

    def _place(self, client: int) -> tuple[_Party, int]:
        """Return a client's site and its row there."""
        for party in self.parties:
            for row in np.flatnonzero(party.site.who == client):
                return party, int(row)
        raise ValueError(f"client must be a number below {self.learner.n_clients}, got {client!r}")

    def _checked(self, example: Example) -> Example:
        """Return a checked copy with zeros in the rows without data."""
        k = self.learner.n_clients
        features, _, label, present, _ = self.learner.check(k, example.features, 0.0, example.label, example.present)
        local = example.local_features
        if local is not None:
            local = checks.array("local_features", blank("local_features", local, present), (k, None))
        elif any(party.local is not None for party in self.parties):
            raise ValueError("local_features must be given where there are local models, got None")
        return Example(features, label, local, present)

    def _exchange(self, party: _Party) -> None:
        if party.up is not None:
            np.add.at(self.bits_up, party.up.who, party.up.bits)
            party.site.uplink.send(party.up, self.t)
        for up in party.site.uplink.receive(self.t):
            if up.t not in party.heard:
                party.heard.add(up.t)
                self.server.receive(up)
        if party.heard:  # a link may deliver twice: remember an upload for as long as a copy is on its way
            party.heard &= {up.t for up in party.site.uplink.on_the_way()}


class _Party:
    """One site at work: its half of the global learner and the local updates that wait for their round trip."""

    def __init__(self, learner: GlobalLearner, site: Site, local_timing: str) -> None:
        self.learner, self.site = learner, site
        self.client = learner.client(site.who)
        self.local = site.local
        self.aligned = local_timing == "aligned"
        self._check_local()
        if learner.brings_local_model:
            if site.local is not None:
                raise ValueError("local must be None: this learner's clients bring their own local model")
            self.local, self.aligned = cast(LocalGroup, self.client), False
        if self.local is not None:
            self.local.weigh(learner.importance(site.who))
        self.batch = learner.minibatch
        self.everybody = np.array_equal(site.who, np.arange(learner.n_clients))
        self.waiting: list[_Waiting] = []
        self.covers = np.zeros(len(site.who), dtype=np.int64)
        self.heard: set[int] = set()
        self.up: Up | None = None

    def _check_local(self) -> None:
        """Refuse a local model with another loss, or one that cannot apply late gradients."""
        loss = getattr(self.local, "loss", self.learner.loss)
        if loss != self.learner.loss:
            raise ValueError(f"local must have the loss of the shared model, {self.learner.loss!r}, got {loss!r}")
        model = getattr(self.local, "model", None)
        if self.aligned and model is not None and not isinstance(model, Linear):
            raise ValueError(f"local_timing must be 'immediate' for a local model that is not linear, got {model!r}")

    def play(self, t: int, example: Example) -> Round:
        features, label = self._own(example.features), self._own(example.label)
        present = self._own(example.present) if example.present is not None else np.ones(len(label), dtype=bool)
        self.deliver(t)
        weights = self.client.weights(t)
        offset = self.learner.model.predict(weights, features)
        part, prediction = np.zeros_like(offset), offset
        if self.local is not None and example.local_features is not None:
            local_features = self._own(example.local_features)
            part = self.local.score(local_features)
            prediction = self.local.predict(local_features, offset)
            self._learn_locally(self.local, t, local_features, label, offset, present)
        self.up = self.client.update(t, ObservedRound(features, part, label, present, offset))
        self._release(t)
        return Round(t, self.learner.loss, weights, offset, prediction, label.copy(), present.copy())

    def _own(self, values: Array) -> Array:
        """Return the rows of this site's clients."""
        return values if self.everybody else values[self.site.who]

    def deliver(self, t: int) -> None:
        """Receive the messages due by round t, and let local models that waited for them learn."""
        for down in self.site.downlink.receive(t):
            self.client.receive(down)
            self.covers = np.maximum(self.covers, down.covers[self.site.who])
        if (t - 1) % self.batch == 0:  # both models stay as they are inside a mini-batch [FedRes, eq. 10]
            for item in self.waiting:
                self._correct(item, self.covers >= item.due)
            self.waiting = [item for item in self.waiting if item.open.any()]

    def _learn_locally(
        self,
        local: LocalGroup,
        t: int,
        features: Array,
        label: Array,
        offset: Array,
        present: Array,
    ) -> None:
        if not self.aligned:
            local.learn(features, label, offset, present)
            return
        local.see(label, present)
        prediction = local.predict(features, offset)  # clamped to a range that holds the label, as `learn` has it
        due = -(-t // self.batch) * self.batch  # the round whose upload carries this one
        slope = self.learner.loss.slope(prediction, label) / self.batch
        if not self.waiting or self.waiting[-1].due != due:
            self.waiting.append(_Waiting(due, [], np.zeros_like(present)))
        self.waiting[-1].batch.append(Correction(features, slope, present.copy()))
        self.waiting[-1].open |= present

    def _release(self, t: int) -> None:
        """Let local models learn at once if their round t had no upload to wait for."""
        if not self.waiting:
            return
        sent = np.zeros(len(self.site.who), dtype=bool)
        if self.up is not None:
            sent = np.isin(self.site.who, self.up.who)
        for item in self.waiting:
            if item.due == t:
                self._correct(item, ~sent)

    def _correct(self, item: _Waiting, rows: Array) -> None:
        rows = rows & item.open
        if rows.any():
            assert self.local is not None
            self.local.correct([part._replace(present=part.present & rows) for part in item.batch])
            item.open &= ~rows


@dataclass(slots=True)
class _Waiting:
    """A local update on hold: it is due when the upload of round ``due`` is inside a received model."""

    due: int
    batch: list[Correction]  # one a round of the mini-batch
    open: Array  # clients to whom it is not yet applied


def _merge(rounds: Sequence[Round], who: Sequence[Array]) -> Round:
    """Return the sites' rounds as one, clients in order."""
    order = np.argsort(np.concatenate(who), kind="stable")

    def join(name: str) -> Array:
        return np.concatenate([getattr(part, name) for part in rounds])[order]

    parts = (join(name) for name in ("weights", "offset", "prediction", "label", "present"))
    return Round(rounds[0].t, rounds[0].rule, *parts)
