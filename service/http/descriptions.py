"""Tags of routes and descriptions of fields, for the OpenAPI document and the reference."""

from __future__ import annotations

import re

TAGS = {
    "decide": "Choose actions and send rewards.",
    "manage": "Loops, settings, catalogue, models and users.",
    "evaluate": "Events, lift, reports and off-policy evaluation.",
    "devices": "Shared models and uploads of devices with private features.",
    "operate": "Status, health and metrics.",
    "azure": "The API of Azure Personalizer.",
    "pages": "The dashboard and its files.",
}
_PATTERNS = (  # the first that is found in a path
    ("azure", r"/personalizer(/|$)"),
    ("devices", r"/federated/|/devices$"),
    ("decide", r"/(rank|recommend|feedback|popular|similar)(/|$)|/(reward|activate)$"),
    ("evaluate", r"/(lift|report|what-if|personal|evaluations|events|unmatched|decisions)(/|$)"),
    ("operate", r"^/(v1/status|metrics|healthz|readyz)$"),
    ("manage", r"^/v1/"),
    ("pages", ""),
)

_USER = "Id of the user: selects the personal model. Without it, only the shared model decides."
_CONTEXT = "Features of the situation, known before the decision."
_DEFER = "Do not start the wait for a reward until the event is activated."
_RANKING = "All actions, best score first."
_VERSION = "Position in the loop's log up to which the models had learned."
FIELDS = {
    "RankRequest": {
        "actions": "The actions to choose from, in your own order of preference.",
        "context": _CONTEXT,
        "user": _USER,
        "exclude": "Ids of actions that must not be chosen; they get probability 0.",
        "event_id": "Id of this event, generated if missing. A repeat with the same id gets the same decision.",
        "defer": _DEFER,
        "explain": "Add explanations of the scores to the response.",
    },
    "Action": {
        "id": "Id of the action; it is a feature, too.",
        "features": "Features of the action. Without them, those of the catalogue.",
    },
    "RankResult": {
        "event_id": "Id to send the reward to.",
        "action": "The chosen action.",
        "probability": "Probability that the action was drawn with.",
        "ranking": _RANKING,
        "model_version": _VERSION,
        "arm": "control, treatment or held, if the loop has a control group.",
        "explanations": "With explain: the parts of each action's score.",
    },
    "Ranked": {
        "id": "Id of the action.",
        "probability": "Probability of the action; 0 if it was excluded.",
        "score": "Expected reward.",
    },
    "Explained": {
        "id": "Id of the action.",
        "shared": "The shared part of the score.",
        "personal": "The personal part of the score.",
        "strongest": "The pairs of features that add most.",
        "width": "Standard deviation of the score, if the model knows it.",
    },
    "SlotsRequest": {
        "actions": "The actions to choose from; none is shown twice.",
        "slots": "The slots, in the order in which they are filled.",
        "context": _CONTEXT,
        "user": _USER,
        "event_id": "Id of this call, generated if missing; each slot is an event with this id, a ~ and its number.",
        "defer": _DEFER,
    },
    "Slot": {
        "id": "Id of the slot; a feature of its context.",
        "features": "Features of the slot, added to its context.",
        "exclude": "Ids of actions that this slot must not show.",
        "baseline": "The action that the slot would show without the service.",
    },
    "FilledSlot": {
        "id": "Id of the slot.",
        "event_id": "Id to send the slot's reward to.",
        "action": "The chosen action.",
        "probability": "Its probability, given the slots before.",
        "ranking": _RANKING,
    },
    "SlotsResult": {
        "event_id": "Id of the call.",
        "model_version": _VERSION,
        "slots": "The filled slots, in the order of the request.",
    },
    "Batch": {"requests": "The rank requests; each is decided or rejected separately."},
    "Decisions": {"results": "A rank response or an error for each request, in order."},
    "Reward": {
        "value": "The reward, within the loop's reward_range.",
        "id": "Rewards of an event with the same id count once.",
        "outcomes": "Named outcomes, if the loop has a formula over them.",
    },
    "FeedbackEvent": {
        "action": "Id of the action, or the action with features that differ from those in the catalogue.",
        "reward": "What it earned, within the loop's reward_range.",
        "user": "Id of the user, whose personal model learns from it too.",
        "context": "Features of the situation.",
        "event_id": "Id of this event, generated if missing. An event with a known id is not stored again.",
        "time": "When it happened, in seconds since 1970 or as ISO 8601; for popular items.",
    },
    "FeedbackRequest": {"events": "Actions that were not chosen here, with their rewards."},
    "FeedbackStored": {"stored": "Events that are new.", "repeated": "Events whose id was known."},
    "Settings": {
        "model": "The model; fixed when the loop is created.",
        "policy": "How scores become probabilities; null: the default of the model.",
        "gamma": "Both SquareCB policies: γ = gamma·√(rewards learned); larger explores less. null: 300 or 10.",
        "floor": "optimistic-squarecb: share of the probability that is spread evenly.",
        "epsilon": "epsilon-greedy: probability of a uniform draw.",
        "learning_rate": "adagrad: learning rate of the shared and the personal models.",
        "reward_range": "Smallest and largest reward; others are rejected.",
        "wait_time": "Seconds that an event waits for its reward.",
        "default_reward": "Learned if no reward arrives in time; null: nothing is learned.",
        "wait_from": "When the wait time of a deferred event begins.",
        "aggregation": "Which rewards of an event count.",
        "outcomes": "Named outcomes, each with the seconds from the decision within which it counts.",
        "formula": "The reward as a formula over outcomes.",
        "guardrails": "How far outcomes may rise or fall against the control group.",
        "control": "The control group.",
        "apprentice": "Always return the first action, and learn from it.",
        "crosses": "A weight for every pair of a context and an action feature; false for adagrad only.",
        "personal": "One model per user beside the shared one.",
        "update_interval": "Minimum seconds between two publications of the models.",
        "global_learner": "adagrad: learner of the shared model; fixed.",
        "hyperparameters": "adagrad: of that learner; fixed.",
        "bits": "adagrad: 2^bits shared weights; fixed.",
        "timing": "Which model the error of a device's residual is computed with.",
        "defences": "Bounds on what one device can do to the shared model.",
        "retention": "Seconds after which events are removed from the log; null keeps them.",
        "annotations": "Strings by name, for other tools.",
    },
    "NewLoop": {"name": "Letters, digits, -, _ and .", "settings": "Settings that differ from the defaults."},
    "Error": {"error": "What is wrong."},
}


def tag_of(path: str) -> str:
    """Return the tag of a route."""
    return next(tag for tag, pattern in _PATTERNS if re.search(pattern, path))


def is_repeated(path: str, method: str, paths: dict[str, dict[str, object]]) -> bool:
    """Return whether a path is another form of one that the page with the API shows, or a file of a page."""
    if tag_of(path) == "pages":
        return True
    if tag_of(path) == "azure":
        return not path.startswith("/personalizer/{version}/")
    return path.startswith("/v1/loops/{loop}/") and method in paths.get(
        path.replace("/v1/loops/{loop}/", "/v1/", 1), {}
    )
