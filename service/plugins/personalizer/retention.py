"""Which events a loop still has in Azure's words: not deleted, and not older than ``logRetentionDays``.

The learner removes them from the log some time later. What is left out is not shown, evaluated or learned anew.
"""

from __future__ import annotations

from service.learn.pruning import last_before
from service.plugins.personalizer.configuration import Configurations, kept_of
from service.rank.ranker import RankerContext
from service.times import DAY


async def retained_after(context: RankerContext, configurations: Configurations, loop: str) -> int:
    """Return the position behind which events count."""
    kept = kept_of(configurations.settings(loop))
    after = max(context.loop(loop).view.created_at, kept.logs_after)
    if kept.log_retention_days < 0:
        return after
    return await context.look_up(lambda log: last_before(log, loop, log.now() - kept.log_retention_days * DAY, after))
