"""A loop's configuration and policy in Azure's terms. They are the loop's settings; fields without native counterpart
(names, log retention, Auto-Optimize) are stored with them as an annotation.
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
    read_arguments,
    with_epsilon,
)
from service.plugins.personalizer.durations import (
    iso_duration,
    read_as,
    read_duration,
    read_time,
    show_duration,
    show_time,
)
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
RETRAIN = {"wait_time", "default_reward", "aggregation", "epsilon"}  # a change of these retrains the model
AGGREGATIONS = ("earliest", "sum", "average")


class AzureSettings(msgspec.Struct, omit_defaults=True):
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
def _read_kept(text: str) -> AzureSettings:
    return msgspec.json.decode(text, type=AzureSettings)


def kept_of(settings: Settings) -> AzureSettings:
    """Return Azure's fields stored with a loop's settings; for a native loop, the equivalent of its settings."""
    text = settings.annotations.get(ANNOTATION)
    if text is not None:
        return _read_kept(text)
    kept = AzureSettings(learning_mode="Apprentice" if settings.apprentice else "Online", native=True)
    if settings.policy == "epsilon-greedy":
        kept.arguments = with_epsilon(kept.arguments, settings.epsilon)
    return kept


def azure_settings(settings: Settings | None = None) -> Settings:
    """Return Azure's defaults, except for settings that the owner of a loop has chosen."""
    base = settings or Settings()
    low, high = base.reward_range
    changes: dict[str, Any] = {"reward_range": (min(low, -1.0), max(high, 1.0)), "wait_from": "rank"}
    if _without_rules(base) == Settings():
        changes |= {"policy": "epsilon-greedy", "epsilon": DEFAULT_EPSILON}
    kept = msgspec.structs.replace(kept_of(base), native=False)
    return msgspec.structs.replace(base, **changes, annotations=_annotated(base, kept))


def _adopted(settings: Settings) -> dict[str, Any]:
    """Return settings with Azure's, unless they have them already."""
    is_native = kept_of(settings).native
    fields: dict[str, Any] = msgspec.to_builtins(azure_settings(settings) if is_native else settings)
    return fields


def _without_rules(settings: Settings) -> Settings:
    """Return settings without the rules of draws, which the service sets."""
    control = msgspec.structs.replace(settings.control, by_loop=False)
    return msgspec.structs.replace(settings, control=control, draws_by_loop=False)


def _annotated(settings: Settings, kept: AzureSettings) -> dict[str, str]:
    return {**settings.annotations, ANNOTATION: msgspec.json.encode(kept).decode()}


class Configurations:
    """Reads and changes the configuration of loops."""

    def __init__(self, admin: Admin, retrainer: Retrainer) -> None:
        self._admin, self._retrainer = admin, retrainer
        self._changing = asyncio.Lock()

    def settings(self, loop: str) -> Settings:
        """Return the current settings of a loop, without adopting Azure's."""
        return self._admin.settings(loop)[1]

    async def adopted(self, loop: str) -> Settings:
        """Return the settings of a loop; a native one gets Azure's first. For changes by admins, which are audited.

        Settings that the owner has chosen stay, except for the reward range, which then includes [−1, 1], and for wait
        times, which count from the rank call.
        """
        async with self._changing:
            settings = self.settings(loop)
            if not kept_of(settings).native:
                return settings
            await self._admin.change_settings(loop, _adopted)
            adopted = self.settings(loop)
            fresh = model_kind(adopted).new(adopted).to_bytes()
            if fresh != model_kind(settings).new(settings).to_bytes() and self._admin.has_learned_nothing(loop):
                await self._admin.put_model(loop, fresh)  # it depends on the range of the rewards
            return self.settings(loop)

    async def _put(self, loop: str, settings: Settings, kept: AzureSettings, **changes: Any) -> None:
        """Change settings, and those fields of the annotation in which ``kept`` differs from that of ``settings``."""
        before = msgspec.structs.asdict(kept_of(settings))
        edits = {name: value for name, value in msgspec.structs.asdict(kept).items() if value != before[name]}

        def all_settings(current: Settings) -> dict[str, Any]:
            annotations = _annotated(current, msgspec.structs.replace(kept_of(current), **edits))
            return {**msgspec.to_builtins(current), **changes, "annotations": annotations}

        await self._admin.change_settings(loop, all_settings)

    async def keep(self, loop: str, **changes: Any) -> None:
        """Change only the fields in the annotation."""
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
        exploration, days = _single(configuration.exploration_percentage), configuration.log_retention_days
        changes: dict[str, Any] = {
            "wait_time": _check(configuration),
            "default_reward": _single(configuration.default_reward),
            "aggregation": configuration.reward_aggregation,
        }
        mode = configuration.learning_mode or kept.learning_mode
        is_new_mode = (mode == "Online") != (kept.learning_mode == "Online")
        if is_new_mode and any(getattr(settings, name) != value for name, value in changes.items()):
            message = (
                "defaultReward, rewardWaitTime and rewardAggregation must stay as they are while learningMode changes;"
                " change them by another call"
            )
            raise Refusal("InvalidLearningModeServiceConfiguration", message, "learningMode")
        fields = {name: getattr(configuration, name) for name in _IN_BOTH if getattr(configuration, name) is not None}
        for name in _DURATIONS & fields.keys():
            fields[name] = iso_duration(fields[name])
        kept = msgspec.structs.replace(kept, **fields)
        kept.last_configuration_edit_date = show_time(round(time.time() * 1e6))
        changes["apprentice"] = mode != "Online"
        changes["retention"] = None if days == -1 else min(days * DAY, LONGEST_RETENTION)
        if exploration != _exploration(settings):
            changes |= {"policy": "epsilon-greedy", "epsilon": exploration}
            kept.arguments = with_epsilon(kept.arguments, exploration)
        if kept.is_auto_optimization_enabled and read_arguments(kept.arguments).multi_slot:
            message = "isAutoOptimizationEnabled must be false for a multi-slot policy"
            raise Refusal("ProblemTypeIncompatibleWithAutoOptimization", message, "isAutoOptimizationEnabled")
        await self._put(loop, settings, kept, **changes)
        counts_differently = any(getattr(settings, name) != changes[name] for name in RETRAIN & changes.keys())
        if counts_differently and kept.model_retrain_days and not self._admin.has_learned_nothing(loop):
            self._retrainer.start(loop, kept.model_retrain_days, kept.logs_after)
        return await self.configuration(loop)

    # the policy

    async def policy(self, loop: str) -> PolicyContract:
        kept = kept_of(self.settings(loop))
        return PolicyContract(kept.policy_name, kept.arguments)

    async def put_policy(self, loop: str, policy: PolicyContract) -> PolicyContract:
        """Set the policy by which the loop learns and explores."""
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
        return await self.put_policy(loop, PolicyContract(AzureSettings().policy_name, DEFAULT_ARGUMENTS))


async def retained_after(context: RankerContext, loop: str) -> int:
    """Return the position behind which events are shown, evaluated and relearned: neither deleted nor too old.

    The learner removes the others from the log some time later.
    """
    view = context.loop(loop).view
    kept = kept_of(view.settings)
    after = max(view.created_at, kept.logs_after)
    if kept.log_retention_days < 0:
        return after
    kept_for = kept.log_retention_days * times.DAY
    return await context.look_up(loop, lambda log: last_before(log, loop, log.now() - kept_for, after))


_IN_BOTH = tuple(set(AzureSettings.__struct_fields__) & set(ServiceConfiguration.__struct_fields__))
_DURATIONS = {"model_export_frequency", "auto_optimization_frequency"}


def _single(number: float) -> float:
    """Return a number without single-precision error: clients in C# and Java send 0.2 as 0.200000003."""
    return float(str(np.float32(number)))


def _exploration(settings: Settings) -> float:
    """Return the share of decisions that explore; other policies than ε-greedy have no fixed share."""
    if settings.policy == "epsilon-greedy":
        return settings.epsilon
    return 0.0 if settings.policy == "greedy" else DEFAULT_EPSILON


def _check(configuration: ServiceConfiguration) -> float:
    """Return the wait time in seconds; refuse a configuration that breaks a rule."""
    code = "InvalidRewardWaitTime"
    wait = read_as(read_duration, "rewardWaitTime", configuration.reward_wait_time, code)
    if not SHORTEST_WAIT <= wait <= LONGEST_WAIT:
        message = f"rewardWaitTime must be 5 seconds to {LONGEST_WAIT / DAY:.0f} days"
        raise Refusal(code, f"{message}, got {configuration.reward_wait_time}", "rewardWaitTime")
    if configuration.reward_aggregation not in AGGREGATIONS:
        names = ", ".join(AGGREGATIONS)
        message = f"rewardAggregation must be one of {names}, got {configuration.reward_aggregation[:100]!r}"
        raise Refusal(INVALID, message, "rewardAggregation")
    if configuration.learning_mode is not None and configuration.learning_mode not in MODES:
        message = f"learningMode must be one of {', '.join(MODES)}, got {configuration.learning_mode[:100]!r}"
        raise Refusal(INVALID, message, "learningMode")
    read_as(read_duration, "modelExportFrequency", configuration.model_export_frequency, INVALID)
    if configuration.auto_optimization_frequency is not None:
        read_as(read_duration, "autoOptimizationFrequency", configuration.auto_optimization_frequency, INVALID)
    if configuration.auto_optimization_start_date is not None:
        read_as(read_time, "autoOptimizationStartDate", configuration.auto_optimization_start_date, INVALID)
    days, least = configuration.log_retention_days, math.ceil(wait / DAY + 1)
    if days != -1 and days < least:
        message = f"logRetentionDays must be -1 or at least {least} (the wait time and a day), got {days}"
        raise Refusal("InvalidLogRetentionDays", message, "logRetentionDays")
    if configuration.model_retrain_days is not None and days != -1 and configuration.model_retrain_days > days:
        message = f"modelRetrainDays must be 0 to logRetentionDays, got {configuration.model_retrain_days}"
        raise Refusal("InvalidModelRetrainDays", message, "modelRetrainDays")
    return wait
