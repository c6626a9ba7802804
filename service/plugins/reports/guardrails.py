"""Guardrails with ``revert``: a watch that lets the baseline decide once an outcome violates its guardrail."""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from service.admin.admin import Admin
from service.errors import ApiError
from service.http.audit import Audit
from service.log.protocol import StoreUnavailable
from service.plugins.reports.report import LoopReport
from service.plugins.reports.reports import Reports
from service.settings import LONGEST_REASON

WATCH_SECONDS = 60.0  # between two looks
AUDITED_AS = "guardrails"  # in place of a key

log = logging.getLogger("fedres.service")


class Guardrails:
    """Checks all loops of a machine; tests pass their own ``sleep``."""

    def __init__(
        self,
        admin: Admin,
        reports: Reports,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        audit: Audit | None = None,
    ) -> None:
        self._admin = admin
        self._reports = reports
        self._sleep = sleep
        self._audit = audit or Audit(None)

    async def watch(self, lock: Path) -> None:
        """Check every minute, on the one ranker of the machine that holds the lock; failed checks do not end it."""
        with open(lock, "ab") as file:
            while True:
                await self._sleep(WATCH_SECONDS)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    await self.check()
                except BlockingIOError:  # another ranker watches
                    pass
                except Exception:
                    log.exception("guardrails could not be checked")

    async def check(self) -> list[str]:
        """Let the baseline decide in loops whose guardrails require it; return those loops."""
        reverted = []
        for loop in self._admin.loops():
            try:
                if await self._revert_if_asked(loop):
                    reverted.append(loop)
            except (ApiError, StoreUnavailable) as error:  # the next check may succeed; other loops are checked now
                log.warning("guardrails of loop %r could not be checked: %s", loop, error)
            except Exception:
                log.exception("guardrails of loop %r could not be checked", loop)
        return reverted

    async def _revert_if_asked(self, loop: str) -> bool:
        _, settings = self._admin.settings(loop)
        if settings.control.hold or not any(guardrail.revert for guardrail in settings.guardrails):
            return False
        report = msgspec.json.decode(await self._reports.report(loop), type=LoopReport)
        reasons = " ".join(alarm.message for alarm in report.alarms if alarm.revert)
        if reasons:
            await self._admin.hold(loop, f"Guardrail: {reasons}"[:LONGEST_REASON])
            self._audit.note(AUDITED_AS, "hold", loop)
        return bool(reasons)
