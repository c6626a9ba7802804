"""Decisions of a replay as a log that ``fedres evaluate`` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bandits.replay import Outcome
from bandits.streams import Stream


def write_log(path: Path, stream: Stream, outcome: Outcome) -> None:
    """Write every decision as a line of JSON; a crash leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("w", encoding="utf-8") as file:
        for event in _events(stream, outcome):
            file.write(json.dumps(event) + "\n")
    temporary.replace(path)


def _events(stream: Stream, outcome: Outcome) -> Iterator[dict[str, Any]]:
    actions = [{"id": str(a)} for a in range(stream.n_actions)]
    t = 0
    for chunk in stream:
        for private in chunk.private:
            for p in range(stream.n_clients):
                yield {
                    "event_id": f"{t}-{p}",
                    "time": t,
                    "user": str(p),
                    "context": private[p, 0, :-1].round(6).tolist(),  # the last is the constant
                    "actions": actions,
                    "action": str(outcome.action[t, p]),
                    "probability": float(outcome.probability[t, p]),
                    "reward": float(outcome.reward[t, p]),
                    "status": "rewarded",
                }
            t += 1
