"""A network with faults, and a driver that does not sleep."""

import random
import zlib
from collections import Counter

import httpx
import numpy as np
from safetensors.numpy import save

from fedres.client.offers import make_offer
from fedres.client.opening import open_device
from fedres.client.syncing import Link
from fedres_client.transport import ask
from fedres_client.wire import Finished, Wait, advance

MENU = {"tea": {"hot": True}, "juice": {"hot": False}, "milk": {}}


class Network(httpx.BaseTransport):
    """The real network, but for what ``faults`` says of the next requests.

    None lets a request pass; "lost" drops it, "unanswered" drops the answer, and a number or a response is
    answered by the network itself.
    """

    def __init__(self, faults=()):
        self.faults = iter(faults)
        self.sent = []  # the requests, as they left the device
        self.before = None  # what to do before each of them
        self.answers = lambda request: None  # what the network itself says to a request
        self._inner = httpx.HTTPTransport(verify=False)  # to read the system's certificates takes long

    def handle_request(self, request):
        self.sent.append(request)
        fault = next(self.faults, None)
        if self.before is not None:
            self.before()
        if fault == "lost":
            raise httpx.ConnectError("lost", request=request)
        if isinstance(fault, int):
            return httpx.Response(fault, json={"error": {"code": "down", "message": "for a moment", "target": None}})
        if isinstance(fault, httpx.Response):
            return fault
        response = self.answers(request) or self._inner.handle_request(request)
        if fault == "unanswered":
            response.read()
            raise httpx.ReadError("unanswered", request=request)
        return response

    def close(self):
        self._inner.close()

    def routes(self):
        """Return how often each route was asked."""
        return Counter(request.url.path.rsplit("/", 1)[1] for request in self.sent)


class Driven:
    """A device with its half of the protocol; waits are written down, not waited for."""

    def __init__(self, url, folder, faults=(), *, key=None, gzip=True, clock=None, **options):
        options = {"client": "phone", "learner": "linear", **options}
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.now = 0.0
        self.network = Network(faults)
        self.http = httpx.Client(base_url=url, headers=headers, transport=self.network, trust_env=False)
        self.device = open_device(folder, **options, **({} if clock is None else {"clock": clock}))
        self.link = Link(self.device, gzip=gzip, rng=random.Random(0), clock=lambda: self.now)
        self.waits = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.device.close()
        self.http.close()

    def drive(self, flow):
        answer = None
        while not isinstance(step := advance(flow, answer), Finished):
            answer = None
            if isinstance(step, Wait):
                self.waits.append(step.seconds)
                self.now += step.seconds
            else:
                answer = ask(self.http, step)
        return step.value

    def sync(self, tries=1):
        return self.drive(self.link.sync(tries))

    def decide(self, context, actions=MENU, private=None, **options):
        return self.drive(self.link.decide(make_offer(context, actions, private, **options)))

    def play(self, first, last, likes="tea"):
        """Decide and reward events ``first`` up to ``last``, whose contexts and ids are always the same."""
        for i in range(first, last):
            decision = self.decide({"day": f"day-{i % 7}"}, private={"age": i % 3}, event_id=f"event-{i}")
            self.device.reward(decision.event_id, float(decision.action == likes))

    def scores(self):
        """Return what the device thinks of a few contexts."""
        return [self.decide({"day": f"day-{day}"}, private={"age": day % 3}).scores for day in range(7)]


def payload(version, bits, seed=0):
    """Return a whole model as the service would send it."""
    weights = np.random.default_rng(seed).normal(size=2**bits + 1).astype(np.float32) / 10
    metadata = {"version": version, "bits": bits, "low": 0.0, "high": 1.0, "newest": 0, "crc32": zlib.crc32(weights)}
    return save({"weights": weights}, {name: str(value) for name, value in metadata.items()})
