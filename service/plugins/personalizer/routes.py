"""The paths of Azure's API."""

from __future__ import annotations

from service.admin.admin import Admin
from service.http.replies import NO_CONTENT, Reply
from service.http.routes import ADMIN, RANK, Call, Routes
from service.plugins.personalizer.admin_routes import evaluation_routes, importance_routes, model_and_log_routes
from service.plugins.personalizer.configuration import Configurations
from service.plugins.personalizer.decisions import Decisions
from service.plugins.personalizer.jobs import Jobs
from service.plugins.personalizer.messages import (
    MultiSlotRankRequest,
    MultiSlotRankResponse,
    MultiSlotReward,
    PersonalizerRankRequest,
    PersonalizerRankResponse,
    PersonalizerReward,
    PolicyContract,
    ServiceConfiguration,
)
from service.plugins.personalizer.model_and_logs import ModelAndLogs
from service.plugins.personalizer.retraining import Retrainer
from service.plugins.personalizer.routing import PersonalizerRoutes, answered, id_in, reader
from service.rank.ranker import Ranker, RankerContext


def personalizer_routes(context: RankerContext, ranker: Ranker, admin: Admin, root_path: str = "") -> Routes:
    """Return all routes of Azure's API; ``root_path`` is where a proxy offers them."""
    routes, configurations = PersonalizerRoutes(), Configurations(admin, Retrainer(context, admin))
    _decision_routes(routes, Decisions(context, ranker, configurations))
    _configuration_routes(routes, configurations)
    model_and_log_routes(routes, ModelAndLogs(context, admin, configurations))
    jobs = Jobs(context, configurations)
    evaluation_routes(routes, jobs, configurations, root_path)
    importance_routes(routes, jobs, root_path)
    return routes


def _decision_routes(routes: PersonalizerRoutes, decisions: Decisions) -> None:
    read_rank, read_reward = reader(PersonalizerRankRequest), reader(PersonalizerReward)
    read_slots, read_rewards = reader(MultiSlotRankRequest), reader(MultiSlotReward)

    @routes.of(
        "POST",
        "/rank",
        RANK,
        "Rank actions.",
        "InvalidRankRequest",
        body=PersonalizerRankRequest,
        limit="rank_bytes",
        reply=PersonalizerRankResponse,
        status=201,
    )
    async def rank(call: Call) -> Reply:
        return answered(await decisions.rank(call.loop, read_rank(call)), 201)

    @routes.of(
        "POST",
        "/events/{event_id}/reward",
        RANK,
        "Send a reward.",
        "InvalidRewardRequest",
        body=PersonalizerReward,
        status=204,
        wide=True,
    )
    async def reward(call: Call) -> Reply:
        await decisions.reward(call.loop, id_in(call, "event_id"), read_reward(call))
        return NO_CONTENT

    @routes.of(
        "POST",
        "/events/{event_id}/activate",
        RANK,
        "Activate an event.",
        "InvalidEventIdToActivate",
        status=204,
        wide=True,
    )
    async def activate(call: Call) -> Reply:
        await decisions.activate(call.loop, id_in(call, "event_id"))
        return NO_CONTENT

    @routes.of(
        "POST",
        "/multislot/rank",
        RANK,
        "Rank actions for several slots.",
        "InvalidRankRequest",
        body=MultiSlotRankRequest,
        limit="rank_bytes",
        reply=MultiSlotRankResponse,
        status=201,
    )
    async def rank_slots(call: Call) -> Reply:
        return answered(await decisions.rank_slots(call.loop, read_slots(call)), 201)

    @routes.of(
        "POST",
        "/multislot/events/{event_id}/reward",
        RANK,
        "Send the rewards of slots.",
        "InvalidRewardRequest",
        body=MultiSlotReward,
        status=204,
        wide=True,
    )
    async def reward_slots(call: Call) -> Reply:
        await decisions.reward_slots(call.loop, id_in(call, "event_id"), read_rewards(call))
        return NO_CONTENT

    @routes.of(
        "POST",
        "/multislot/events/{event_id}/activate",
        RANK,
        "Activate a multi-slot event.",
        "InvalidEventIdToActivate",
        status=204,
        wide=True,
    )
    async def activate_slots(call: Call) -> Reply:
        await decisions.activate_slots(call.loop, id_in(call, "event_id"))
        return NO_CONTENT


def _configuration_routes(routes: PersonalizerRoutes, configurations: Configurations) -> None:
    read_configuration, read_policy = reader(ServiceConfiguration), reader(PolicyContract)
    service, policy = "/configurations/service", "/configurations/policy"

    @routes.of("GET", service, ADMIN, "Show the configuration.", "BadRequest", reply=ServiceConfiguration)
    async def get_configuration(call: Call) -> Reply:
        return answered(await configurations.configuration(call.loop))

    @routes.of(
        "PUT",
        service,
        ADMIN,
        "Change the configuration.",
        "InvalidServiceConfiguration",
        body=ServiceConfiguration,
        reply=ServiceConfiguration,
    )
    async def put_configuration(call: Call) -> Reply:
        return answered(await configurations.put_configuration(call.loop, read_configuration(call)))

    @routes.of("GET", policy, ADMIN, "Show the policy.", "BadRequest", reply=PolicyContract)
    async def get_policy(call: Call) -> Reply:
        return answered(await configurations.policy(call.loop))

    @routes.of(
        "PUT",
        policy,
        ADMIN,
        "Change the policy.",
        "InvalidPolicyContract",
        body=PolicyContract,
        reply=PolicyContract,
    )
    async def put_policy(call: Call) -> Reply:
        return answered(await configurations.put_policy(call.loop, read_policy(call)))

    @routes.of("DELETE", policy, ADMIN, "Reset the policy.", "BadRequest", reply=PolicyContract)
    async def reset_policy(call: Call) -> Reply:
        return answered(await configurations.reset_policy(call.loop))
