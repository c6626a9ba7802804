"""What pages of recommended items show: how much of the catalogue, how much that is new, and rewards by place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from service.log.records import ActionsBody
from service.plugins.reports.report import FinishedDecision, PageSummary, PlaceReward

NEW = 10  # an item is new as long as it was shown fewer times


class PageLog:
    """Counts what was shown on pages, and what there was to show."""

    def __init__(self) -> None:
        self._items: set[str] = set()
        self._shown: Counter[str] = Counter()

    def take_catalogue(self, body: ActionsBody) -> None:
        self._items.update(action.id for action in body.put)
        self._items.difference_update(body.retire)

    def show(self, item: str) -> bool:
        """Count an item that is shown; return whether it is new."""
        self._shown[item] += 1
        return self._shown[item] <= NEW

    def summary(self, finished: Sequence[FinishedDecision]) -> PageSummary | None:
        """Return what finished decisions show of pages, None if none of them was a place of one."""
        places = [decision for decision in finished if decision.place]
        if not places:
            return None
        rewards: dict[int, list[float]] = {}
        for decision in places:
            if decision.reward is not None:
                rewards.setdefault(decision.place, []).append(decision.reward)
        return PageSummary(
            items=len(self._items),
            shown=sum(item in self._items for item in self._shown),
            new_share=sum(decision.is_new for decision in places) / len(places),
            places=[PlaceReward(place, len(own), fmean(own)) for place, own in sorted(rewards.items())],
        )
