"""Loops, settings, catalogue, models and users. Changes go through the log, and return once they are in effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import msgspec

from fedres.scoring.features import Named, Preparer
from fedres.scoring.flattening import FeatureError
from fedres_client.event_ids import new_event_id
from service.admin.exporting import export_lines, time_or_none
from service.errors import ApiError, invalid
from service.hints import about
from service.item_attributes import read_meaning
from service.learn.join import UncountedReward
from service.learn.loop_state import read_settings_body
from service.log.protocol import Duplicate
from service.log.records import (
    ACTIONS,
    DELETED,
    ERASE,
    LOOP,
    MODEL,
    SETTINGS,
    ActionsBody,
    EraseBody,
    InlineAction,
    Record,
    encode,
)
from service.models.loop_metadata import LoopView
from service.models.personal import has_data
from service.models.table import model_kind
from service.rank.decide import FEW_BYTES
from service.rank.explaining import personal_model
from service.rank.quotas import exceeded
from service.rank.ranker import ERASE_SECONDS, RankerContext
from service.rank.requests import Action, check_id
from service.settings import (
    DEFAULT_LOOP,
    DEFAULT_MODEL,
    FIXED,
    LONGEST_REASON,
    Control,
    Settings,
    of_new_loop,
    read_settings,
)
from service.times import iso_time

MERGED = ("control", "defences")  # settings with fields, of which a change keeps those that it does not name
MOST_ATTEMPTS = 50  # to change settings that others change at the same time

Purpose = Literal["change", "hold", "resume"]  # of a change of settings


class UnmatchedReward(msgspec.Struct):
    """A reward that does not count, or not yet."""

    event_id: Annotated[str, about("Id of the event that the reward names.")]
    time: Annotated[str, about("When the reward was stored, as ISO 8601.")]
    value: Annotated[float, about("The reward.")]
    id: Annotated[str | None, about("Id of the reward; null if it has none.")]
    status: Annotated[
        str, about("Why it does not count: late, unmatched, too many or early; an early one still waits for its event.")
    ]


class Admin:
    """The operations of admin keys."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context

    # loops and settings

    def loops(self) -> list[str]:
        """Return the names of all loops."""
        return self._context.models.names()

    async def create_loop(self, name: str, settings: dict[str, Any] | None = None) -> int:
        """Create a loop; return the version of its settings. A repeated call returns the same version."""
        check_id("loop", name)
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not name.isascii():
            raise invalid(f"loop must be letters, digits, '-', '_' and '.', got {name!r}", "loop")
        self._context.check_follows(name)
        new_settings = of_new_loop(read_settings(settings or {}))
        body = encode(new_settings)
        names_largest = "largest_number" in (settings or {})
        if name in self.loops():
            return await self._made_before(name, new_settings, names_largest)
        self._check_room(new_settings)
        if new_settings.model != DEFAULT_MODEL:
            await self._context.until_compiled()
        deleted = await self._context.look_up(name, lambda log: log.of_kind(name, DELETED))
        event = f"loop after {deleted[-1].position if deleted else 0}"
        try:
            return await self._context.append_now(Record(name, LOOP, event, body=body))
        except Duplicate:
            return await self._made_before(name, new_settings, names_largest)

    async def _made_before(self, name: str, settings: Settings, names_largest: bool) -> int:
        """Return the version of an existing loop created with the same settings, as a repeated call should.

        Loops of earlier versions have no bound on numbers: a call that does not name one means them too.
        """
        created = await self._context.look_up(name, lambda log: log.of_kind(name, LOOP)[-1])
        made = read_settings_body(created.body)
        same_rules: dict[str, Any] = {"draws_by_loop": made.draws_by_loop}
        if not names_largest:
            same_rules["largest_number"] = made.largest_number
        settings = msgspec.structs.replace(settings, **same_rules)
        if made != _with_draws(settings, made.control):
            message = f"loop {name!r} exists with other settings; change them with PATCH /v1/loops/{name}/settings"
            raise ApiError(409, "loop_exists", message, "loop")
        await self._context.until(lambda: name in self.loops())
        return created.position

    def _check_room(self, settings: Settings) -> None:
        """Refuse a loop beyond the quotas of loops and weights."""
        quotas, names = self._context.quotas, self.loops()
        if len(names) >= quotas.loops:
            raise exceeded("loops", quotas.loops, "loops")
        n_weights = sum(self._context.loop(name).view.settings.n_weights for name in names)
        if n_weights + settings.n_weights > quotas.weights:
            raise exceeded("weights", quotas.weights, f"shared weights, and has {n_weights}")

    async def delete_loop(self, name: str) -> None:
        """Forget a loop's models and pending events; its records stay in the log."""
        if name == DEFAULT_LOOP:
            raise ApiError(409, "default_loop", f"loop must not be {DEFAULT_LOOP!r}, which cannot be deleted", "loop")
        created_at = self._context.loop(name).view.created_at
        await self._context.append(Record(name, DELETED))

        def gone() -> bool:
            try:
                return self._context.loop(name).view.created_at != created_at
            except ApiError as error:
                return error.status == 404

        await self._context.until(gone)

    def settings(self, loop: str) -> tuple[int, Settings]:
        """Return the settings and their version."""
        view = self._context.loop(loop).view
        return view.settings_version, view.settings

    async def put_settings(self, loop: str, settings: dict[str, Any], version: int | None = None) -> int:
        """Return the version of the new settings, once they are in effect.

        Missing settings get their defaults, except those that are fixed when the loop is created and ``control.hold``.
        With a ``version``, refuse unless it is that of the settings in force.
        """

        def all_settings(current: Settings) -> dict[str, Any]:
            fixed = {name: getattr(current, name) for name in FIXED}
            held = {"hold": current.control.hold}
            return {**fixed, **settings, "control": _merged(held, settings.get("control", {}))}

        return await self.change_settings(loop, all_settings, version)

    async def patch_settings(self, loop: str, changes: dict[str, Any], version: int | None = None) -> int:
        """Change some settings; the others stay, also those fields of ``control`` and ``defences`` that are missing.

        With a ``version``, refuse unless it is that of the settings in force.
        """

        def all_settings(current: Settings) -> dict[str, Any]:
            before = msgspec.to_builtins(current)
            merged = {name: _merged(before[name], changes[name]) for name in MERGED if name in changes}
            return {**before, **changes, **merged}

        return await self.change_settings(loop, all_settings, version)

    async def hold(self, loop: str, reason: str, version: int | None = None) -> int:
        """Let the baseline decide for everybody, and pause the experiment; return the version of the settings.

        A loop that is held already gets the new reason. With a ``version``, refuse unless it is that of the settings
        in force.
        """
        if not 1 <= len(reason) <= LONGEST_REASON:
            raise invalid(f"reason must have 1 to {LONGEST_REASON} characters, got {len(reason)}", "reason")

        def held(current: Settings) -> dict[str, Any] | None:
            return None if current.control.hold == reason else _with_hold(current, reason)

        return await self.change_settings(loop, held, version, "hold")

    async def resume(self, loop: str, version: int | None = None) -> int:
        """End a hold: the policy decides again, and the experiment goes on; return the version of the settings.

        A loop that is not held stays as it is. With a ``version``, refuse unless it is that of the settings in force,
        so that a newer hold stays.
        """

        def resumed(current: Settings) -> dict[str, Any] | None:
            return None if current.control.hold is None else _with_hold(current, None)

        return await self.change_settings(loop, resumed, version, "resume")

    async def change_settings(
        self,
        loop: str,
        change: Callable[[Settings], dict[str, Any] | None],
        version: int | None = None,
        purpose: Purpose = "change",
    ) -> int:
        """Replace the settings by ``change`` of those in force; return the new version, once they are in effect.

        If ``change`` returns None, the settings stay.

        The event of a settings record names the version that it replaces, and the log has each event once. So of two
        simultaneous changes one is refused by the log. It is made again from the newer settings, unless ``version``
        names the settings that it must replace.
        """
        if version is not None:  # it may come from another machine, which learns sooner
            await self._context.until(lambda: self._context.loop(loop).view.position >= version)
        for _ in range(MOST_ATTEMPTS):
            view = self._context.loop(loop).view
            if version is not None and version != view.settings_version:
                raise _settings_changed(version, view.settings_version)
            fields = change(view.settings)
            if fields is None:
                return view.settings_version
            new_settings = self._checked(view, fields, version, purpose)
            event = f"settings after {view.settings_version}"
            try:
                return await self._context.append_now(Record(loop, SETTINGS, event, body=encode(new_settings)))
            except Duplicate as newer:
                if version is not None:
                    raise _settings_changed(version, newer.position) from None
                await self._until_settings(loop, newer.position)
        message = f"the settings of loop {loop!r} change all the time; try again"
        raise ApiError(409, "settings_changed", message, "settings")

    async def _until_settings(self, loop: str, version: int) -> None:
        """Return once settings that another call has stored are in effect."""
        await self._context.until(lambda: self._context.loop(loop).view.settings_version >= version)

    def _checked(self, view: LoopView, fields: dict[str, Any], version: int | None, purpose: Purpose) -> Settings:
        """Return new settings of a loop; refuse what must not change. A hold is an emergency that no quota stops."""
        quotas = self._context.quotas
        if view.n_settings >= quotas.settings and purpose != "hold":
            what = "settings that events wait under; change them when these have their rewards"
            raise exceeded("settings", quotas.settings, what, view.name)
        current = view.settings
        new_settings = _with_draws(read_settings(fields), current.control)
        for name in FIXED:
            if getattr(new_settings, name) != getattr(current, name):
                message = f"{name} is fixed when the loop is created, got {getattr(new_settings, name)!r}"
                raise ApiError(409, "fixed_setting", message, name)
        ends_hold = current.control.hold is not None and new_settings.control.hold is None
        if ends_hold and version is None and purpose != "resume":
            message = f"the baseline decides for everybody in loop {view.name!r}: {str(current.control.hold)[:200]}"
            advice = f"to end that, send POST /v1/loops/{view.name}/resume, or send control.hold null with the header"
            raise ApiError(409, "held", f'{message}; {advice} If-Match: "{view.settings_version}"', "control.hold")
        return new_settings

    def has_learned_nothing(self, loop: str) -> bool:
        """Return whether a loop's models have learned nothing yet."""
        view = self._context.loop(loop).view
        return view.version == view.created_at

    # catalogue and models

    def actions(self, loop: str) -> list[Action]:
        """Return the catalogue, by rising id."""
        catalogue = self._context.loop(loop).catalogue
        return [Action(name, msgspec.Raw(action.features)) for name, action in sorted(catalogue.items())]

    async def put_actions(self, loop: str, put: Sequence[Action] = (), retire: Sequence[str] = ()) -> int:
        """Add, change and retire actions; return the position of the change."""
        self._check_catalogue(loop, put, retire)

        published = self._context.loop(loop)
        if sum([len(action.features) for action in put]) > FEW_BYTES:
            preparer = Preparer.within(published.view.settings.largest_number)

            def check(_: None) -> None:
                _check_actions(put, preparer)

            await self._context.threads.call(loop, nullcontext, check)
        else:
            _check_actions(put, self._context.preparer_of(published))
        actions = [InlineAction(action.id, msgspec.Raw(bytes(action.features) or b"{}")) for action in put]
        body = encode(ActionsBody(actions, list(retire)))
        return await self._context.append_now(Record(loop, ACTIONS, body=body))

    def _check_catalogue(self, loop: str, put: Sequence[Action], retire: Sequence[str]) -> None:
        """Refuse a change that makes the catalogue too large."""
        quotas, copied = self._context.quotas, self._context.loop(loop).copied
        sizes = {action.id: len(action.id) + len(bytes(action.features)) for action in put}
        replaced = {*sizes, *retire} & copied.actions.keys()
        for name in retire:
            sizes.pop(name, None)
        if len(copied.actions) - len(replaced) + len(sizes) > quotas.actions:
            raise exceeded("actions", quotas.actions, "actions in its catalogue", loop)
        smaller = sum(len(name) + len(copied.actions[name].features) for name in replaced)
        after = copied.n_bytes - smaller + sum(sizes.values())
        if after > max(quotas.catalogue_bytes, copied.n_bytes):
            what = f"bytes of ids and features in its catalogue, which would be {after}"
            raise exceeded("catalogue_bytes", quotas.catalogue_bytes, what, loop)

    async def model(self, loop: str) -> bytes:
        """Return the shared model, after learning all records so far; ``put_model`` accepts it."""
        self._context.loop(loop)
        return bytes(await self._context.learner.ask("model", loop))

    async def put_model(self, loop: str, state: bytes) -> int:
        """Replace the shared model; personal models stay. Return the new model version."""
        view = self._context.loop(loop).view
        created = await self._context.look_up(loop, lambda log: log.of_kind(loop, LOOP)[-1])
        ranges = view.seen_range, read_settings_body(created.body).reward_range

        def check(_: None) -> None:
            model_kind(view.settings).check(view.settings, state, ranges)

        try:
            await self._context.threads.call(loop, nullcontext, check)
        except ValueError as error:
            raise ApiError(422, "invalid_model", str(error)) from None
        return await self._context.append_now(Record(loop, MODEL, body=state))

    # users

    def user_model(self, loop: str, user: str) -> dict[str, Any]:
        """Return a user's own model as published, by feature key (docs/reference/hashing.md)."""
        published = self._context.loop(loop)
        model = personal_model(user, published, self._context.models)
        if model is None:
            raise ApiError(404, "unknown_user", f"user {user!r} has no personal model yet", "user")
        head = {"user": user, "model_version": published.view.version}
        return {**head, **published.model.described(model)}

    async def erase_user(self, loop: str, user: str) -> None:
        """Erase a user's model, events and rewards from every file; return once that is done."""
        check_id("user", user)
        self._context.loop(loop)
        if await self._has_something_of(loop, user):
            await self._erase(loop, user, lambda: self._context.loop(loop).view.erased)

    async def _erase(self, loop: str, user: str, erased: Callable[[], Sequence[str]]) -> None:
        """Log that a user is to be erased; return once ``erased`` has the token of that."""
        token = new_event_id()
        await self._context.append(Record(loop, ERASE, user=user, body=encode(EraseBody(token))))
        await self._context.until(lambda: token in erased(), ERASE_SECONDS)

    async def _has_something_of(self, loop: str, user: str) -> bool:
        """Return whether anything may be stored of a user in a loop.

        The log may have removed old uploads of a device that still count for the limits of each device.
        """
        published, memory = self._context.loop(loop), self._context.models.memory
        view = published.view
        if user in published.clients.numbers or (memory is not None and has_data(memory, published.id, user)):
            return True
        if view.events_since and (view.statistics.uploads or view.statistics.passed_over):
            return True
        return await self._has_records_of(loop, user)

    async def _has_records_of(self, loop: str, user: str) -> bool:
        return bool(await self._context.look_up(loop, lambda log: log.of_user(loop, user, limit=1)))

    async def erase_user_everywhere(self, user: str) -> None:
        """Erase a user in all loops, deleted ones too; wait for all of them before raising an error."""
        check_id("user", user)
        self._context.check_follows_all()
        live = self.loops()
        logged = await self._context.look_up("", lambda log: [*log.heads()])
        deleted = [loop for loop in logged if loop not in live and await self._has_records_of(loop, user)]
        erasures = [self.erase_user(loop, user) for loop in live]
        erasures += [self._erase(loop, user, self._erased_in_deleted_loops) for loop in deleted]
        for result in await asyncio.gather(*erasures, return_exceptions=True):
            if result is not None:
                raise result

    def _erased_in_deleted_loops(self) -> Sequence[str]:
        learner = self._context.models.learner()
        return () if learner is None else learner.erased

    # the log

    async def events(self, loop: str, after: int = 0, limit: int | None = None) -> AsyncIterator[bytes]:
        """Yield logged events behind a position, oldest first, in the format of ``bandits.evaluation``.

        Each item is a piece with many JSON lines.
        """
        created_at = self._context.loop(loop).view.created_at
        async for lines in self._exported(loop, created_at, max(after, created_at), limit, None):
            yield lines

    def events_since(self, loop: str) -> str | None:
        """Return the time from which on the log has all events of a loop; None if no older ones were removed."""
        return time_or_none(self._context.loop(loop).view.events_since)

    async def user_events(self, user: str, loops: Sequence[str] | None = None) -> AsyncIterator[bytes]:
        """Yield a user's logged events in these loops, in all by default; each names its loop."""
        if loops is None:
            self._context.check_follows_all()
            loops = self.loops()
        starts = {loop: self._context.loop(loop).view.created_at for loop in loops}
        for loop, created_at in starts.items():
            async for lines in self._exported(loop, created_at, created_at, None, user):
                yield lines

    async def _exported(
        self, loop: str, created_at: int, after: int, limit: int | None, user: str | None
    ) -> AsyncIterator[bytes]:
        while limit is None or limit > 0:
            lines, after = await self._context.exports.call(loop, export_lines, created_at, after, limit, user)
            if not lines:
                return
            limit = None if limit is None else limit - lines.count(b"\n")
            yield lines

    async def unmatched(self, loop: str) -> list[UnmatchedReward]:
        """Return the newest rewards that do not count, oldest first."""
        self._context.loop(loop)
        rewards = msgspec.convert(await self._context.learner.ask("unmatched", loop), list[UncountedReward])
        return [
            UnmatchedReward(
                reward.event_id,
                iso_time(reward.time, "microseconds"),
                reward.value,
                None if reward.reward_id.startswith("=") else reward.reward_id,
                reward.why,
            )
            for reward in rewards
        ]


def _check_actions(put: Sequence[Action], preparer: Preparer) -> None:
    """Refuse actions whose ids or features are invalid."""
    named = [Named("", action.id, bytes(action.features)) for action in put]
    for place, (action, row) in enumerate(zip(put, preparer.hash_all(named), strict=True)):
        check_id(f"put[{place}].id", action.id)
        if isinstance(row, FeatureError):
            message = f"put[{place}]: {str(row).removeprefix(': ')}"
            raise ApiError(422, "invalid_features", message, f"put[{place}]")
        try:
            read_meaning(msgspec.json.decode(action.features) if action.features else None)
        except ValueError as error:
            raise ApiError(422, "invalid_features", f"put[{place}]: {error}", f"put[{place}]") from None


def _with_draws(settings: Settings, before: Control) -> Settings:
    """Return settings whose control group is drawn as the one before while its experiment goes on."""
    return msgspec.structs.replace(settings, control=settings.control.after(before))


def _with_hold(settings: Settings, reason: str | None) -> dict[str, Any]:
    """Return settings with another reason of a hold, or without a hold."""
    fields: dict[str, Any] = msgspec.to_builtins(settings)
    return {**fields, "control": {**fields["control"], "hold": reason}}


def _merged(current: dict[str, Any], change: Any) -> Any:
    """Return the fields of a setting after a change; a change that is no object is returned, and refused later."""
    return {**current, **change} if isinstance(change, dict) else change


def _settings_changed(version: int, current: int) -> ApiError:
    message = f"the settings have version {current}, and If-Match is for version {version}: read them again"
    return ApiError(412, "settings_changed", message, "If-Match")
