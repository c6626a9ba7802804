"""A loop's configuration and policy in Azure's words. They are the loop's settings; what has no native counterpart
(names, log retention, Auto-Optimize) is kept with them as an annotation.
"""

from __future__ import annotations

import asyncio
import math
import time
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from service import times
from service.admin.admin import Admin
from service.errors import ApiError
from service.learn.pruning import last_before
from service.models.table import model_kind
from service.plugins.personalizer.arguments import (
    AZURE_RATE,
    DEFAULT_ARGUMENTS,
    DEFAULT_EPSILON,
    PolicyArguments,
    read_arguments,
    with_epsilon,
)
from service.plugins.personalizer.durations import iso_duration, read_duration, read_time, show_duration, show_time
from service.plugins.personalizer.errors import Refusal
from service.plugins.personalizer.messages import PolicyContract, ServiceConfiguration
from service.plugins.personalizer.retraining import Retrainer
from service.rank.ranker import RankerContext
from service.settings import LONGEST_RETENTION, LONGEST_WAIT, Settings

ANNOTATION = "azure-personalizer"
SHORTEST_WAIT = 5.0  # seconds
DAY = 86_400.0
INVALID = "InvalidServiceConfiguration"
MODES = ("Online", "Apprentice", "LoggingOnly")
RETRAIN = ("wait_time", "default_reward", "aggregation", "epsilon")  # a change of these trains the model again
AGGREGATIONS = ("earliest", "sum", "average")


class Kept(msgspec.Struct, omit_defaults=True):
    """What Azure's API shows and the native settings do not have."""

    policy_name: str = "default"
    arguments: str = DEFAULT_ARGUMENTS
    learning_mode: str = "Online"
    model_export_frequency: str = "PT5M"
    log_retention_days: int = 90
    model_retrain_days: int = 2
    log_mirror_enabled: bool | None = None
    log_mirror_sas_uri: str | None = None
    last_configuration_edit_date: str | None = None
    is_auto_optimization_enabled: bool = False
    auto_optimization_frequency: str | None = None
    auto_optimization_start_date: str | None = None
    is_inference_explainability_enabled: bool = False
    logs_after: int = 0  # position of the log up to which events were deleted
    native: bool = False  # the loop's settings are not Azure's: no admin has changed its configuration or policy


@lru_cache(maxsize=1_000)
def _read_kept(text: str) -> Kept:
    return msgspec.json.decode(text, type=Kept)


def kept_of(settings: Settings) -> Kept:
    """Return what is kept with a loop's settings; of a native loop, what its settings mean in Azure's words."""
    text = settings.annotations.get(ANNOTATION)
    if text is not None:
        return _read_kept(text)
    kept = Kept(learning_mode="Apprentice" if settings.apprentice else "Online", native=True)
    if settings.policy == "epsilon-greedy":
        kept.arguments = with_epsilon(kept.arguments, settings.epsilon)
    return kept


def arguments_of(settings: Settings) -> PolicyArguments:
    """Return what the arguments of a loop's policy mean."""
    return read_arguments(kept_of(settings).arguments)


def azure_settings(settings: Settings | None = None) -> Settings:
    """Return Azure's defaults, but for what the owner of a loop has chosen."""
    base = settings or Settings()
    low, high = base.reward_range
    changes: dict[str, Any] = {"reward_range": (min(low, -1.0), max(high, 1.0)), "wait_from": "rank"}
    if base == Settings():
        changes |= {"policy": "epsilon-greedy", "epsilon": DEFAULT_EPSILON}
    kept = msgspec.structs.replace(kept_of(base), native=False)
    return msgspec.structs.replace(base, **changes, annotations=_annotated(base, kept))


def _annotated(settings: Settings, kept: Kept) -> dict[str, str]:
    return {**settings.annotations, ANNOTATION: msgspec.json.encode(kept).decode()}


class Configurations:
    """Reads and changes the configuration of loops."""

    def __init__(self, admin: Admin, retrainer: Retrainer | None = None) -> None:
        self._admin, self._retrainer = admin, retrainer
        self._changing = asyncio.Lock()

    def settings(self, loop: str) -> Settings:
        """Return the settings of a loop as they are: only ``adopted`` gives it Azure's."""
        return self._admin.settings(loop)[1]

    async def adopted(self, loop: str) -> Settings:
        """Return the settings of a loop, and give a native one Azure's first: for changes by admins, which are audited.

        A loop whose owner has chosen settings keeps them, but for rewards, which are in [−1, 1] then, and for wait
        times, which count from the rank call.
        """
        async with self._changing:
            settings = self.settings(loop)
            if kept_of(settings).native:
                await self._adopt(loop, settings)
            return self.settings(loop)

    async def _adopt(self, loop: str, settings: Settings) -> None:
        await self._admin.put_settings(loop, msgspec.to_builtins(azure_settings(settings)))
        adopted = self._admin.settings(loop)[1]
        fresh = model_kind(adopted).new(adopted).to_bytes()
        if fresh != model_kind(settings).new(settings).to_bytes() and self._admin.has_learned_nothing(loop):
            await self._admin.put_model(loop, fresh)  # it depends on the range of the rewards

    async def _put(self, loop: str, settings: Settings, kept: Kept, **changes: Any) -> None:
        annotations = _annotated(settings, kept)
        await self._admin.put_settings(loop, {**msgspec.to_builtins(settings), **changes, "annotations": annotations})

    async def keep(self, loop: str, **changes: Any) -> None:
        """Change only what is kept."""
        settings = self.settings(loop)
        await self._put(loop, settings, msgspec.structs.replace(kept_of(settings), **changes))

    # the service configuration

    async def configuration(self, loop: str) -> ServiceConfiguration:
        settings = self.settings(loop)
        kept = kept_of(settings)
        return ServiceConfiguration(
            reward_wait_time=show_duration(settings.wait_time),
            default_reward=settings.default_reward or 0.0,
            reward_aggregation=settings.aggregation,
            exploration_percentage=_exploration(settings),
            **{name: getattr(kept, name) for name in _IN_BOTH},
        )

    async def put_configuration(self, loop: str, configuration: ServiceConfiguration) -> ServiceConfiguration:
        """Change the configuration; optional fields that are missing stay as they are."""
        settings = await self.adopted(loop)
        kept = kept_of(settings)
        wait = _checked_wait(configuration)
        _check_rest(configuration, wait)
        exploration = _single(configuration.exploration_percentage)
        changes: dict[str, Any] = {
            "wait_time": wait,
            "default_reward": _single(configuration.default_reward),
            "aggregation": configuration.reward_aggregation,
        }
        mode = configuration.learning_mode or kept.learning_mode
        if (mode == "Online") != (kept.learning_mode == "Online"):
            _check_mode_alone(settings, changes)
        fields = {name: getattr(configuration, name) for name in _IN_BOTH if getattr(configuration, name) is not None}
        for name in _DURATIONS & fields.keys():
            fields[name] = iso_duration(fields[name])
        kept = msgspec.structs.replace(kept, **fields)
        kept.last_configuration_edit_date = show_time(round(time.time() * 1e6))
        changes["apprentice"] = mode != "Online"
        changes["retention"] = _retention(configuration.log_retention_days)
        if exploration != _exploration(settings):
            changes |= {"policy": "epsilon-greedy", "epsilon": exploration}
            kept.arguments = with_epsilon(kept.arguments, exploration)
        if kept.is_auto_optimization_enabled and read_arguments(kept.arguments).multi_slot:
            message = "isAutoOptimizationEnabled must be false for a multi-slot policy"
            raise Refusal("ProblemTypeIncompatibleWithAutoOptimization", message, "isAutoOptimizationEnabled")
        await self._put(loop, settings, kept, **changes)
        if any(getattr(settings, name) != changes.get(name, getattr(settings, name)) for name in RETRAIN):
            self._retrain(loop, kept)
        return await self.configuration(loop)

    def _retrain(self, loop: str, kept: Kept) -> None:
        """Learn recent events again, now that they count differently."""
        if self._retrainer is not None and kept.model_retrain_days and not self._admin.has_learned_nothing(loop):
            self._retrainer.start(loop, kept.model_retrain_days, kept.logs_after)

    # the policy

    async def policy(self, loop: str) -> PolicyContract:
        kept = kept_of(self.settings(loop))
        return PolicyContract(kept.policy_name, kept.arguments)

    async def put_policy(self, loop: str, policy: PolicyContract) -> PolicyContract:
        """Learn and explore by a policy from now on."""
        settings = await self.adopted(loop)
        meaning = read_arguments(policy.arguments)
        changes: dict[str, Any] = {}
        if meaning.epsilon is not None:
            changes |= {"policy": "epsilon-greedy", "epsilon": meaning.epsilon}
        rate = meaning.learning_rate
        if rate is None or math.isclose(rate, AZURE_RATE, rel_tol=1e-3):
            rate = Settings().learning_rate
        if settings.has_effect("learning_rate"):
            changes |= {"crosses": meaning.crosses, "learning_rate": rate}
        kept = msgspec.structs.replace(kept_of(settings), policy_name=policy.name, arguments=policy.arguments)
        try:
            await self._put(loop, settings, kept, **changes)
        except ApiError as error:
            if error.code != "invalid_settings":
                raise
            raise Refusal("InvalidPolicyConfiguration", f"arguments: {error}", "arguments") from None
        return policy

    async def reset_policy(self, loop: str) -> PolicyContract:
        return await self.put_policy(loop, PolicyContract(Kept().policy_name, DEFAULT_ARGUMENTS))


async def retained_after(context: RankerContext, configurations: Configurations, loop: str) -> int:
    """Return the position behind which events are shown, evaluated and learned anew: neither deleted nor too old.

    The learner removes the others from the log some time later.
    """
    kept = kept_of(configurations.settings(loop))
    after = max(context.loop(loop).view.created_at, kept.logs_after)
    if kept.log_retention_days < 0:
        return after
    kept_for = kept.log_retention_days * times.DAY
    return await context.look_up(lambda log: last_before(log, loop, log.now() - kept_for, after))


_IN_BOTH = tuple(set(Kept.__struct_fields__) & set(ServiceConfiguration.__struct_fields__))
_DURATIONS = {"model_export_frequency", "auto_optimization_frequency"}


def _single(number: float) -> float:
    """Return a number without what single precision added: clients in C# and Java send 0.2 as 0.200000003."""
    return float(str(np.float32(number)))


def _exploration(settings: Settings) -> float:
    """Return the share of answers that explore; what another policy explores is not a fixed share."""
    if settings.policy == "epsilon-greedy":
        return settings.epsilon
    return 0.0 if settings.policy == "greedy" else DEFAULT_EPSILON


def _checked_wait(configuration: ServiceConfiguration) -> float:
    wait = _duration("rewardWaitTime", configuration.reward_wait_time, "InvalidRewardWaitTime")
    if not SHORTEST_WAIT <= wait <= LONGEST_WAIT:
        message = f"rewardWaitTime must be 5 seconds to {LONGEST_WAIT / DAY:.0f} days"
        raise Refusal("InvalidRewardWaitTime", f"{message}, got {configuration.reward_wait_time}", "rewardWaitTime")
    return wait


def _check_rest(configuration: ServiceConfiguration, wait: float) -> None:
    if configuration.reward_aggregation not in AGGREGATIONS:
        names = ", ".join(AGGREGATIONS)
        message = f"rewardAggregation must be one of {names}, got {configuration.reward_aggregation[:100]!r}"
        raise Refusal(INVALID, message, "rewardAggregation")
    if configuration.learning_mode is not None and configuration.learning_mode not in MODES:
        message = f"learningMode must be one of {', '.join(MODES)}, got {configuration.learning_mode[:100]!r}"
        raise Refusal(INVALID, message, "learningMode")
    _duration("modelExportFrequency", configuration.model_export_frequency, INVALID)
    if configuration.auto_optimization_frequency is not None:
        _duration("autoOptimizationFrequency", configuration.auto_optimization_frequency, INVALID)
    if configuration.auto_optimization_start_date is not None:
        _time("autoOptimizationStartDate", configuration.auto_optimization_start_date)
    days, least = configuration.log_retention_days, math.ceil(wait / DAY + 1)
    if days != -1 and days < least:
        message = f"logRetentionDays must be -1 or at least {least} (the wait time and a day), got {days}"
        raise Refusal("InvalidLogRetentionDays", message, "logRetentionDays")
    if configuration.model_retrain_days is not None and days != -1 and configuration.model_retrain_days > days:
        message = f"modelRetrainDays must be 0 to logRetentionDays, got {configuration.model_retrain_days}"
        raise Refusal("InvalidModelRetrainDays", message, "modelRetrainDays")


def _retention(days: int) -> float | None:
    return None if days == -1 else min(days * DAY, LONGEST_RETENTION)


def _check_mode_alone(settings: Settings, changes: dict[str, Any]) -> None:
    if any(getattr(settings, name) != value for name, value in changes.items()):
        message = (
            "defaultReward, rewardWaitTime and rewardAggregation must stay as they are while learningMode changes;"
            " change them by another call"
        )
        raise Refusal("InvalidLearningModeServiceConfiguration", message, "learningMode")


def _duration(name: str, text: str, code: str) -> float:
    try:
        return read_duration(text)
    except ValueError as error:
        raise Refusal(code, f"{name}: {error}", name) from None


def _time(name: str, text: str) -> None:
    try:
        read_time(text)
    except ValueError as error:
        raise Refusal(INVALID, f"{name}: {error}", name) from None
