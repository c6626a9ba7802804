"""The paths of Azure's API."""

from __future__ import annotations

from typing import Any, NoReturn

from service.admin.admin import Admin
from service.http.replies import Reply, json_reply
from service.http.routes import ADMIN, BINARY, JSON, RANK, Call, Routes
from service.log.records import encode
from service.plugins.personalizer.configuration import Configurations
from service.plugins.personalizer.decisions import ApplicationCalls
from service.plugins.personalizer.errors import Refusal
from service.plugins.personalizer.jobs import (
    EVALUATION,
    IMPORTANCE,
    Jobs,
    importance_shown,
    new_evaluation,
    old_evaluation,
    page,
)
from service.plugins.personalizer.messages import (
    EvaluationContract,
    FeatureImportanceContract,
    MultiSlotRankRequest,
    MultiSlotRankResponse,
    MultiSlotReward,
    PersonalizerRankRequest,
    PersonalizerRankResponse,
    PersonalizerReward,
    PolicyContract,
    PolicyReference,
    ServiceConfiguration,
)
from service.plugins.personalizer.model_and_logs import ModelAndLogs
from service.plugins.personalizer.retraining import Retrainer
from service.plugins.personalizer.routing import NEW, OLD, PersonalizerRoutes, address, id_in, query
from service.rank.ranker import Ranker, RankerContext

INVALID_EVALUATION, INVALID = "InvalidEvaluationContract", "InvalidContract"


def personalizer_routes(context: RankerContext, ranker: Ranker, admin: Admin, root_path: str = "") -> Routes:
    """Return all routes of Azure's API; ``root_path`` is where a proxy offers them."""
    routes, configurations = PersonalizerRoutes(), Configurations(admin, Retrainer(context, admin))
    _decision_routes(routes, ApplicationCalls(context, ranker, configurations))
    _configuration_routes(routes, configurations)
    _model_and_log_routes(routes, ModelAndLogs(context, admin, configurations))
    jobs = Jobs(context, configurations)
    _evaluation_routes(routes, jobs, configurations, root_path)
    _importance_routes(routes, jobs, root_path)
    return routes


def _event(call: Call) -> str:
    return id_in(call, "event_id")


def _decision_routes(routes: PersonalizerRoutes, calls: ApplicationCalls) -> None:
    add = routes.add
    to_rank: dict[str, Any] = {"limit": "rank_bytes", "status": 201}
    of_event: dict[str, Any] = {"status": 204, "wide": True}
    invalid, invalid_reward, invalid_event = "InvalidRankRequest", "InvalidRewardRequest", "InvalidEventIdToActivate"

    async def rank(call: Call) -> PersonalizerRankResponse:
        return await calls.rank(call.loop, call.body)

    async def reward(call: Call) -> None:
        await calls.reward(call.loop, _event(call), call.body)

    async def activate(call: Call) -> None:
        await calls.activate(call.loop, _event(call))

    async def rank_slots(call: Call) -> MultiSlotRankResponse:
        return await calls.rank_slots(call.loop, call.body)

    async def reward_slots(call: Call) -> None:
        await calls.reward_slots(call.loop, _event(call), call.body)

    async def activate_slots(call: Call) -> None:
        await calls.activate_slots(call.loop, _event(call))

    ranks: dict[str, Any] = {"body": PersonalizerRankRequest, "reply": PersonalizerRankResponse, **to_rank}
    add("POST", "/rank", RANK, "Rank actions.", invalid, rank, **ranks)
    event = "/events/{event_id}"
    reward_body = {"body": PersonalizerReward, **of_event}
    add("POST", f"{event}/reward", RANK, "Send a reward.", invalid_reward, reward, **reward_body)
    add("POST", f"{event}/activate", RANK, "Activate an event.", invalid_event, activate, **of_event)
    slots: dict[str, Any] = {"body": MultiSlotRankRequest, "reply": MultiSlotRankResponse, **to_rank}
    event = f"/multislot{event}"
    add("POST", "/multislot/rank", RANK, "Rank actions for several slots.", invalid, rank_slots, **slots)
    reward_body = {"body": MultiSlotReward, **of_event}
    add("POST", f"{event}/reward", RANK, "Send the rewards of slots.", invalid_reward, reward_slots, **reward_body)
    add("POST", f"{event}/activate", RANK, "Activate a multi-slot event.", invalid_event, activate_slots, **of_event)


def _configuration_routes(routes: PersonalizerRoutes, configurations: Configurations) -> None:
    async def get_configuration(call: Call) -> ServiceConfiguration:
        return await configurations.configuration(call.loop)

    async def put_configuration(call: Call) -> ServiceConfiguration:
        return await configurations.put_configuration(call.loop, call.body)

    async def get_policy(call: Call) -> PolicyContract:
        return await configurations.policy(call.loop)

    async def put_policy(call: Call) -> PolicyContract:
        return await configurations.put_policy(call.loop, call.body)

    async def reset_policy(call: Call) -> PolicyContract:
        return await configurations.reset_policy(call.loop)

    add, path, kind = routes.add, "/configurations/service", ServiceConfiguration
    add("GET", path, ADMIN, "Show the configuration.", "BadRequest", get_configuration, reply=kind)
    invalid = "InvalidServiceConfiguration"
    add("PUT", path, ADMIN, "Change the configuration.", invalid, put_configuration, body=kind, reply=kind)
    path = "/configurations/policy"
    add("GET", path, ADMIN, "Show the policy.", "BadRequest", get_policy, reply=PolicyContract)
    bodies: dict[str, Any] = {"body": PolicyContract, "reply": PolicyContract}
    add("PUT", path, ADMIN, "Change the policy.", "InvalidPolicyContract", put_policy, **bodies)
    add("DELETE", path, ADMIN, "Reset the policy.", "BadRequest", reset_policy, reply=PolicyContract)


def _model_and_log_routes(routes: PersonalizerRoutes, parts: ModelAndLogs) -> None:
    async def get_model(call: Call) -> Reply:
        return Reply(200, await parts.model(call.loop), ((b"content-type", BINARY.encode()),))

    async def put_model(call: Call) -> None:
        await parts.put_model(call.loop, call.body)

    async def reset_model(call: Call) -> None:
        await parts.reset_model(call.loop)

    async def get_model_properties(call: Call) -> dict[str, Any]:
        return await parts.model_properties(call.loop)

    async def get_log_properties(call: Call) -> dict[str, Any]:
        return await parts.log_properties(call.loop)

    async def delete_logs(call: Call) -> None:
        await parts.delete_logs(call.loop)

    async def refuse(_: Call) -> NoReturn:
        message = "models here decide on the server: call rank and reward, or import dsjson with `fedres log import`"
        raise Refusal("InvalidApiAccess", message)

    add, bad = routes.add, "BadRequest"
    add("GET", "/model", ADMIN, "Export the model.", bad, get_model, reply=BINARY, query=("signed",))
    add("PUT", "/model", ADMIN, "Import a model.", "InvalidModelImportFormat", put_model, body=BINARY, status=204)
    add("DELETE", "/model", ADMIN, "Reset the model.", bad, reset_model, status=204)
    add("GET", "/model/properties", ADMIN, "When the model changed.", bad, get_model_properties, reply=JSON)
    add("GET", "/logs/properties", ADMIN, "The time of the log.", bad, get_log_properties, reply=JSON)
    for path in ("/logs/interactions", "/logs/observations"):
        about = "Refused: for local inference, which is not there."
        add("POST", path, ADMIN, about, "InvalidRequest", refuse, body=BINARY, status=204)
    add("DELETE", "/logs", ADMIN, "Leave events so far out.", bad, delete_logs, status=204)


def _evaluation_routes(
    routes: PersonalizerRoutes, jobs: Jobs, configurations: Configurations, root_path: str = ""
) -> None:
    """Declare evaluations, which the two families make and show in different ways."""

    def name(call: Call) -> str:
        return id_in(call, "evaluation_id")

    async def post(call: Call) -> Reply:
        job = await jobs.evaluate(call.loop, call.body)
        made = json_reply(encode(old_evaluation(job)), 201)
        place = address(call, f"/{call.parameters['version']}/evaluations/{job.id}", root_path)
        return Reply(made.status, made.body, (*made.headers, (b"location", place.encode())))

    async def list_old(call: Call) -> list[dict[str, Any]]:
        return [old_evaluation(job) for job in await jobs.list(call.loop, EVALUATION)]

    async def get_old(call: Call) -> dict[str, Any]:
        return old_evaluation(await jobs.get(call.loop, EVALUATION, name(call)))

    async def delete(call: Call) -> None:
        await jobs.delete(call.loop, EVALUATION, name(call))

    async def put(call: Call) -> None:
        await jobs.evaluate(call.loop, call.body, name(call))

    async def list_new(call: Call) -> dict[str, Any]:
        return page(await jobs.list(call.loop, EVALUATION), query(call), address(call, "/evaluations", root_path))

    async def get_new(call: Call) -> dict[str, Any]:
        return new_evaluation(await jobs.get(call.loop, EVALUATION, name(call)), query(call))

    async def apply(call: Call) -> None:
        policy = await jobs.policy_of(call.loop, call.body.evaluation_id, call.body.policy_name)
        await configurations.put_policy(call.loop, policy)

    add, all_of, one = routes.add, "/evaluations", "/evaluations/{evaluation_id}"
    start, show, shown = "Start an evaluation.", "Show an evaluation.", "List evaluations."
    made: dict[str, Any] = {"body": EvaluationContract, "reply": JSON, "status": 201}
    add("POST", all_of, ADMIN, start, INVALID_EVALUATION, post, (OLD,), **made)
    add("GET", all_of, ADMIN, shown, INVALID, list_old, (OLD,), reply=JSON)
    add("GET", one, ADMIN, show, INVALID, get_old, (OLD,), reply=JSON)
    add("DELETE", one, ADMIN, "Delete an evaluation.", INVALID, delete, status=204)
    new: dict[str, Any] = {"body": EvaluationContract, "query": ("api-version",)}
    add("PUT", one, ADMIN, start, INVALID_EVALUATION, put, (NEW,), **new)
    paged = ("api-version", "filter", "top", "skip", "maxpagesize")
    add("GET", all_of, ADMIN, shown, INVALID, list_new, (NEW,), reply=JSON, query=paged)
    series = ("api-version", "startTime", "endTime", "intervalInMinutes", "window")
    add("GET", one, ADMIN, show, INVALID, get_new, (NEW,), reply=JSON, query=series)
    path, about = "/configurations/applyFromEvaluation", "Take a policy of an evaluation."
    add("POST", path, ADMIN, about, "InvalidPolicyContract", apply, body=PolicyReference, status=204)


def _importance_routes(routes: PersonalizerRoutes, jobs: Jobs, root_path: str = "") -> None:
    """Declare feature importances, which are there in 2022 alone."""

    def name(call: Call) -> str:
        return id_in(call, "importance_id")

    async def put(call: Call) -> None:
        await jobs.rate_features(call.loop, call.body, name(call))

    async def get(call: Call) -> dict[str, Any]:
        return importance_shown(await jobs.get(call.loop, IMPORTANCE, name(call)))

    async def delete(call: Call) -> None:
        await jobs.delete(call.loop, IMPORTANCE, name(call))

    async def list_all(call: Call) -> dict[str, Any]:
        return page(
            await jobs.list(call.loop, IMPORTANCE), query(call), address(call, "/featureImportances", root_path)
        )

    add, all_of, one = routes.add, "/featureImportances", "/featureImportances/{importance_id}"
    new: dict[str, Any] = {"families": (NEW,), "query": ("api-version",)}
    add("PUT", one, ADMIN, "Rate features.", INVALID, put, body=FeatureImportanceContract, **new)
    add("GET", one, ADMIN, "Show the rates of features.", INVALID, get, reply=JSON, **new)
    add("DELETE", one, ADMIN, "Delete the rates of features.", INVALID, delete, status=204, **new)
    paged = ("api-version", "top", "skip", "maxpagesize")
    add("GET", all_of, ADMIN, "List rates of features.", INVALID, list_all, (NEW,), reply=JSON, query=paged)
