"""The paths of Azure's API: below ``/personalizer`` for the loop ``default``, and below ``/loops/{loop}/personalizer``.

Two families of versions share most handlers: ``/personalizer/v1.0/…`` with its previews, and ``/personalizer/…`` with
``api-version=2022-09-01-preview``.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec

from service.errors import invalid
from service.http.replies import NO_CONTENT, Reply, json_reply
from service.http.routes import ADMIN, RANK, Call, Routes
from service.http.strict import decode
from service.personalizer.configuration import Configurations
from service.personalizer.decisions import Decisions
from service.personalizer.errors import PersonalizerErrorResponse, Refusal, failed
from service.personalizer.features import LONGEST
from service.personalizer.messages import (
    MultiSlotRankRequest,
    MultiSlotRankResponse,
    MultiSlotReward,
    PersonalizerRankRequest,
    PersonalizerRankResponse,
    PersonalizerReward,
    PolicyContract,
    ServiceConfiguration,
)
from service.ranking.admin import Admin
from service.ranking.ranker import Machine, Ranker

PREFIXES = ("/personalizer", "/loops/{loop}/personalizer")
OLD, NEW = "/{version}", ""
BOTH = (OLD, NEW)
VERSIONS = ("v1.0", "v1.1-preview.1", "v1.1-preview.2", "v1.1-preview.3")
API_VERSION = "2022-09-01-preview"

Handler = Callable[[Call], Awaitable[Reply]]
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class PersonalizerRoutes(Routes):
    """Declares handlers for both families; what a handler refuses is answered in Azure's shape."""

    def of(
        self,
        method: str,
        path: str,
        roles: frozenset[str],
        summary: str,
        code: str,
        families: tuple[str, ...] = BOTH,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """Declare a handler; ``code`` is that of requests which break a rule."""
        paths = [prefix + family + path for prefix in PREFIXES for family in families]
        options |= {"hot": True, "of_loop": True, "error": PersonalizerErrorResponse, "takes_subscription_key": True}
        options["choices"] = {"version": VERSIONS}
        declare = self.of_paths(method, paths, roles, summary, **options)

        def decorate(handler: Handler) -> Handler:
            @functools.wraps(handler)
            async def answer(call: Call) -> Reply:
                try:
                    _check_version(call)
                    return await handler(call)
                except Exception as error:
                    return failed(error, code)

            return declare(answer)

        return decorate


def _check_version(call: Call) -> None:
    version = call.parameters.get("version")
    if version is not None:
        if version not in VERSIONS:
            message = f"the version must be one of {', '.join(VERSIONS)}, got {version[:100]!r}"
            raise Refusal("ResourceNotFound", message, "version", 404)
        return
    given = query(call).get("api-version", API_VERSION)
    if given != API_VERSION:
        message = f"api-version must be {API_VERSION}, got {given[:100]!r}"
        raise Refusal("BadRequest", message, "api-version")


def query(call: Call) -> dict[str, str]:
    """Return the parameters of a query, of one that comes twice the last."""
    return {name: values[-1] for name, values in parse_qs(call.query.decode("latin-1")).items()}


def id_in(call: Call, name: str) -> str:
    """Return an id of the path."""
    given = call.parameters[name]
    if len(given) > LONGEST:
        raise invalid(f"{name} must have at most {LONGEST} characters, got {len(given)}", name)
    return given


def reader(kind: type[T]) -> Callable[[Call], T]:
    """Return what reads bodies of a type."""
    decoder = msgspec.json.Decoder(kind)
    return lambda call: decode(decoder, call.body)


def answered(value: Any, status: int = 200) -> Reply:
    return json_reply(_encode(value), status)


def personalizer_routes(machine: Machine, ranker: Ranker, admin: Admin) -> Routes:
    """Return all routes of Azure's API."""
    routes, configurations = PersonalizerRoutes(), Configurations(admin)
    _decision_routes(routes, Decisions(machine, ranker, configurations))
    _configuration_routes(routes, configurations)
    return routes


def _decision_routes(routes: PersonalizerRoutes, decisions: Decisions) -> None:
    read_rank, read_reward = reader(PersonalizerRankRequest), reader(PersonalizerReward)
    read_slots, read_rewards = reader(MultiSlotRankRequest), reader(MultiSlotReward)

    @routes.of(
        "POST",
        "/rank",
        RANK,
        "Azure Personalizer: rank actions.",
        "InvalidRankRequest",
        body=PersonalizerRankRequest,
        reply=PersonalizerRankResponse,
        status=201,
    )
    async def rank(call: Call) -> Reply:
        return answered(await decisions.rank(call.loop, read_rank(call)), 201)

    @routes.of(
        "POST",
        "/events/{event_id}/reward",
        RANK,
        "Azure Personalizer: send a reward.",
        "InvalidRewardRequest",
        body=PersonalizerReward,
        status=204,
    )
    async def reward(call: Call) -> Reply:
        await decisions.reward(call.loop, id_in(call, "event_id"), read_reward(call))
        return NO_CONTENT

    @routes.of(
        "POST",
        "/events/{event_id}/activate",
        RANK,
        "Azure Personalizer: activate an event.",
        "InvalidEventIdToActivate",
        status=204,
    )
    async def activate(call: Call) -> Reply:
        await decisions.activate(call.loop, id_in(call, "event_id"))
        return NO_CONTENT

    @routes.of(
        "POST",
        "/multislot/rank",
        RANK,
        "Azure Personalizer: rank actions for several slots.",
        "InvalidRankRequest",
        body=MultiSlotRankRequest,
        reply=MultiSlotRankResponse,
        status=201,
    )
    async def rank_slots(call: Call) -> Reply:
        return answered(await decisions.rank_slots(call.loop, read_slots(call)), 201)

    @routes.of(
        "POST",
        "/multislot/events/{event_id}/reward",
        RANK,
        "Azure Personalizer: send the rewards of slots.",
        "InvalidRewardRequest",
        body=MultiSlotReward,
        status=204,
    )
    async def reward_slots(call: Call) -> Reply:
        await decisions.reward_slots(call.loop, id_in(call, "event_id"), read_rewards(call))
        return NO_CONTENT

    @routes.of(
        "POST",
        "/multislot/events/{event_id}/activate",
        RANK,
        "Azure Personalizer: activate a multi-slot event.",
        "InvalidEventIdToActivate",
        status=204,
    )
    async def activate_slots(call: Call) -> Reply:
        await decisions.activate_slots(call.loop, id_in(call, "event_id"))
        return NO_CONTENT


def _configuration_routes(routes: PersonalizerRoutes, configurations: Configurations) -> None:
    read_configuration, read_policy = reader(ServiceConfiguration), reader(PolicyContract)
    service, policy = "/configurations/service", "/configurations/policy"

    @routes.of(
        "GET", service, ADMIN, "Azure Personalizer: show the configuration.", "BadRequest", reply=ServiceConfiguration
    )
    async def get_configuration(call: Call) -> Reply:
        return answered(await configurations.configuration(call.loop))

    @routes.of(
        "PUT",
        service,
        ADMIN,
        "Azure Personalizer: change the configuration.",
        "InvalidServiceConfiguration",
        body=ServiceConfiguration,
        reply=ServiceConfiguration,
    )
    async def put_configuration(call: Call) -> Reply:
        return answered(await configurations.put_configuration(call.loop, read_configuration(call)))

    @routes.of("GET", policy, ADMIN, "Azure Personalizer: show the policy.", "BadRequest", reply=PolicyContract)
    async def get_policy(call: Call) -> Reply:
        return answered(await configurations.policy(call.loop))

    @routes.of(
        "PUT",
        policy,
        ADMIN,
        "Azure Personalizer: change the policy.",
        "InvalidPolicyContract",
        body=PolicyContract,
        reply=PolicyContract,
    )
    async def put_policy(call: Call) -> Reply:
        return answered(await configurations.put_policy(call.loop, read_policy(call)))

    @routes.of("DELETE", policy, ADMIN, "Azure Personalizer: reset the policy.", "BadRequest", reply=PolicyContract)
    async def reset_policy(call: Call) -> Reply:
        return answered(await configurations.reset_policy(call.loop))
