"""The paths of Azure's API.

Below ``/personalizer`` is the loop ``default``, below ``/loops/{loop}/personalizer`` any. Two families of versions
share most handlers: ``/personalizer/v1.0/…`` with its previews, and ``/personalizer/…`` with
``api-version=2022-09-01-preview``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn
from urllib.parse import parse_qs, quote

import msgspec
from msgspec.structs import replace

from service.admin.admin import Admin
from service.http.replies import Reply, json_reply
from service.http.request import decode
from service.http.routes import ADMIN, BINARY, JSON, RANK, Call, Routes
from service.log.records import encode
from service.plugins.personalizer.configuration import Configurations
from service.plugins.personalizer.decisions import ApplicationCalls
from service.plugins.personalizer.errors import PersonalizerErrorResponse, Refusal, failed
from service.plugins.personalizer.features import id_in
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
from service.rank.ranker import Ranker, RankerContext

PREFIXES = ("/personalizer", "/loops/{loop}/personalizer")
OLD, NEW = "/{version}", ""
BOTH = (OLD, NEW)
VERSIONS = ("v1.0", "v1.1-preview.1", "v1.1-preview.2", "v1.1-preview.3")
API_VERSION = "2022-09-01-preview"

Handler = Callable[[Call], Awaitable[Any]]
INVALID_EVALUATION, INVALID, BAD = "InvalidEvaluationContract", "InvalidContract", "BadRequest"


def personalizer_routes(context: RankerContext, ranker: Ranker, admin: Admin, root_path: str = "") -> Routes:
    """Return all routes of Azure's API; ``root_path`` is where a proxy offers them."""
    routes, configurations = PersonalizerRoutes(), Configurations(admin, Retrainer(context, admin))
    _decision_routes(routes, ApplicationCalls(context, ranker, configurations))
    _configuration_routes(routes, configurations)
    _model_and_log_routes(routes, ModelAndLogs(context, admin, configurations), admin)
    jobs = Jobs(context, configurations)
    _evaluation_routes(routes, jobs, configurations, root_path)
    _importance_routes(routes, jobs, root_path)
    return routes


def _decision_routes(routes: PersonalizerRoutes, calls: ApplicationCalls) -> None:
    add = routes.add
    to_rank: dict[str, Any] = {"limit": "rank_bytes", "status": 201}
    done: dict[str, Any] = {"status": 204, "wide": True}
    invalid_rank, invalid_reward, no_event = "InvalidRankRequest", "InvalidRewardRequest", "InvalidEventIdToActivate"

    types: dict[str, Any] = {"body": PersonalizerRankRequest, "reply": PersonalizerRankResponse, **to_rank}
    add("POST", "/rank", RANK, "Rank actions.", invalid_rank, calls.rank, **types)
    event, rewards = "/events/{event_id}", {"body": PersonalizerReward, **done}
    add("POST", f"{event}/reward", RANK, "Send a reward.", invalid_reward, calls.reward, **rewards)
    add("POST", f"{event}/activate", RANK, "Activate an event.", no_event, calls.activate, **done)

    types = {"body": MultiSlotRankRequest, "reply": MultiSlotRankResponse, **to_rank}
    add("POST", "/multislot/rank", RANK, "Rank actions for several slots.", invalid_rank, calls.rank_slots, **types)
    event, rewards = "/multislot/events/{event_id}", {"body": MultiSlotReward, **done}
    add("POST", f"{event}/reward", RANK, "Send the rewards of slots.", invalid_reward, calls.reward_slots, **rewards)
    add("POST", f"{event}/activate", RANK, "Activate a multi-slot event.", no_event, calls.activate_slots, **done)


def _configuration_routes(routes: PersonalizerRoutes, parts: Configurations) -> None:
    async def put_configuration(call: Call) -> ServiceConfiguration:
        return await parts.put_configuration(call.loop, call.body)

    async def put_policy(call: Call) -> PolicyContract:
        return await parts.put_policy(call.loop, call.body)

    add, path = routes.add, "/configurations/service"
    kind: type = ServiceConfiguration
    add("GET", path, ADMIN, "Show the configuration.", BAD, lambda call: parts.configuration(call.loop), reply=kind)
    invalid = "InvalidServiceConfiguration"
    add("PUT", path, ADMIN, "Change the configuration.", invalid, put_configuration, body=kind, reply=kind)
    path, kind, invalid = "/configurations/policy", PolicyContract, "InvalidPolicyContract"
    add("GET", path, ADMIN, "Show the policy.", BAD, lambda call: parts.policy(call.loop), reply=kind)
    add("PUT", path, ADMIN, "Change the policy.", invalid, put_policy, body=kind, reply=kind)
    add("DELETE", path, ADMIN, "Reset the policy.", BAD, lambda call: parts.reset_policy(call.loop), reply=kind)


def _model_and_log_routes(routes: PersonalizerRoutes, parts: ModelAndLogs, admin: Admin) -> None:
    async def get_model(call: Call) -> Reply:
        return Reply(200, await admin.model(call.loop), ((b"content-type", BINARY.encode()),))

    async def put_model(call: Call) -> None:
        await admin.put_model(call.loop, call.body)

    async def refuse(_: Call) -> NoReturn:
        message = "models here decide on the server: call rank and reward, or import dsjson with `fedres log import`"
        raise Refusal("InvalidApiAccess", message)

    add = routes.add
    add("GET", "/model", ADMIN, "Export the model.", BAD, get_model, reply=BINARY, query=("signed",))
    add("PUT", "/model", ADMIN, "Import a model.", "InvalidModelImportFormat", put_model, body=BINARY, status=204)
    add("DELETE", "/model", ADMIN, "Reset the model.", BAD, lambda call: parts.reset_model(call.loop), status=204)
    path, shown = "/model/properties", "When the model changed."
    add("GET", path, ADMIN, shown, BAD, lambda call: parts.model_properties(call.loop), reply=JSON)
    path, shown = "/logs/properties", "The time of the log."
    add("GET", path, ADMIN, shown, BAD, lambda call: parts.log_properties(call.loop), reply=JSON)
    for path in ("/logs/interactions", "/logs/observations"):
        shown = "Rejected: for local inference, which does not exist."
        add("POST", path, ADMIN, shown, "InvalidRequest", refuse, body=BINARY, status=204)
    shown = "Leave events so far out."
    add("DELETE", "/logs", ADMIN, shown, BAD, lambda call: parts.delete_logs(call.loop), status=204)


def _evaluation_routes(routes: PersonalizerRoutes, jobs: Jobs, configurations: Configurations, root_path: str) -> None:
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


def _importance_routes(routes: PersonalizerRoutes, jobs: Jobs, root_path: str) -> None:
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


# How they are declared, and what their handlers share


class PersonalizerRoutes(Routes):
    """Declares handlers for both families; what a handler refuses is answered in Azure's shape."""

    def add(
        self,
        method: str,
        path: str,
        roles: frozenset[str],
        summary: str,
        code: str,
        handler: Handler,
        families: tuple[str, ...] = BOTH,
        **options: Any,
    ) -> None:
        """Declare a handler of calls, whose bodies are decoded; ``code`` is that of requests which break a rule.

        It returns a reply, or what is answered in JSON, None for nothing.
        """
        paths = [prefix + family + path for prefix in PREFIXES for family in families]
        body, status = options.get("body"), options.get("status", 200)
        decoder = None if body is None or isinstance(body, str) else msgspec.json.Decoder(body)

        async def answer(call: Call) -> Reply:
            try:
                _check_version(call)
                value = await handler(call if decoder is None else replace(call, body=decode(decoder, call.body)))
            except Exception as error:
                return failed(error, code)
            if isinstance(value, Reply):
                return value
            return Reply(status) if value is None else json_reply(encode(value), status)

        options |= {"hot": True, "of_loop": True, "error": PersonalizerErrorResponse, "takes_subscription_key": True}
        options["choices"] = {"version": VERSIONS}
        self.of_paths(method, paths, roles, f"Azure Personalizer: {summary}", **options)(answer)


def _check_version(call: Call) -> None:
    version = call.parameters.get("version")
    if version is not None:
        if version not in VERSIONS:
            message = f"the version must be one of {', '.join(VERSIONS)}, got {version[:100]!r}"
            raise Refusal("ResourceNotFound", message, "version", 404)
        return
    version_sent = query(call).get("api-version", API_VERSION)
    if version_sent != API_VERSION:
        message = f"api-version must be {API_VERSION}, got {version_sent[:100]!r}"
        raise Refusal("BadRequest", message, "api-version")


def query(call: Call) -> dict[str, str]:
    """Return the parameters of a query, of one that comes twice the last."""
    return {name: values[-1] for name, values in parse_qs(call.query.decode("latin-1")).items()}


def address(call: Call, path: str, root_path: str) -> str:
    """Return the whole address of a path below the loop's ``personalizer``, as the client knows the service."""
    headers = dict(call.scope.get("headers", ()))
    host = headers.get(b"host", b"localhost").decode("latin-1")
    scheme = headers.get(b"x-forwarded-proto", b"").decode("latin-1")
    if scheme not in ("http", "https"):
        scheme = call.scope.get("scheme", "http")
    loop = f"/loops/{quote(call.parameters['loop'], safe='')}" if "loop" in call.parameters else ""
    return f"{scheme}://{host}{root_path}{loop}/personalizer{path}"
