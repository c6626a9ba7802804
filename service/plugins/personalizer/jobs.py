"""Evaluations and feature importances: started by a call, made in the background, kept in the log as notes.

Any ranker of any machine can show them. A note replaces the one before of the same kind and id. A job whose process
died stays without a result; after ``MOST_SECONDS`` it counts as timed out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from bandits.evaluation.logs import is_decision
from fedres.event_ids import new_event_id
from service.admin.exporting import exporter
from service.log.protocol import Log
from service.log.records import NOTE, Record, encode
from service.log.workers import JOB_SECONDS, Worker
from service.plugins.personalizer import evaluation
from service.plugins.personalizer.configuration import Configurations, kept_of, retained_after
from service.plugins.personalizer.durations import microseconds, read_time, show_time
from service.plugins.personalizer.errors import Refusal
from service.plugins.personalizer.evaluation import EvaluatedPolicy, feature_scores
from service.plugins.personalizer.messages import EvaluationContract, FeatureImportanceContract, PolicyContract
from service.rank.ranker import RankerContext

NAME = "azure-personalizer"  # the event of all notes
MOST_SECONDS = 3_600.0

RUNNING, SUCCEEDED, FAILED, TIMEOUT = "Running", "Succeeded", "Failed", "Timeout"
EVALUATION, IMPORTANCE = "evaluation", "importance"
OLD_STATUS = {SUCCEEDED: "completed", RUNNING: "pending", FAILED: "failed", TIMEOUT: "timeout"}
INTERVALS = (5, 60, 360, 720, 1440)
MOST_DIGITS = 10
PAGE, MOST = 100, 2**31 - 1  # items of a list in one reply, and in all, unless asked for


class Codes(NamedTuple):
    """What Azure calls mistakes about a kind of job."""

    invalid: str
    exists: str
    not_found: str


CODES = {
    EVALUATION: Codes("InvalidEvaluationContract", "EvaluationAlreadyExists", "EvaluationNotFound"),
    IMPORTANCE: Codes("InvalidContract", "FeatureImportanceAlreadyExists", "FeatureImportanceNotFound"),
}


class Span(NamedTuple):
    """Which events a job is about."""

    loop: str
    created_at: int
    after: int  # a position
    low: str  # the first moment, and the last
    high: str

    def events(self, worker: Worker) -> Iterator[dict[str, Any]]:
        """Yield those that have a reward."""
        for one in exporter(worker, self.loop, self.created_at).events(self.loop, self.after, None):
            if one["reward"] is not None and is_decision(one) and self.low <= one["time"] <= self.high:
                yield one


def has_events(worker: Worker, span: Span) -> bool:
    return next(span.events(worker), None) is not None


def rated(worker: Worker, span: Span) -> dict[str, Any]:
    """Return how important features are."""
    return {"features": feature_scores(span.events(worker))}


def evaluated(
    worker: Worker, span: Span, online: str, policies: list[dict[str, str]], optimise: bool
) -> dict[str, Any]:
    """Return what policies are worth, the best of them, and how important features are."""
    rows = list(span.events(worker))
    values = evaluation.evaluate_policies(rows, online, policies, optimise=optimise)
    return {
        "values": msgspec.to_builtins(values),
        "best": evaluation.best_policy(values),
        "features": feature_scores(rows),
    }


class Job(msgspec.Struct, kw_only=True):
    """A job and what came of it."""

    kind: str  # evaluation, importance
    id: str
    name: str
    start: str
    end: str
    created: str
    created_at: float  # seconds since 1970
    status: str = RUNNING
    description: str | None = None
    policies: list[dict[str, str]] = []  # that were asked for
    result: dict[str, Any] = {}
    deleted: bool = False


_decode = msgspec.json.Decoder(Job).decode


class Jobs:
    """Starts jobs and shows them."""

    def __init__(self, context: RankerContext, configurations: Configurations) -> None:
        self._context, self._configurations = context, configurations
        self._stored = Stored(context)
        self._tasks: set[asyncio.Task[None]] = set()

    async def evaluate(self, loop: str, contract: EvaluationContract, name: str | None = None) -> Job:
        """Start an evaluation."""
        names = [policy.name for policy in contract.policies]
        if len(set(names)) < len(names):
            raise Refusal("DuplicateCustomPolicyNames", f"policies must have different names, got {names}", "policies")
        settings = self._configurations.settings(loop)
        policies = [{"name": policy.name, "arguments": policy.arguments} for policy in contract.policies]
        job = await self._new(loop, EVALUATION, name, contract)
        job.policies = policies
        await self._start(loop, job, evaluated, kept_of(settings).arguments, policies, bool(contract.is_optimising))
        return job

    async def rate_features(self, loop: str, contract: FeatureImportanceContract, name: str) -> Job:
        """Start to work out how important features are."""
        job = await self._new(loop, IMPORTANCE, name, contract)
        await self._start(loop, job, rated)
        return job

    async def list(self, loop: str, kind: str) -> Sequence[Job]:
        return await self._stored.list(loop, kind)

    async def get(self, loop: str, kind: str, name: str) -> Job:
        job = await self._stored.find(loop, kind, name)
        if job is None:
            raise Refusal(CODES[kind].not_found, f"{kind} {name[:100]!r} does not exist", "id", 404)
        return job

    async def delete(self, loop: str, kind: str, name: str) -> None:
        job = await self.get(loop, kind, name)
        await self._stored.put(loop, msgspec.structs.replace(job, deleted=True, result={}))

    async def policy_of(self, loop: str, name: str, policy: str) -> PolicyContract:
        """Return the arguments of a policy that was evaluated."""
        job = await self.get(loop, EVALUATION, name)
        for evaluated_policy in [*job.policies, *job.result.get("values", ())]:
            if evaluated_policy["name"] == policy and evaluated_policy["arguments"]:
                return PolicyContract(policy, evaluated_policy["arguments"])
        raise Refusal(
            "LearningSettingsNotFound", f"policyName must be one of the evaluation's, got {policy!r}", "policyName", 404
        )

    async def _new(
        self, loop: str, kind: str, name: str | None, contract: EvaluationContract | FeatureImportanceContract
    ) -> Job:
        code = CODES[kind].invalid
        start, end = _moment("startTime", contract.start_time, code), _moment("endTime", contract.end_time, code)
        if start >= end:
            raise Refusal(code, f"endTime must be later than startTime, got {contract.end_time}", "endTime")
        if name is not None and await self._stored.find(loop, kind, name) is not None:
            raise Refusal(CODES[kind].exists, f"{kind} with id {name} already exists", "id")
        if not await self._context.jobs.call(has_events, await self._span(loop, start, end), seconds=JOB_SECONDS):
            raise Refusal("NoLogsExistInDateRange", "startTime and endTime must have events with rewards between them")
        now = time.time()
        return Job(
            kind=kind,
            id=name or new_event_id(),
            name=contract.name,
            start=show_time(microseconds(start)),
            end=show_time(microseconds(end)),
            created=show_time(round(now * 1e6)),
            created_at=now,
        )

    async def _start(self, loop: str, job: Job, work: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        await self._stored.put(loop, job)
        task = asyncio.create_task(self._finish(loop, job, work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, loop: str, job: Job, work: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        span = await self._span(loop, read_time(job.start), read_time(job.end))
        try:
            result = await self._context.jobs.call(work, span, *arguments, seconds=JOB_SECONDS)
            done = msgspec.structs.replace(job, status=SUCCEEDED, result=result)
        except Exception as error:
            logging.getLogger("fedres.service").warning("%s %s failed", job.kind, job.id, exc_info=error)
            done = msgspec.structs.replace(job, status=FAILED, description=str(error))
        if await self._stored.find(loop, job.kind, job.id) is not None:  # else it was deleted meanwhile
            await self._stored.put(loop, done)

    async def _span(self, loop: str, start: datetime, end: datetime) -> Span:
        created_at = self._context.loop(loop).view.created_at
        after = await retained_after(self._context, self._configurations, loop)
        low, high = (moment.astimezone(UTC).isoformat(timespec="microseconds") for moment in (start, end))
        return Span(loop, created_at, after, low, high)


def _moment(name: str, text: str, code: str) -> datetime:
    try:
        return read_time(text)
    except ValueError as error:
        raise Refusal(code, f"{name}: {error}", name) from None


# as notes in the log


class Stored:
    """The jobs of loops."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context

    async def put(self, loop: str, job: Job) -> None:
        await self._context.append(Record(loop, NOTE, NAME, body=encode(job)))

    async def list(self, loop: str, kind: str) -> list[Job]:
        """Return the jobs of a kind that were not deleted, oldest first."""
        created_at = self._context.loop(loop).view.created_at
        jobs = await self._context.look_up(lambda log: _read(log, loop, created_at))
        return [_timed_out(job) for job in jobs.values() if job.kind == kind and not job.deleted]

    async def find(self, loop: str, kind: str, name: str) -> Job | None:
        return next((job for job in await self.list(loop, kind) if job.id == name), None)


def _read(log: Log, loop: str, created_at: int) -> dict[tuple[str, str], Job]:
    jobs: dict[tuple[str, str], Job] = {}
    for entry in log.find(loop, [NAME]):
        if entry.kind == NOTE and entry.position > created_at:
            job = _decode(entry.body)
            jobs[job.kind, job.id] = job
    return jobs


def _timed_out(job: Job) -> Job:
    if job.status == RUNNING and time.time() > job.created_at + MOST_SECONDS:
        return msgspec.structs.replace(job, status=TIMEOUT, description="the process that worked on it is gone")
    return job


# as they are shown


def summary(job: Job) -> dict[str, Any]:
    """Return what lists of 2022 show of a job."""
    shown = {"id": job.id, "name": job.name, "startTime": job.start, "endTime": job.end, "creationTime": job.created}
    shown |= {"status": job.status}
    return shown | ({"evaluationType": "Manual"} if job.kind == EVALUATION else {})


def _values(job: Job) -> list[EvaluatedPolicy]:
    return msgspec.convert(job.result.get("values", []), list[EvaluatedPolicy])


def new_evaluation(job: Job, query: dict[str, str]) -> dict[str, Any]:
    """Return an evaluation as 2022 shows it, with the time series that a query asks for."""
    invalid = "InvalidRequest"
    start = _moment("startTime", query.get("startTime", job.start), invalid)
    end = _moment("endTime", query.get("endTime", job.end), invalid)
    window = query.get("window", "Expanding")
    minutes = query.get("intervalInMinutes", "5")
    if window not in ("Expanding", "Rolling"):
        raise Refusal(invalid, f"window must be Expanding or Rolling, got {window[:100]!r}", "window")
    if minutes not in map(str, INTERVALS):
        raise Refusal(
            invalid, f"intervalInMinutes must be one of {INTERVALS}, got {minutes[:100]}", "intervalInMinutes"
        )
    value = evaluation.new_results(
        _values(job), microseconds(start), microseconds(end), int(minutes), rolling=window == "Rolling"
    )
    content = {
        "startTime": show_time(microseconds(start)),
        "endTime": show_time(microseconds(end)),
        "intervalInMinutes": int(minutes),
        "value": value,
    }
    shown = {**summary(job), "optimalPolicy": job.result.get("best", ""), "content": content}
    return shown if job.description is None else {**shown, "description": job.description}


def old_evaluation(job: Job) -> dict[str, Any]:
    """Return an evaluation as v1.x shows it."""
    results = evaluation.old_results(_values(job), job.end)
    if job.status != SUCCEEDED:
        results = [{**policy, "policySource": "Custom", "summary": []} for policy in job.policies]
    features = [[f"{one['namespace']}.{one['featureName']}"] for one in job.result.get("features", ())]
    return {
        "id": job.id,
        "name": job.name,
        "startTime": job.start,
        "endTime": job.end,
        "jobId": job.id,
        "status": OLD_STATUS[job.status],
        "policyResults": results,
        "featureImportance": features,
        "evaluationType": "Manual",
        "optimalPolicy": job.result.get("best", ""),
        "creationTime": job.created,
    }


def importance_shown(job: Job) -> dict[str, Any]:
    """Return a feature importance."""
    shown = {**summary(job), "featureScores": job.result.get("features", [])}
    return shown if job.description is None else {**shown, "description": job.description}


def page(jobs: Sequence[Job], query: dict[str, str], address: str) -> dict[str, Any]:
    """Return a list of 2022: at most ``maxpagesize`` of the ``top`` jobs behind ``skip``, and where the next ones are.

    A filter names the type of evaluations; there are only manual ones.
    """
    kind = query.get("filter", "").rpartition(" ")[2].strip("'\"")
    chosen = [job for job in jobs if kind in ("", "Manual")]
    skip, top, size = _whole("skip", query, 0), _whole("top", query, MOST), _whole("maxpagesize", query, PAGE)
    if not size:
        raise Refusal("InvalidRequest", "maxpagesize must be at least 1, got 0", "maxpagesize")
    shown: dict[str, Any] = {"value": [summary(job) for job in chosen[skip : skip + min(top, size)]]}
    if top > size and len(chosen) > skip + size:
        following = {**query, "top": top - size, "skip": skip + size, "maxpagesize": size}
        shown["nextLink"] = f"{address}?{urlencode(following)}"
    return shown


def _whole(name: str, query: dict[str, str], default: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise Refusal(
            "InvalidRequest", f"{name} must be a whole number of at most {MOST_DIGITS} digits, got {text[:100]!r}", name
        )
    return int(text)
