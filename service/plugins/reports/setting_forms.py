"""What a form of a loop's settings needs to know: types, meanings, defaults, and which settings have no effect."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from fedres.policies import HOSTED
from service.settings import FIXED, MODELS, Control, Settings

REF = "#/{name}"
OF_POLICIES = ("gamma", "floor", "epsilon")  # settings that only some policies use
ABOUT_CONTROL = {
    "share": "Share of users whose decisions the baseline makes, from 0 (no experiment) to 0.95.",
    "baseline": "first: the first action of a request. uniform: any of its actions.",
    "experiment": "A name, which also decides who is in the group.",
    "learn": "Whether the models learn from the group. null: unless the baseline is first.",
}


@cache
def settings_schema() -> bytes:
    """Return the schema of the settings as JSON, without what a form does not show."""
    types = Settings, Control
    _, components = msgspec.json.schema_components(types, ref_template=REF)
    properties = components["Settings"]["properties"]
    control = {
        name: {**components["Control"]["properties"][name], "description": text} for name, text in ABOUT_CONTROL.items()
    }
    specific = {name for model in MODELS.values() for name in model.takes}
    document: dict[str, Any] = {
        "properties": {name: schema for name, schema in properties.items() if name != "control"},
        "control": control,
        "fixed": FIXED,
        "ignored": {name: sorted(specific - {*model.takes}) for name, model in MODELS.items()},
        "unused": {
            policy: [name for name in OF_POLICIES if name not in settings] for policy, settings in HOSTED.items()
        },
    }
    return msgspec.json.encode(document)
