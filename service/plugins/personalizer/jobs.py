"""Evaluations and feature importances: started by a call, computed in the background, stored in the log as notes.

Any ranker of any machine can return them. A note replaces the previous one of the same kind and id. A job whose
process died has no result; after ``MOST_SECONDS`` it counts as timed out.
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
from fedres_client.event_ids import new_event_id
from service.admin.exporting import exporter
from service.log.protocol import Log
from service.log.records import NOTE, Record, encode
from service.log.workers import JOB_SECONDS, Worker
from service.logs import log_failure
from service.plugins.personalizer.configuration import kept_of, retained_after
from service.plugins.personalizer.durations import microseconds, read_as, read_time, show_time
from service.plugins.personalizer.errors import Refusal
from service.plugins.personalizer.evaluation import (
    EvaluatedPolicy,
    evaluate_policies,
    feature_scores,
    new_results,
    old_results,
)
from service.plugins.personalizer.messages import EvaluationContract, FeatureImportanceContract, PolicyContract
from service.rank.ranker import RankerContext

NAME = "azure-personalizer"  # the event of all notes
MOST_SECONDS = 3_600.0

RUNNING, SUCCEEDED, FAILED, TIMEOUT = "Running", "Succeeded", "Failed", "Timeout"
EVALUATION, IMPORTANCE = "evaluation", "importance"
OLD_STATUS = {SUCCEEDED: "completed", RUNNING: "pending", FAILED: "failed", TIMEOUT: "timeout"}
INTERVALS = (5, 60, 360, 720, 1440)
MOST_DIGITS = 10
PAGE, MOST = 100, 2**31 - 1  # items of a list in one reply, and in all, by default


class Codes(NamedTuple):
    """Azure's error codes for a kind of job."""

    invalid: str
    exists: str
    not_found: str


CODES = {
    EVALUATION: Codes("InvalidEvaluationContract", "EvaluationAlreadyExists", "EvaluationNotFound"),
    IMPORTANCE: Codes("InvalidContract", "FeatureImportanceAlreadyExists", "FeatureImportanceNotFound"),
}


class Span(NamedTuple):
    """The events of a job."""

    created_at: int
    after: int  # a position
    low: str  # the first moment, and the last
    high: str

    def events(self, worker: Worker, loop: str) -> Iterator[dict[str, Any]]:
        """Yield those of a loop with a reward."""
        for event in exporter(worker, loop, self.created_at).events(loop, self.after, None):
            if event["reward"] is not None and is_decision(event) and self.low <= event["time"] <= self.high:
                yield event


class JobResult(msgspec.Struct, omit_defaults=True):
    """What came of a job; a feature importance has features alone."""

    values: list[EvaluatedPolicy] = []
    best: str = ""
    features: list[dict[str, Any]] = []


def has_events(worker: Worker, loop: str, span: Span) -> bool:
    return next(span.events(worker, loop), None) is not None


def rated(worker: Worker, loop: str, span: Span) -> JobResult:
    """Return the importance of features."""
    return JobResult(features=feature_scores(span.events(worker, loop)))


def evaluated(
    worker: Worker, loop: str, span: Span, online: str, policies: list[PolicyContract], optimise: bool
) -> JobResult:
    """Return the policies' values, the best policy (the online one wins ties), and the importance of features."""
    rows = list(span.events(worker, loop))
    values = evaluate_policies(rows, online, policies, optimise=optimise)
    return JobResult(values, max(values, key=lambda policy: policy.value).name, feature_scores(rows))


class Job(msgspec.Struct, kw_only=True):
    """A job and the result."""

    kind: str  # evaluation, importance
    id: str
    name: str
    start: str
    end: str
    created: str
    created_at: float  # seconds since 1970
    status: str = RUNNING
    description: str | None = None
    policies: list[PolicyContract] = []  # to evaluate in addition to the usual ones
    result: JobResult = msgspec.field(default_factory=JobResult)
    deleted: bool = False


_decode = msgspec.json.Decoder(Job).decode


class Jobs:
    """Starts jobs and shows them."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()

    async def evaluate(self, loop: str, contract: EvaluationContract, name: str | None = None) -> Job:
        """Start an evaluation."""
        names = [policy.name for policy in contract.policies]
        if len(set(names)) < len(names):
            raise Refusal("DuplicateCustomPolicyNames", f"policies must have different names, got {names}", "policies")
        online = kept_of(self._context.loop(loop).view.settings).arguments
        optimise = bool(contract.enable_offline_experimentation or contract.enable_policy_optimization)
        job = await self._new(loop, EVALUATION, name, contract)
        job.policies = contract.policies
        await self._start(loop, job, evaluated, online, contract.policies, optimise)
        return job

    async def rate_features(self, loop: str, contract: FeatureImportanceContract, name: str) -> None:
        """Start to compute the importance of features."""
        await self._start(loop, await self._new(loop, IMPORTANCE, name, contract), rated)

    async def list(self, loop: str, kind: str) -> Sequence[Job]:
        """Return the jobs of a kind that were not deleted, oldest first."""
        created_at = self._context.loop(loop).view.created_at
        jobs = await self._context.look_up(loop, lambda log: _read(log, loop, kind, created_at))
        return [job for job in jobs.values() if not job.deleted]

    async def get(self, loop: str, kind: str, name: str) -> Job:
        job = await self._find(loop, kind, name)
        if job is None:
            raise Refusal(CODES[kind].not_found, f"{kind} {name[:100]!r} does not exist", "id", 404)
        return job

    async def delete(self, loop: str, kind: str, name: str) -> None:
        job = await self.get(loop, kind, name)
        await self._put(loop, msgspec.structs.replace(job, deleted=True, result=JobResult()))

    async def policy_of(self, loop: str, name: str, policy: str) -> PolicyContract:
        """Return the arguments of a policy that was evaluated."""
        job = await self.get(loop, EVALUATION, name)
        offered: list[PolicyContract | EvaluatedPolicy] = [*job.policies, *job.result.values]
        for each in offered:
            if each.name == policy and each.arguments:
                return PolicyContract(policy, each.arguments)
        message = f"policyName must be one of the evaluation's, got {policy!r}"
        raise Refusal("LearningSettingsNotFound", message, "policyName", 404)

    async def _find(self, loop: str, kind: str, name: str) -> Job | None:
        return next((job for job in await self.list(loop, kind) if job.id == name), None)

    async def _put(self, loop: str, job: Job) -> None:
        await self._context.append(Record(loop, NOTE, NAME, body=encode(job)))

    async def _new(self, loop: str, kind: str, name: str | None, contract: FeatureImportanceContract) -> Job:
        code = CODES[kind].invalid
        start = read_as(read_time, "startTime", contract.start_time, code)
        end = read_as(read_time, "endTime", contract.end_time, code)
        if start >= end:
            raise Refusal(code, f"endTime must be later than startTime, got {contract.end_time}", "endTime")
        if name is not None and await self._find(loop, kind, name) is not None:
            raise Refusal(CODES[kind].exists, f"{kind} with id {name} already exists", "id")
        span = await self._span(loop, start, end)
        if not await self._context.jobs.call(loop, has_events, span, seconds=JOB_SECONDS):
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

    async def _start(self, loop: str, job: Job, work: Callable[..., JobResult], *arguments: Any) -> None:
        await self._put(loop, job)
        task = asyncio.create_task(self._finish(loop, job, work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure)

    async def _finish(self, loop: str, job: Job, work: Callable[..., JobResult], *arguments: Any) -> None:
        span = await self._span(loop, read_time(job.start), read_time(job.end))
        try:
            result = await self._context.jobs.call(loop, work, span, *arguments, seconds=JOB_SECONDS)
            done = msgspec.structs.replace(job, status=SUCCEEDED, result=result)
        except Exception as error:
            logging.getLogger("fedres.service").warning("%s %s failed", job.kind, job.id, exc_info=error)
            done = msgspec.structs.replace(job, status=FAILED, description=str(error))
        if await self._find(loop, job.kind, job.id) is not None:  # else it was deleted meanwhile
            await self._put(loop, done)

    async def _span(self, loop: str, start: datetime, end: datetime) -> Span:
        created_at = self._context.loop(loop).view.created_at
        after = await retained_after(self._context, loop)
        low, high = (moment.astimezone(UTC).isoformat(timespec="microseconds") for moment in (start, end))
        return Span(created_at, after, low, high)


def _read(log: Log, loop: str, kind: str, created_at: int) -> dict[str, Job]:
    """Return the newest note of each job of a kind, by id."""
    jobs: dict[str, Job] = {}
    for entry in log.find(loop, [NAME], NOTE):
        if entry.position > created_at:
            job = _decode(entry.body)
            if job.kind == kind:
                jobs[job.id] = job
    for job in jobs.values():
        if job.status == RUNNING and time.time() > job.created_at + MOST_SECONDS:
            job.status, job.description = TIMEOUT, "the process that worked on it is gone"
    return jobs


# jobs in Azure's shapes


def summary(job: Job) -> dict[str, Any]:
    """Return a job as in lists of 2022."""
    shown = {"id": job.id, "name": job.name, "startTime": job.start, "endTime": job.end, "creationTime": job.created}
    shown |= {"status": job.status}
    return shown | ({"evaluationType": "Manual"} if job.kind == EVALUATION else {})


def _details(job: Job, **more: Any) -> dict[str, Any]:
    """Return the details of a job in 2022."""
    return {**summary(job), **more} | ({} if job.description is None else {"description": job.description})


def new_evaluation(job: Job, query: dict[str, str]) -> dict[str, Any]:
    """Return an evaluation in the format of 2022, with the requested time series."""
    invalid = "InvalidRequest"
    start = microseconds(read_as(read_time, "startTime", query.get("startTime", job.start), invalid))
    end = microseconds(read_as(read_time, "endTime", query.get("endTime", job.end), invalid))
    window = query.get("window", "Expanding")
    minutes = query.get("intervalInMinutes", "5")
    if window not in ("Expanding", "Rolling"):
        raise Refusal(invalid, f"window must be Expanding or Rolling, got {window[:100]!r}", "window")
    if minutes not in map(str, INTERVALS):
        message = f"intervalInMinutes must be one of {INTERVALS}, got {minutes[:100]}"
        raise Refusal(invalid, message, "intervalInMinutes")
    content = {
        "startTime": show_time(start),
        "endTime": show_time(end),
        "intervalInMinutes": int(minutes),
        "value": new_results(job.result.values, start, end, int(minutes), rolling=window == "Rolling"),
    }
    return _details(job, optimalPolicy=job.result.best, content=content)


def old_evaluation(job: Job, _: object = None) -> dict[str, Any]:
    """Return an evaluation in the format of v1.x."""
    results = old_results(job.result.values, job.end)
    if job.status != SUCCEEDED:
        results = [{**msgspec.to_builtins(each), "policySource": "Custom", "summary": []} for each in job.policies]
    return {
        "id": job.id,
        "name": job.name,
        "startTime": job.start,
        "endTime": job.end,
        "jobId": job.id,
        "status": OLD_STATUS[job.status],
        "policyResults": results,
        "featureImportance": [[f"{each['namespace']}.{each['featureName']}"] for each in job.result.features],
        "evaluationType": "Manual",
        "optimalPolicy": job.result.best,
        "creationTime": job.created,
    }


def importance_shown(job: Job, _: object = None) -> dict[str, Any]:
    """Return a feature importance."""
    return _details(job, featureScores=job.result.features)


def page(jobs: Sequence[Job], query: dict[str, str], address: str) -> dict[str, Any]:
    """Return a list of 2022: at most ``maxpagesize`` of the ``top`` jobs behind ``skip``, and where the next ones are.

    A filter names the type of evaluations; there are only manual ones.
    """
    kind = query.get("filter", "").rpartition(" ")[2].strip("'\"")
    chosen = jobs if kind in ("", "Manual") else []
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
        message = f"{name} must be a whole number of at most {MOST_DIGITS} digits, got {text[:100]!r}"
        raise Refusal("InvalidRequest", message, name)
    return int(text)
