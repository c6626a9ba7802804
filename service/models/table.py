"""The models that a loop may have, by the name in its settings: each is the module of that name."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from service import settings
from service.models.protocol import ModelKind
from service.settings import Settings

MODELS = {name: cast(ModelKind, import_module(f"service.models.{name.replace('-', '_')}")) for name in settings.MODELS}


def model_kind(settings: Settings) -> ModelKind:
    """Return the model that a loop's settings name."""
    return MODELS[settings.model]
