"""The paths of models, logs, evaluations and feature importances."""

from __future__ import annotations

from typing import Any

from service.http.replies import NO_CONTENT, Reply
from service.http.routes import ADMIN, BINARY, JSON, Call
from service.plugins.personalizer.configuration import Configurations
from service.plugins.personalizer.errors import Refusal
from service.plugins.personalizer.jobs import Jobs, importance_shown, new_evaluation, old_evaluation, page
from service.plugins.personalizer.messages import EvaluationContract, FeatureImportanceContract, PolicyReference
from service.plugins.personalizer.model_and_logs import ModelAndLogs
from service.plugins.personalizer.routing import NEW, OLD, PersonalizerRoutes, address, answered, id_in, query, reader

INVALID_EVALUATION, INVALID = "InvalidEvaluationContract", "InvalidContract"


def model_and_log_routes(routes: PersonalizerRoutes, parts: ModelAndLogs) -> None:
    """Declare what is about models and logs."""

    @routes.of("GET", "/model", ADMIN, "Export the model.", "BadRequest", reply=BINARY, query=("signed",))
    async def get_model(call: Call) -> Reply:
        return Reply(200, await parts.model(call.loop), ((b"content-type", BINARY.encode()),))

    @routes.of(
        "PUT",
        "/model",
        ADMIN,
        "Import a model.",
        "InvalidModelImportFormat",
        body=BINARY,
        status=204,
    )
    async def put_model(call: Call) -> Reply:
        await parts.put_model(call.loop, call.body)
        return NO_CONTENT

    @routes.of("DELETE", "/model", ADMIN, "Reset the model.", "BadRequest", status=204)
    async def reset_model(call: Call) -> Reply:
        await parts.reset_model(call.loop)
        return NO_CONTENT

    @routes.of("GET", "/model/properties", ADMIN, "When the model changed.", "BadRequest", reply=JSON)
    async def get_model_properties(call: Call) -> Reply:
        return answered(await parts.model_properties(call.loop))

    @routes.of("GET", "/logs/properties", ADMIN, "The time of the log.", "BadRequest", reply=JSON)
    async def get_log_properties(call: Call) -> Reply:
        return answered(await parts.log_properties(call.loop))

    async def refuse(call: Call) -> Reply:
        message = "models here decide on the server: call rank and reward, or import dsjson with `fedres log import`"
        raise Refusal("InvalidApiAccess", message)

    for path in ("/logs/interactions", "/logs/observations"):
        about = "Refused: for local inference, which is not there."
        routes.of("POST", path, ADMIN, about, "InvalidRequest", body=BINARY, status=204)(refuse)

    @routes.of("DELETE", "/logs", ADMIN, "Leave events so far out.", "BadRequest", status=204)
    async def delete_logs(call: Call) -> Reply:
        await parts.delete_logs(call.loop)
        return NO_CONTENT


def evaluation_routes(
    routes: PersonalizerRoutes, jobs: Jobs, configurations: Configurations, root_path: str = ""
) -> None:
    """Declare evaluations, which the two families make and show in different ways."""
    read, one, name = reader(EvaluationContract), "/evaluations/{evaluation_id}", "evaluation_id"
    read_reference = reader(PolicyReference)

    @routes.of(
        "POST",
        "/evaluations",
        ADMIN,
        "Start an evaluation.",
        INVALID_EVALUATION,
        (OLD,),
        body=EvaluationContract,
        reply=JSON,
        status=201,
    )
    async def post_evaluation(call: Call) -> Reply:
        job = await jobs.evaluate(call.loop, read(call))
        made = answered(old_evaluation(job), 201)
        place = address(call, f"/{call.parameters['version']}/evaluations/{job.id}", root_path)
        return Reply(made.status, made.body, (*made.headers, (b"location", place.encode())))

    @routes.of("GET", "/evaluations", ADMIN, "List evaluations.", INVALID, (OLD,), reply=JSON)
    async def list_old(call: Call) -> Reply:
        return answered([old_evaluation(job) for job in await jobs.evaluations(call.loop)])

    @routes.of("GET", one, ADMIN, "Show an evaluation.", INVALID, (OLD,), reply=JSON)
    async def get_old(call: Call) -> Reply:
        return answered(old_evaluation(await jobs.evaluation(call.loop, id_in(call, name))))

    @routes.of("DELETE", one, ADMIN, "Delete an evaluation.", INVALID, status=204)
    async def delete(call: Call) -> Reply:
        await jobs.delete_evaluation(call.loop, id_in(call, name))
        return NO_CONTENT

    @routes.of(
        "PUT",
        one,
        ADMIN,
        "Start an evaluation.",
        INVALID_EVALUATION,
        (NEW,),
        body=EvaluationContract,
        query=("api-version",),
    )
    async def put_evaluation(call: Call) -> Reply:
        await jobs.evaluate(call.loop, read(call), id_in(call, name))
        return Reply(200)

    @routes.of(
        "GET",
        "/evaluations",
        ADMIN,
        "List evaluations.",
        INVALID,
        (NEW,),
        reply=JSON,
        query=("api-version", "filter", "top", "skip", "maxpagesize"),
    )
    async def list_new(call: Call) -> Reply:
        own = address(call, "/evaluations", root_path)
        return answered(page(await jobs.evaluations(call.loop), query(call), own))

    @routes.of(
        "GET",
        one,
        ADMIN,
        "Show an evaluation.",
        INVALID,
        (NEW,),
        reply=JSON,
        query=("api-version", "startTime", "endTime", "intervalInMinutes", "window"),
    )
    async def get_new(call: Call) -> Reply:
        return answered(new_evaluation(await jobs.evaluation(call.loop, id_in(call, name)), query(call)))

    @routes.of(
        "POST",
        "/configurations/applyFromEvaluation",
        ADMIN,
        "Take a policy of an evaluation.",
        "InvalidPolicyContract",
        body=PolicyReference,
        status=204,
    )
    async def apply(call: Call) -> Reply:
        wanted = read_reference(call)
        policy = await jobs.policy_of(call.loop, wanted.evaluation_id, wanted.policy_name)
        await configurations.put_policy(call.loop, policy)
        return NO_CONTENT


def importance_routes(routes: PersonalizerRoutes, jobs: Jobs, root_path: str = "") -> None:
    """Declare feature importances, which are there in 2022 alone."""
    read, one = reader(FeatureImportanceContract), "/featureImportances/{importance_id}"
    version: dict[str, Any] = {"families": (NEW,), "query": ("api-version",)}

    def name(call: Call) -> str:
        return id_in(call, "importance_id")

    @routes.of("PUT", one, ADMIN, "Rate features.", INVALID, body=FeatureImportanceContract, **version)
    async def put(call: Call) -> Reply:
        await jobs.rate_features(call.loop, read(call), name(call))
        return Reply(200)

    @routes.of("GET", one, ADMIN, "Show the rates of features.", INVALID, reply=JSON, **version)
    async def get(call: Call) -> Reply:
        return answered(importance_shown(await jobs.importance(call.loop, name(call))))

    @routes.of("DELETE", one, ADMIN, "Delete the rates of features.", INVALID, status=204, **version)
    async def delete(call: Call) -> Reply:
        await jobs.delete_importance(call.loop, name(call))
        return NO_CONTENT

    @routes.of(
        "GET",
        "/featureImportances",
        ADMIN,
        "List rates of features.",
        INVALID,
        (NEW,),
        reply=JSON,
        query=("api-version", "top", "skip", "maxpagesize"),
    )
    async def list_all(call: Call) -> Reply:
        own = address(call, "/featureImportances", root_path)
        return answered(page(await jobs.importances(call.loop), query(call), own))
