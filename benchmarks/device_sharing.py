"""Devices with ``residual-kalman`` beside a hosted loop and beside devices that share nothing, without a network.

``python benchmarks/device_sharing.py`` plays streams of ``fedres bench decisions``; every user is a device. A device
syncs after so many of its own rounds; an upload takes a number of rounds to arrive, and some attempts are lost and made
again after the next round. Both halves of the model are those of the service and of ``DeviceClient``.

The stream ``fleet:N`` is the task of ``device_fleet.py``: 20 devices tell two classes of digits apart, each with a task
of its own, and part of the features are private; its figure is the accuracy on held-out rows after N rounds. The hosted
loop there receives the private features, too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from fedres.checks import Array
from fedres.decisions.federated_kalman import DeviceKalman, KalmanExample, Part, learn_residual, residual_of
from fedres.decisions.kalman_document import read_document, write_document
from fedres.decisions.kalman_state import LEARNED, Events, KalmanRequest
from fedres.decisions.residual_kalman import NO_MODEL, NO_OWNS, ResidualKalman, events_of
from fedres.policies import OptimisticSquareCB
from fedres.policies.kernels import explore, pick
from libsvm_tasks.decisions.players import KalmanPlayer
from libsvm_tasks.decisions.rounds import DecisionRound
from libsvm_tasks.decisions.suite import STREAMS, play
from libsvm_tasks.load import load
from libsvm_tasks.tasks import Task, paper_task

TUNING_SEEDS, JUDGING_SEEDS = (11, 12, 13), (401, 402, 403)
BURST = 10  # as fedres.client.syncing has it
RULE = OptimisticSquareCB().rule((0.0, 1.0))


class Network(NamedTuple):
    """When a device syncs, and the result."""

    every: int  # own rounds between two syncs
    latency: int = 0  # rounds of all users that an upload takes at most
    loss: float = 0.0  # share of syncs that are lost
    relearns: bool = True  # True: examples are learned again with each new model


NETWORKS = {
    "sync every 2 rounds": Network(2),
    "every 10": Network(10),
    "every 10, late and lossy": Network(10, latency=400, loss=0.3),
    "every 50": Network(50),
    "every 10, learned once": Network(10, relearns=False),
}


@dataclass
class Phone:
    """A device, and what it has yet to upload."""

    model: DeviceKalman
    examples: list[KalmanExample] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    n_sent: int = 0


class Fleet:
    """A player of the suite: all users are devices of one server."""

    def __init__(self, network: Network, seed: int, reward_range: tuple[float, float] = (0.0, 1.0)) -> None:
        self.network, self.rng = network, np.random.default_rng([seed, 2])
        self.reward_range, self.server = reward_range, ResidualKalman(reward_range)
        self.phones: dict[str, Phone] = {}
        self.t = 0
        self.under_way: list[tuple[float, Phone, int, int]] = []

    def decide(self, now: DecisionRound, draw: float) -> tuple[int, Any]:
        phone = self.phone(now.user)
        request, chances, shared = now.request, np.empty(len(now.actions)), phone.model.shared
        prediction = phone.model.predict(request, int(request.starts[0]))
        learned = 0 if shared is None else int(shared.counts[LEARNED])
        explore(RULE, 0, learned, prediction.means, prediction.widths, np.ones(chances.size, np.bool_), chances)
        action = pick(chances, draw)
        return action, (phone, request, action)

    def phone(self, user: str) -> Phone:
        if user not in self.phones:
            self.phones[user] = Phone(DeviceKalman(self.reward_range))
        return self.phones[user]

    def learn(self, token: Any, reward: float) -> None:
        phone, request, action = token
        self.take(phone, _example(request, action, reward))

    def take(self, phone: Phone, example: KalmanExample) -> None:
        """Let a device learn a reward, and the network do its work."""
        phone.parts.append(phone.model.part(example))
        phone.examples.append(example)
        phone.model.learn(example)
        self.t += 1
        if len(phone.examples) - phone.n_sent >= self.network.every and self.rng.random() >= self.network.loss:
            if len(phone.examples) - phone.n_sent >= BURST:
                self._download(phone)
            arrives = self.t + self.rng.uniform(0, self.network.latency)
            self.under_way.append((arrives, phone, phone.n_sent, len(phone.examples)))
            phone.n_sent = len(phone.examples)
        for upload in [upload for upload in self.under_way if upload[0] <= self.t]:
            self.under_way.remove(upload)
            self._arrive(*upload[1:])

    def _arrive(self, phone: Phone, first: int, last: int) -> None:
        for example, part in zip(phone.examples[first:last], phone.parts[first:last], strict=True):
            event = _event(example)
            if self.server.shared is None:
                self.server.learn_packed(event, NO_OWNS)
            else:
                learn_residual(self.server, event, part, residual_of(self.server, event, part))
        self._download(phone)

    def finish(self) -> None:
        """Let all uploads arrive, and all devices know of them."""
        for _, phone, first, last in self.under_way:
            self._arrive(phone, first, last)
        for phone in self.phones.values():
            self._arrive(phone, phone.n_sent, len(phone.examples))
            phone.n_sent = len(phone.examples)
        for phone in self.phones.values():
            self._download(phone)

    def _download(self, phone: Phone) -> None:
        document = read_document(write_document(self.server.shared, 0, "", self.server.learned))
        if document.shared is None:
            return
        if self.network.relearns or phone.model.shared is None:
            parts = phone.model.relearn(document.shared, phone.examples)
            phone.parts[phone.n_sent :] = parts[phone.n_sent :]
        else:
            phone.model.shared = document.shared


def _example(request: KalmanRequest, action: int, reward: float) -> KalmanExample:
    n, mine = int(request.starts[0]), slice(request.starts[action], request.starts[action + 1])
    columns = [np.concatenate([column[:n], column[mine]]) for column in request[:3]]
    return KalmanExample(*columns, n, n, reward)


def _event(example: KalmanExample) -> Events:
    """Return what the server sees of an example."""
    seen = np.r_[0 : example.n_seen, example.n_context : example.hashes.size]
    columns, size = [column[seen] for column in example[:3]], np.array([0, seen.size], np.int64)
    reward, n_context = np.array([example.reward], np.float32), np.array([example.n_seen], np.int64)
    return Events(*columns, size, n_context, reward, np.array([-1], np.int64))


def accuracy(network: Network | None, seed: int, devices: int = 20, rounds: int = 200) -> float:
    """Return the mean accuracy of devices on the task of ``device_fleet.py``; without a network each is alone."""
    task, fleet = digits(seed, devices, rounds), Fleet(network or Network(10**9), seed, (-1.0, 1.0))
    phones = [fleet.phone(str(i)) for i in range(devices)]
    for t in range(rounds):
        for i, phone in enumerate(phones):
            fleet.take(phone, _seen_digit(task, i, t))
    if network is None:
        for phone in phones:
            phone.model.relearn(None, phone.examples)
    else:
        fleet.finish()
    n_seen = task.global_features.size
    return _right(task, lambda i, request: phones[i].model.predict(request, n_seen).means[0])


def hosted_accuracy(seed: int, devices: int = 20, rounds: int = 200) -> float:
    """Return the mean accuracy of one hosted model with a user for each device, and all of their features."""
    task, model, owns = digits(seed, devices, rounds), ResidualKalman((-1.0, 1.0)), [NO_MODEL] * devices
    for t in range(rounds):
        examples = [_seen_digit(task, i, t) for i in range(devices)]
        events = events_of([(_request(example), 0, example.reward, i) for i, example in enumerate(examples)])
        owns = model.learn(events, owns)
    return _right(task, lambda i, request: model.predict(request, owns[i]).means[0])


def digits(seed: int, devices: int, rounds: int) -> Task:
    """Return the task of ``device_fleet.py``."""
    return paper_task(load("digits"), devices, seed=seed, local_features="all", n_rounds=rounds)


def _right(task: Task, predict: Callable[[int, KalmanRequest], float]) -> float:
    """Return the share of held-out rows that a prediction has the sign of."""
    rows = enumerate(zip(task.test_features, task.test_label, strict=True))
    pairs = [(i, x, label) for i, (xs, labels) in rows for x, label in zip(xs, labels, strict=True)]
    return float(np.mean([predict(i, _request(_digit(task, x, 0.0))) * label > 0 for i, x, label in pairs]))


def _seen_digit(task: Task, i: int, t: int) -> KalmanExample:
    row = task.order[i, t]
    return _digit(task, task.features[i, row], float(task.label[i, row]))


def _digit(task: Task, x: Array, label: float) -> KalmanExample:
    seen = task.global_features
    order = np.concatenate([seen, np.setdiff1d(np.arange(x.size), seen)])
    hashes, fields = np.append(1 + order, 1000).astype(np.uint32), np.append(0 * order, 999).astype(np.uint32)
    return KalmanExample(hashes, np.append(x[order], 1.0).astype(np.float32), fields, order.size, seen.size, label)


def _request(example: KalmanExample) -> KalmanRequest:
    return KalmanRequest(*example[:3], np.array([example.n_context, example.hashes.size], np.int64))


def run(streams: Sequence[str], seeds: Sequence[int], networks: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Return the figures of all players, by stream."""
    players: dict[str, Any] = {"hosted": lambda seed: KalmanPlayer(), "alone": lambda seed: KalmanPlayer("alone")}
    players |= {name: lambda seed, name=name: Fleet(NETWORKS[name], seed) for name in networks}
    figures: dict[str, dict[str, list[float]]] = {}
    for stream in streams:
        figures[stream] = {}
        if stream.startswith("fleet"):
            rounds = int(stream.partition(":")[2] or 200)
            figures[stream]["hosted"] = [hosted_accuracy(seed, rounds=rounds) for seed in seeds]
            for name, network in [("alone", None), *[(name, NETWORKS[name]) for name in networks]]:
                figures[stream][name] = [accuracy(network, seed, rounds=rounds) for seed in seeds]
                print(stream, name, np.round(figures[stream][name], 3), flush=True)
            continue
        for name, make in players.items():
            figures[stream][name] = [play(STREAMS[stream], make(seed), seed) for seed in seeds]
            print(stream, name, np.round(figures[stream][name], 3), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="permuted,same,news,fleet")
    parser.add_argument("--seeds", default=",".join(map(str, JUDGING_SEEDS)))
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, separated by ; where they have commas")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    names = [*NETWORKS] if arguments.networks == ",".join(NETWORKS) else arguments.networks.split(";")
    figures = run(arguments.streams.split(","), [int(seed) for seed in arguments.seeds.split(",")], names)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    table = Table("", *figures)
    for name in next(iter(figures.values())):
        table.add_row(name, *[f"{np.mean(rows[name]):.3f}" if rows[name] else "" for rows in figures.values()])
    Console().print(table)


if __name__ == "__main__":
    main()
