"""The models that a loop may have, by the name in its settings."""

from __future__ import annotations

from service.models import adagrad, residual_kalman
from service.models.protocol import ModelKind
from service.settings import Settings

MODELS: dict[str, ModelKind] = {"residual-kalman": residual_kalman, "adagrad": adagrad}


def model_kind(settings: Settings) -> ModelKind:
    """Return the model that a loop's settings name."""
    return MODELS[settings.model]
