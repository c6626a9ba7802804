"""The engine: the one mutable object that the HTTP code talks to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from fedres.event_ids import new_event_id
from fedres.scoring.flattening import FeatureError, action_features
from fedres.scoring.model import PersonalModel
from service.engine import reports
from service.engine.at_once import Undecided, Written, decide_all, readied
from service.engine.core import DEFAULT, Answer
from service.engine.deciding import (
    Action,
    Decision,
    RankRequest,
    RankResult,
    View,
    check_id,
    check_request,
    decide,
    repeated,
)
from service.engine.devices import Devices
from service.engine.erasing import Erasing
from service.engine.handed import handed
from service.engine.records import (
    ACTIONS,
    ACTIVATE,
    MODEL,
    NOTHING,
    RANK,
    REWARD,
    SETTINGS,
    ActionsBody,
    Inline,
    LoggedRank,
    RewardBody,
    encode,
)
from service.engine.settings import FIXED, Settings, read_settings
from service.engine.shared import bytes_of_model, check_model
from service.engine.slots import SlotsRequest, SlotsResult, check_slots, events_of, fill, filled_before
from service.engine.snapshots import Damaged
from service.errors import ApiError, invalid, unavailable
from service.store import Duplicate, Entry, Record, StoreUnavailable
from service.store.waiting import Waiter

DELETED = b'{"deleted":true}'


class Engine(Devices, Erasing):
    """Ranks, takes rewards and learns; ``open`` makes one.

    Methods that are awaited return once what they say is in the store. Settings, catalogue, model and erasures hold
    everything else up until they are in force, so that the log has them where they took effect.
    """

    # decisions and rewards

    async def rank(self, loop: str, request: RankRequest) -> RankResult:
        """Return an action for a user in a context, once the decision is stored."""
        check_request(request)
        decision, stored = await self._submit_rank(loop, request)
        return await self._ranked(loop, request, decision, stored)

    async def rank_many(self, loop: str, requests: Sequence[RankRequest]) -> list[RankResult | ApiError]:
        """Return the same for each of many requests, or why that one was refused; one commit for all."""
        submitted = [await self._try_submit(loop, request) for request in requests]
        return [
            entry if isinstance(entry, ApiError) else await self._try_ranked(loop, request, *entry)
            for request, entry in zip(requests, submitted, strict=True)
        ]

    async def rank_slots(self, loop: str, request: SlotsRequest) -> SlotsResult:
        """Return an action for each slot of a page, none of them twice, once all are stored, in one commit."""
        check_slots(request)
        await self._view(loop)
        if request.event_id is None:
            return await self._fill(loop, request, new_event_id())
        async with self._filling.setdefault((loop, request.event_id), asyncio.Lock()):
            known = await self._ranks_of(loop, request)
            if not known:
                with contextlib.suppress(Duplicate):  # of a rank call that took one of the ids this moment
                    return await self._fill(loop, request, request.event_id)
                known = await self._ranks_of(loop, request)
        return filled_before(request, request.event_id, known)

    async def _fill(self, loop: str, request: SlotsRequest, event_id: str) -> SlotsResult:
        view, personal = await self._models(loop, request.user)
        records: list[Record] = []

        def decided(asked: RankRequest) -> RankResult:
            decision = decide(asked, view, personal, self._preparers[view.settings.crosses], self._given.where)
            records.append(_record(loop, asked, decision))
            return decision.result

        filled = fill(request, event_id, decided)
        await self._stored(self._submit_together(records))
        return filled

    async def _ranks_of(self, loop: str, request: SlotsRequest) -> dict[str, tuple[Entry, LoggedRank]]:
        events = events_of(request.event_id or "", len(request.slots))
        return await asyncio.to_thread(self._archived, lambda: self._exporter.ranks_of(loop, events))

    async def _try_submit(self, loop: str, request: RankRequest) -> tuple[Decision, asyncio.Future[int]] | ApiError:
        try:
            check_request(request)
            return await self._submit_rank(loop, request)
        except ApiError as error:
            return error

    async def _try_ranked(
        self, loop: str, request: RankRequest, decision: Decision, stored: asyncio.Future[int]
    ) -> RankResult | ApiError:
        try:
            return await self._ranked(loop, request, decision, stored)
        except ApiError as error:
            return error

    async def _submit_rank(self, loop: str, request: RankRequest) -> tuple[Decision, asyncio.Future[int]]:
        view, personal = await self._models(loop, request.user)
        decision = decide(request, view, personal, self._preparers[view.settings.crosses], self._given.where)
        return decision, self._submit(
            _record(loop, request, decision)
        )  # nothing is awaited between view and submission

    async def _models(self, loop: str, user: str | None) -> tuple[View, PersonalModel | None]:
        """Return the loop as it is published and the user's own model."""
        view = await self._view(loop)
        known, personal = self._at_hand(user, view)
        if not known and user is not None:
            personal = await self._load((view.since, user))
            view = await self._view(loop)
        return view, personal

    def decide_at_once(self, loop: str, requests: Sequence[RankRequest | None]) -> list[Written | None]:
        """Return decisions for ``store_at_once``, None where one must await something, or is refused."""
        view, asked = self.view(loop), list[Undecided]()
        found: list[Written | None] = [None] * len(requests)
        if self._changing is not None:
            return found
        for place, request in enumerate(requests):
            if request is not None and not request.explain:
                known, personal = self._at_hand(request.user, view)
                if known:
                    asked.append(Undecided(place, request, personal))
        ready = readied(asked, view, self._preparers[view.settings.crosses], self._given.where)
        for one, written in zip(ready, decide_all(ready, view), strict=True):
            found[one.place] = written
        return found

    def _at_hand(self, user: str | None, view: View) -> tuple[bool, PersonalModel | None]:
        """Return whether the user's own model is known without the disk, and the model."""
        if user is None or not view.settings.personal:
            return True, None
        return self._personal.cached((view.since, user))

    def store_at_once(self, decided: Sequence[Written], waiter: Waiter) -> None:
        """Hand the store decisions that were just made; the waiter is told their positions, once they are durable."""
        self._commits.submit_all([written.record for written in decided], waiter)

    async def _ranked(
        self, loop: str, request: RankRequest, decision: Decision, stored: asyncio.Future[int]
    ) -> RankResult:
        try:
            await self._stored(stored)
        except Duplicate:
            found = await asyncio.to_thread(self._archived, lambda: self._exporter.rank_of(loop, decision.event_id))
            if found is None:
                raise ApiError(409, "event_exists", f"event {decision.event_id!r} is being erased") from None
            return repeated(request, *found)
        return decision.result

    async def reward(self, loop: str, event_id: str, value: float, reward_id: str | None = None) -> None:
        """Store a reward; it may come before its event, and repeats of it count once."""
        view = await self._view(loop)
        low, high = view.settings.reward_range
        if not low <= value <= high:
            raise invalid(f"value must be in [{low:g}, {high:g}], got {value}", "value")
        if reward_id is not None:
            check_id("id", reward_id)
        await self._append_about(loop, REWARD, event_id, encode(RewardBody(float(value), reward_id)))

    async def activate(self, loop: str, event_id: str) -> None:
        """Let a deferred event wait for its reward from now on."""
        await self._view(loop)
        await self._append_about(loop, ACTIVATE, event_id, NOTHING)

    async def _append_about(self, loop: str, kind: str, event_id: str, body: bytes) -> None:
        check_id("event_id", event_id)
        await self._stored(self._submit(Record(loop, kind, event_id, None, body)))

    async def _load(self, key: tuple[int, str]) -> PersonalModel | None:
        """Read a user's model from the disk on a thread: a hundredth of a millisecond there, none on the event loop."""
        running = asyncio.get_running_loop()
        while True:
            try:
                generation, model = await running.run_in_executor(self._loader, self._personal.read, key)
            except Damaged as damage:
                self._learning.call(lambda damage=damage: self._learning.rebuild(damage))  # type: ignore[misc]
                return None
            if self._personal.remember(key, generation, model):
                return model

    # loops, settings, catalogue, models

    def loops(self) -> list[str]:
        """Return the names of all loops."""
        return sorted(self._learning.views)

    async def create_loop(self, name: str, settings: dict[str, Any] | None = None) -> int:
        """Return the version of a new loop's settings."""
        check_id("loop", name)
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not name.isascii():
            raise invalid(f"loop must be letters, digits, '-', '_' and '.', got {name!r}", "loop")
        body = encode(read_settings(settings or {}))
        async with self._change():
            if name in self._learning.views:
                raise ApiError(409, "loop_exists", f"loop must be new, got {name!r}", "loop")
            return await self._append_now(Record(name, SETTINGS, None, None, body))

    def settings(self, loop: str) -> tuple[int, Settings]:
        """Return the settings and their version."""
        view = self.view(loop)
        return view.settings_version, view.settings

    async def put_settings(self, loop: str, settings: dict[str, Any]) -> int:
        """Return the version of the new settings, which are in force from now on.

        What is missing is at its default, but for what was fixed when the loop was made.
        """
        async with self._change():
            known = self.view(loop).settings
            wanted = read_settings({**{name: getattr(known, name) for name in FIXED}, **settings})
            for name in FIXED:
                if getattr(wanted, name) != getattr(known, name):
                    message = f"{name} must stay as the loop was made with, got {getattr(wanted, name)!r}"
                    raise ApiError(409, "fixed_setting", message, name)
            return await self._append_now(Record(loop, SETTINGS, None, None, encode(wanted)))

    async def delete_loop(self, name: str) -> None:
        """Forget a loop's models and events on their way; its records stay in the log."""
        if name == DEFAULT:
            raise ApiError(409, "default_loop", f"loop must not be {DEFAULT!r}, which stays", "loop")
        async with self._change():
            self.view(name)
            await self._append_now(Record(name, SETTINGS, None, None, DELETED))

    def actions(self, loop: str) -> list[Action]:
        """Return the catalogue."""
        return [Action(name, msgspec.Raw(action.features)) for name, action in self.view(loop).catalogue.items()]

    async def put_actions(self, loop: str, put: Sequence[Action] = (), retire: Sequence[str] = ()) -> int:
        """Add, change and retire actions; return the position of the change."""
        for place, action in enumerate(put):
            self._check_action(place, action)
        known = [Inline(action.id, msgspec.Raw(bytes(action.features) or b"{}")) for action in put]
        async with self._change():
            self.view(loop)
            body = encode(ActionsBody(known, list(retire)))
            return await self._append_now(Record(loop, ACTIONS, None, None, body))

    def _check_action(self, place: int, action: Action) -> None:
        check_id(f"put[{place}].id", action.id)
        try:
            action_features(action.id, bytes(action.features), self._limits)
        except FeatureError as error:
            raise ApiError(422, "invalid_features", f"put[{place}]: {error}", f"put[{place}]") from None

    def model(self, loop: str) -> bytes:
        """Return the shared model with all that is logged learned; ``put_model`` takes it."""
        self.view(loop)
        return self._learner_says(lambda: bytes_of_model(self._learning.learner.loops[loop].shared))

    async def put_model(self, loop: str, state: bytes) -> int:
        """Replace the shared model; personal models stay. Return the new model version."""
        async with self._change():
            try:
                check_model(self.view(loop).settings, state)
            except ValueError as error:
                raise ApiError(422, "invalid_model", str(error)) from None
            return await self._append_now(Record(loop, MODEL, None, None, state))

    def user_model(self, loop: str, user: str) -> dict[str, Any]:
        """Return a user's own model as published: weights by feature key (docs/hashing.md), and the constant's."""
        view = self.view(loop)
        _, model = self._personal.read((view.since, user))
        if model is None:
            raise ApiError(404, "unknown_user", f"user must have a personal model, got {user!r}", "user")
        weights = {str(key): weight for key, weight in model.weights.items()}
        return {"user": user, "model_version": view.version, "constant": model.constant, "weights": weights}

    # what is stored and how it goes

    def events(self, loop: str, after: int = 0, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield stored events as ``bandits.logs`` reads them, oldest first, from after a position on."""
        view = self.view(loop)
        return self._exporter.events(loop, max(after, view.since), limit)

    def unmatched(self, loop: str) -> list[dict[str, Any]]:
        """Return late and unmatched rewards, the newest of them, oldest first."""
        self.view(loop)
        return reports.unmatched(self._learner_says(lambda: list(self._learning.learner.loops[loop].join.unmatched)))

    async def evaluate(
        self, loop: str, policies: Sequence[str], estimators: Sequence[str] = ("snips", "dr")
    ) -> dict[str, object]:
        """Return off-policy values of policies on the stored events, worked out on a thread."""
        events = self.events(loop)
        return await asyncio.to_thread(reports.evaluation, events, policies, estimators)

    def digest(self, loop: str) -> str:
        """Return the SHA-256 of the loop's models with all that is logged learned, as ``learner.digest`` makes it."""
        return self._learner_says(lambda: self._learning.digest(loop))

    def status(self) -> dict[str, Any]:
        """Return how the service does."""
        learning = self._learning
        return {
            "store": self.store.name,
            "position": max(self._last, learning.position),  # the learner logs ticks itself
            "learned_position": learning.position,
            "trouble": None if learning.trouble is None else str(learning.trouble),
            "rebuilt": learning.rebuilt,
            "cached_personal_models": len(self._personal),
            "loops": {name: self.gauges(name) for name in self.loops()},
        }

    def gauges(self, loop: str) -> dict[str, float]:
        """Return numbers for monitoring; NaN where there is nothing to average yet."""
        behind = max(self._last - self._learning.position, 0)
        return reports.gauges(self.view(loop), behind, self._learning.lag_seconds() if behind else 0.0)

    def _archived(self, function: Callable[[], Answer]) -> Answer:
        try:
            return function()
        except StoreUnavailable as error:
            raise unavailable(error) from error


def _record(loop: str, request: RankRequest, decision: Decision) -> Record:
    body = handed(request.user, decision.body, decision.prepared)
    return Record(loop, RANK, decision.event_id, request.user, body)
