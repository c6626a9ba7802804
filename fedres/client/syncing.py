"""A device's protocol with the service: its requests, their order, and the meaning of replies."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import msgspec

from fedres.client.choosing import Round
from fedres.client.device import Device, DeviceDecision, log
from fedres.client.global_side import OtherModelError
from fedres.client.offers import Offer
from fedres.client.store import Queued
from fedres.client.upload_bodies import post, residuals_body, updates_body
from fedres.scoring.federated import takes_residuals
from fedres_client.backoff import Backoff
from fedres_client.wire import UNREADABLE, Answer, Failure, Flow, Request, Wait, refusal

MOST = {"residuals": 500, "updates": 20}  # in one request
BURST = 10  # waiting uploads that count as a burst
ROUND_SECONDS = 60.0  # for which the loop's settings are cached
SCORES_SECONDS = 2.0  # how long a decision waits for the service's scores
PATIENCE = 60.0  # seconds: a longer wait is left to the next sync

_PASSING = {408, 425, 429}  # temporary failures, as are all from 500 on
_CLOSED = {401, 403, 404}  # permanent until a key or a name is changed
Reply = Answer | Failure | None
T = TypeVar("T")

_ITEM = re.compile(r"(?:residuals|updates)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of a sync; ``trouble`` is the reason if it is incomplete."""

    sent: int
    dropped: int  # uploads that the service refused for good, and that the queue had no room for meanwhile
    version: int  # of the shared model
    trouble: str | None = None


class _Trouble(Exception):  # noqa: N818
    """This sync cannot continue."""


class _Unknown(Exception):  # noqa: N818
    """The service does not have the model that an upload was made with."""


class Uploaded(msgspec.Struct):
    positions: list[int]
    version: int
    number: int | None = None


class _Score(msgspec.Struct):
    id: str
    score: float


class _Scores(msgspec.Struct):
    version: int
    scores: list[_Score]


class Link:
    """A device's half of the protocol. ``clock`` counts seconds from anywhere."""

    def __init__(
        self,
        device: Device,
        *,
        gzip: bool = True,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.device = device
        self.pause: float | None = None  # seconds to wait after a failed sync, else None
        self._gzip, self._clock = gzip, clock
        self._backoff, self._scores_backoff = Backoff(rng), Backoff(rng)
        self._base = f"/v1/loops/{quote(device.loop, safe='')}/federated"
        self._round_until = self._scores_from = -float("inf")
        self._most = MOST["residuals"]

    # Deciding

    def decide(self, offer: Offer) -> Flow[DeviceDecision]:
        """Decide; if no model is downloaded, with the service's scores, or without them if they do not arrive."""
        shared_scores = None
        if not self.device.download and self._clock() >= self._scores_from:
            shared_scores = yield from self._scores(offer)
        return self.device.decide(offer, shared_scores)

    def _scores(self, offer: Offer) -> Flow[tuple[int, Sequence[float]] | None]:
        actions = [{"id": name, "features": msgspec.Raw(features)} for name, features in offer.actions]
        body = msgspec.json.encode({"context": msgspec.Raw(offer.context), "actions": actions})
        path = f"{self._base}/scores"
        answer = yield post(path, body, "application/json", pack=self._gzip, seconds=SCORES_SECONDS)
        try:
            reply = _read(answer, _Scores)
        except _Trouble as trouble:
            self._scores_from = self._clock() + self._scores_backoff.failed(_retry_after(answer))
            self._troubled(str(trouble))
            return None
        self._scores_backoff.worked()
        self.device.note_version(reply.version)
        scores = {each.id: each.score for each in reply.scores}
        return reply.version, [scores.get(name, 0.0) for name, _ in offer.actions]

    # Syncing

    def sync(self, tries: int = 1, *, upload: bool = True) -> Flow[Synced]:
        """Send waiting uploads, then fetch the newest model; each request gets up to ``tries`` tries."""
        sent, dropped, self.pause = 0, self.device.dropped, None
        try:
            fresh = yield from self._prepare(tries)
            if upload and self.device.fetches_first and not fresh and len(self.device.batch(BURST)) == BURST:
                yield from self._model(tries)
            # Later uploads wait for the next sync, so that this one gets to fetching a model.
            newest = self.device.seq if upload else 0
            while (batch := self.device.batch(min(self._most, MOST[self.device.route]))) and batch[0].seq <= newest:
                sent += yield from self._upload(batch, tries)
            if self.device.download and (sent or not fresh):
                yield from self._model(tries)
            self.device.trouble = None
        except _Trouble as trouble:
            self._troubled(str(trouble))
        return Synced(sent, self.device.dropped - dropped, self.device.version, self.device.trouble)

    def _troubled(self, trouble: str) -> None:
        """Store the trouble, and log it once."""
        if trouble != self.device.trouble:
            log.warning("%s works on its own: %s", self.device.client, trouble)
        self.device.trouble = trouble

    def failed(self, error: Exception) -> None:
        """Record that a sync in the background raised an error."""
        self.pause = self._backoff.failed()
        self.device.trouble = f"the sync failed: {error!r}"
        log.error("the sync failed", exc_info=error)

    def _prepare(self, tries: int) -> Flow[bool]:
        """Get the loop's settings, this client's number and a model, if missing; return whether the model is new."""
        device = self.device
        if not device.has_settings or self._clock() >= self._round_until:
            yield from self._round(tries)
        fresh = device.download and device.version == 0
        if fresh:
            yield from self._model(tries)
        device.give_version(device.version or device.settings.version, to_all=False)
        return fresh

    def _round(self, tries: int) -> Flow[None]:
        path = f"{self._base}/round?client={quote(self.device.client, safe='')}"
        if self.device.model != "adagrad":
            path += f"&model={self.device.model}"
        settings = self._opened((yield from self._ask(Request("GET", path), tries)), Round)
        if not takes_residuals(settings.global_learner):
            settings = yield from self._joined(settings, tries)
        self.device.adopt(settings)
        self._round_until = self._clock() + ROUND_SECONDS

    def _joined(self, settings: Round, tries: int) -> Flow[Round]:
        """Return the settings with this client's number; join the loop if necessary."""
        if not self.device.download:
            raise _Trouble(f"download must be True in a loop with {settings.global_learner}, got False")
        if settings.number is not None:
            return settings
        uploaded = yield from self._posted("updates", [], tries)
        return msgspec.structs.replace(settings, number=uploaded.number)

    def _posted(self, route: str, batch: list[Queued], tries: int) -> Flow[Uploaded]:
        answer = yield from self._ask(self._upload_request(route, batch), tries)
        if answer.status != 200:
            self._refuse(answer, batch)
            return Uploaded([], 0)
        uploaded = self._opened(answer, Uploaded)
        if len(uploaded.positions) != len(batch):
            raise _Trouble(f"the service must answer with {len(batch)} positions, got {len(uploaded.positions)}")
        return uploaded

    def _upload_request(self, route: str, batch: list[Queued]) -> Request:
        client, path = self.device.client, f"{self._base}/{route}"
        if route == "residuals":
            return post(path, residuals_body(client, batch), "application/json", pack=self._gzip)
        return post(path, updates_body(client, batch), "application/msgpack", pack=self._gzip)

    def _upload(self, batch: list[Queued], tries: int) -> Flow[int]:
        """Send a batch; return how many uploads are stored."""
        try:
            uploaded = yield from self._posted(self.device.route, batch, tries)
        except _Unknown:
            yield from self._start_again(batch, tries)
            return 0
        if uploaded.positions:
            self._most = min(2 * self._most, MOST["residuals"])
            self.device.sent(batch, uploaded.positions)
            if not self.device.download:
                self.device.note_version(uploaded.version)
        return len(uploaded.positions)

    def _start_again(self, batch: list[Queued], tries: int) -> Flow[None]:
        """Forget a model that the service does not have, and give queued uploads the version of the next model."""
        device = self.device
        device.forget_model()
        yield from self._round(tries)
        if device.download:
            yield from self._model(tries)
        version = device.version or device.settings.version
        if all(upload.version == version for upload in batch):
            raise _Trouble(f"the service must know its own version {version}, and says that it does not")
        device.give_version(version, to_all=True)

    def _model(self, tries: int) -> Flow[None]:
        since = self.device.version
        headers = {"If-None-Match": f'"{self.device.tag}"'} if since else {}
        answer = yield from self._ask(Request("GET", f"{self._base}/model?since={since}", b"", headers), tries)
        if answer.status == 304:
            return
        if answer.status != 200:
            raise self._stop(answer)
        try:
            self.device.received(answer.body, _version(answer.headers["etag"]))
        except (KeyError, ValueError) as error:
            if isinstance(error, OtherModelError) and since:  # another service, or one with a new log
                self.device.forget_model()
                yield from self._model(tries)
                return
            self._round_until = -float("inf")
            self.pause = self._backoff.failed()
            raise _Trouble(f"the service sent a model that cannot be used: {error}") from None

    def _ask(self, request: Request, tries: int) -> Flow[Answer]:
        """Return the reply, after up to ``tries`` tries."""
        for left in reversed(range(tries)):
            answer = yield request
            if isinstance(answer, Answer) and answer.status < 500 and answer.status not in _PASSING:
                self._backoff.worked()
                return answer
            delay = self._backoff.failed(_retry_after(answer))
            if left == 0 or delay > PATIENCE:
                self.pause = delay
                break
            yield Wait(delay)
        raise _Trouble(_said(answer))

    def _refuse(self, answer: Answer, batch: list[Queued]) -> None:
        """Handle a refused upload: drop the invalid one, or stop."""
        why = refusal(answer)
        item = _ITEM.search(why.target or "")
        if why.code == "unknown_version":
            raise _Unknown
        if why.code in ("wrong_upload", "not_joined"):
            self._round_until = -float("inf")  # the loop has changed
            raise self._stop(answer)
        spoiled = answer.status == 413 or (answer.status in (400, 422) and why.code and why.target != "client")
        if item is not None and answer.status not in _CLOSED and int(item[1]) < len(batch):
            self.device.refused([batch[int(item[1])]], why.message)
        elif not (spoiled and batch):
            raise self._stop(answer)
        elif len(batch) == 1:
            self.device.refused(batch, why.message)
        self._most = max(1, len(batch) // 2)  # others may be invalid too, and all are sent again

    def _opened(self, answer: Answer, kind: type[T]) -> T:
        """Return the content of a success; stop at anything else."""
        try:
            return _read(answer, kind)
        except _Trouble:
            self._rest(answer)
            raise

    def _stop(self, answer: Answer) -> _Trouble:
        self._rest(answer)
        return _Trouble(_said(answer))

    def _rest(self, answer: Answer) -> None:
        self.pause = self._backoff.failed(answer.retry_after)


def _read(answer: Reply, kind: type[T]) -> T:
    if not isinstance(answer, Answer) or answer.status != 200:
        raise _Trouble(_said(answer))
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except UNREADABLE as error:  # some networks reply in place of the service
        raise _Trouble(f"the service must answer as one of fedres does: {error}") from None


def _version(tag: str) -> int:
    """Return the version that an ETag begins with."""
    return int(tag.removeprefix("W/").strip('"').partition("-")[0])


def _retry_after(answer: Reply) -> float:
    return answer.retry_after if isinstance(answer, Answer) else 0.0


def _said(answer: Reply) -> str:
    """Return the reason of a failure, for people."""
    if not isinstance(answer, Answer):
        return f"the service does not answer: {answer.reason if answer else 'nothing came'}"
    why = refusal(answer)
    return f"the service answers {answer.status} {why.code}: {why.message}"
