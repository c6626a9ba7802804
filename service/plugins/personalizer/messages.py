"""Requests and replies of Azure's clients. Unknown fields are ignored, as by Azure."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from service.plugins.personalizer.features import LONGEST

MOST_ACTIONS = 50

Id = Annotated[str, Meta(min_length=1, max_length=LONGEST)]
Dictionaries = list[dict[str, Any]]


class PersonalizerAction(Struct, rename="camel", gc=False):
    id: Id
    features: Dictionaries


class PersonalizerRankRequest(Struct, rename="camel", kw_only=True):
    """Actions to rank. ``user_id`` is an extension: whose personal model counts too."""

    actions: Annotated[list[PersonalizerAction], Meta(min_length=1, max_length=MOST_ACTIONS)]
    context_features: Dictionaries | None = None
    excluded_actions: list[str] | None = None
    event_id: Id | None = None
    defer_activation: bool | None = None
    user_id: Any = None


class RankedAction(Struct, rename="camel"):
    id: str
    probability: float


class PersonalizerRankResponse(Struct, rename="camel"):
    ranking: list[RankedAction]
    event_id: str
    reward_action_id: str


class PersonalizerReward(Struct):
    value: Annotated[float, Meta(ge=-1, le=1)]


class PersonalizerSlot(Struct, rename="camel"):
    id: Id
    baseline_action: Id
    features: Dictionaries | None = None
    excluded_actions: list[str] | None = None


class MultiSlotRankRequest(Struct, rename="camel", kw_only=True):
    """Actions for several slots, none of them twice."""

    actions: Annotated[list[PersonalizerAction], Meta(min_length=1, max_length=MOST_ACTIONS)]
    slots: Annotated[list[PersonalizerSlot], Meta(min_length=1, max_length=MOST_ACTIONS)]
    context_features: Dictionaries | None = None
    event_id: Id | None = None
    defer_activation: bool | None = None
    user_id: Any = None


class SlotAnswer(Struct, rename="camel"):
    id: str
    reward_action_id: str


class MultiSlotRankResponse(Struct, rename="camel"):
    slots: list[SlotAnswer]
    event_id: str


class SlotReward(Struct, rename="camel"):
    slot_id: Id
    value: Annotated[float, Meta(ge=-1, le=1)]


class MultiSlotReward(Struct):
    reward: Annotated[list[SlotReward], Meta(max_length=MOST_ACTIONS)]


class PolicyContract(Struct):
    """Learning settings, as arguments of Vowpal Wabbit."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: Annotated[str, Meta(min_length=1, max_length=1024)]


class PolicyReference(Struct, rename="camel"):
    evaluation_id: Id
    policy_name: Id


class ServiceConfiguration(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The configuration of a loop; durations and times are ISO 8601."""

    reward_wait_time: str
    default_reward: Annotated[float, Meta(ge=-1, le=1)]
    reward_aggregation: str
    exploration_percentage: Annotated[float, Meta(ge=0, le=1)]
    model_export_frequency: str
    log_retention_days: Annotated[int, Meta(ge=-1, le=2**31 - 1)]
    model_retrain_days: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    log_mirror_enabled: bool | None = None
    log_mirror_sas_uri: str | None = None
    last_configuration_edit_date: str | None = None
    learning_mode: str | None = None
    is_auto_optimization_enabled: bool | None = None
    auto_optimization_frequency: str | None = None
    auto_optimization_start_date: str | None = None
    is_inference_explainability_enabled: bool | None = None


class FeatureImportanceContract(Struct, rename="camel", kw_only=True):
    name: Id
    start_time: str
    end_time: str


class EvaluationContract(FeatureImportanceContract, rename="camel", kw_only=True):
    """An evaluation to be made of the events between two times."""

    policies: list[PolicyContract]
    enable_offline_experimentation: bool | None = None
    enable_policy_optimization: bool | None = None
