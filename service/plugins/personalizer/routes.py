"""The paths of Azure's API.

Below ``/personalizer`` is the loop ``default``, below ``/loops/{loop}/personalizer`` any. Two families of versions
share most handlers: ``/personalizer/v1.0/…`` with its previews, and ``/personalizer/…`` with
``api-version=2022-09-01-preview``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn
from urllib.parse import parse_qsl, quote

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
    Job,
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


def personalizer_routes(context: RankerContext, ranker: Ranker, admin: Admin, root_path: str) -> Routes:
    """Return all routes of Azure's API; ``root_path`` is the path below which a proxy serves them."""
    routes, configurations = PersonalizerRoutes(), Configurations(admin, Retrainer(context, admin))
    _decision_routes(routes, ApplicationCalls(context, ranker))
    _configuration_routes(routes, configurations)
    _model_and_log_routes(routes, ModelAndLogs(context, admin, configurations), admin)
    _job_routes(routes, Jobs(context), configurations, root_path)
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
    add, path = routes.add, "/configurations/service"
    kind: type = ServiceConfiguration
    add("GET", path, ADMIN, "Show the configuration.", BAD, _of_loop(parts.configuration), reply=kind)
    change, invalid = _with_body(parts.put_configuration), "InvalidServiceConfiguration"
    add("PUT", path, ADMIN, "Change the configuration.", invalid, change, body=kind, reply=kind)
    path, kind = "/configurations/policy", PolicyContract
    add("GET", path, ADMIN, "Show the policy.", BAD, _of_loop(parts.policy), reply=kind)
    change, invalid = _with_body(parts.put_policy), "InvalidPolicyContract"
    add("PUT", path, ADMIN, "Change the policy.", invalid, change, body=kind, reply=kind)
    add("DELETE", path, ADMIN, "Reset the policy.", BAD, _of_loop(parts.reset_policy), reply=kind)


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
    add("DELETE", "/model", ADMIN, "Reset the model.", BAD, _of_loop(parts.reset_model), status=204)
    changed, shown = _of_loop(parts.model_properties), _of_loop(parts.log_properties)
    add("GET", "/model/properties", ADMIN, "When the model changed.", BAD, changed, reply=JSON)
    add("GET", "/logs/properties", ADMIN, "The time of the log.", BAD, shown, reply=JSON)
    for path in ("/logs/interactions", "/logs/observations"):
        about = "Rejected: for local inference, which does not exist."
        add("POST", path, ADMIN, about, "InvalidRequest", refuse, body=BINARY, status=204)
    add("DELETE", "/logs", ADMIN, "Leave events so far out.", BAD, _of_loop(parts.delete_logs), status=204)


def _job_routes(routes: PersonalizerRoutes, jobs: Jobs, configurations: Configurations, root_path: str) -> None:
    """Declare evaluations, whose requests and replies differ by family, and feature importances of 2022."""

    async def post(call: Call) -> Reply:
        job = await jobs.evaluate(call.loop, call.body)
        made = json_reply(encode(old_evaluation(job)), 201)
        place = address(call, f"/{call.parameters['version']}/evaluations/{job.id}", root_path)
        return Reply(made.status, made.body, (*made.headers, (b"location", place.encode())))

    async def put(kind: str, start: Callable[..., Awaitable[object]], call: Call) -> None:
        await start(call.loop, call.body, id_in(call, f"{kind}_id"))

    async def get(kind: str, shown: Callable[[Job, dict[str, str]], dict[str, Any]], call: Call) -> dict[str, Any]:
        return shown(await jobs.get(call.loop, kind, id_in(call, f"{kind}_id")), query(call))

    async def delete(kind: str, call: Call) -> None:
        await jobs.delete(call.loop, kind, id_in(call, f"{kind}_id"))

    async def list_old(call: Call) -> list[dict[str, Any]]:
        return [old_evaluation(job) for job in await jobs.list(call.loop, EVALUATION)]

    async def list_new(kind: str, path: str, call: Call) -> dict[str, Any]:
        return page(await jobs.list(call.loop, kind), query(call), address(call, path, root_path))

    async def apply(call: Call) -> None:
        policy = await jobs.policy_of(call.loop, call.body.evaluation_id, call.body.policy_name)
        await configurations.put_policy(call.loop, policy)

    add, kind, path, single = routes.add, EVALUATION, "/evaluations", "/evaluations/{evaluation_id}"
    start, show, shown = "Start an evaluation.", "Show an evaluation.", "List evaluations."
    version, paging = ("api-version",), ("top", "skip", "maxpagesize")
    made: dict[str, Any] = {"body": EvaluationContract, "reply": JSON, "status": 201}
    add("POST", path, ADMIN, start, INVALID_EVALUATION, post, (OLD,), **made)
    add("GET", path, ADMIN, shown, INVALID, list_old, (OLD,), reply=JSON)
    add("GET", single, ADMIN, show, INVALID, partial(get, kind, old_evaluation), (OLD,), reply=JSON)
    add("DELETE", single, ADMIN, "Delete an evaluation.", INVALID, partial(delete, kind), status=204)
    new: dict[str, Any] = {"body": EvaluationContract, "query": version}
    add("PUT", single, ADMIN, start, INVALID_EVALUATION, partial(put, kind, jobs.evaluate), (NEW,), **new)
    new = {"reply": JSON, "query": (*version, "filter", *paging)}
    add("GET", path, ADMIN, shown, INVALID, partial(list_new, kind, path), (NEW,), **new)
    new["query"] = (*version, "startTime", "endTime", "intervalInMinutes", "window")
    add("GET", single, ADMIN, show, INVALID, partial(get, kind, new_evaluation), (NEW,), **new)
    apply_from, about = "/configurations/applyFromEvaluation", "Take a policy of an evaluation."
    add("POST", apply_from, ADMIN, about, "InvalidPolicyContract", apply, body=PolicyReference, status=204)

    kind, path, single = IMPORTANCE, "/featureImportances", "/featureImportances/{importance_id}"
    new = {"families": (NEW,), "query": version}
    rate = partial(put, kind, jobs.rate_features)
    add("PUT", single, ADMIN, "Rate features.", INVALID, rate, body=FeatureImportanceContract, **new)
    show = "Show the rates of features."
    add("GET", single, ADMIN, show, INVALID, partial(get, kind, importance_shown), reply=JSON, **new)
    add("DELETE", single, ADMIN, "Delete the rates of features.", INVALID, partial(delete, kind), status=204, **new)
    new = {"reply": JSON, "query": (*version, *paging)}
    add("GET", path, ADMIN, "List rates of features.", INVALID, partial(list_new, kind, path), (NEW,), **new)


# Declaration of these routes, and helpers of their handlers


class PersonalizerRoutes(Routes):
    """Declares handlers for both families; error replies have Azure's shape."""

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
        """Declare a handler of calls with decoded bodies; ``code`` is the error code of invalid requests.

        It returns a reply, or an object to send as JSON, or None for no content.
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


def _of_loop(function: Callable[[str], Awaitable[Any]]) -> Handler:
    return lambda call: function(call.loop)


def _with_body(function: Callable[[str, Any], Awaitable[Any]]) -> Handler:
    return lambda call: function(call.loop, call.body)


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
    """Return the parameters of a query, the last one if repeated."""
    return dict(parse_qsl(call.query.decode("latin-1")))


def address(call: Call, path: str, root_path: str) -> str:
    """Return the full URL of a path below the loop's ``personalizer``, with the host that the client used."""
    headers = dict(call.scope.get("headers", ()))
    host = headers.get(b"host", b"localhost").decode("latin-1")
    scheme = headers.get(b"x-forwarded-proto", b"").decode("latin-1")
    if scheme not in ("http", "https"):
        scheme = call.scope.get("scheme", "http")
    loop = f"/loops/{quote(call.parameters['loop'], safe='')}" if "loop" in call.parameters else ""
    return f"{scheme}://{host}{root_path}{loop}/personalizer{path}"
