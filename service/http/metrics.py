"""Counts and latencies of requests, and all figures of the service as Prometheus text."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


class Requests:
    """How many requests each route answered with which status, and how long they took."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        self._latencies: dict[str, list[int]] = {}  # by bucket, those above the last one at the end
        self._seconds: dict[str, float] = {}

    def count(self, path: str, method: str, status: int, *seconds: float) -> None:
        """Count requests, each of which took so long."""
        key = (path, method, status)
        self._counts[key] = self._counts.get(key, 0) + len(seconds)
        self._seconds[path] = self._seconds.get(path, 0.0) + sum(seconds)
        latencies = self._latencies.setdefault(path, [0] * (len(BUCKETS) + 1))
        for one in seconds:
            latencies[bisect_left(BUCKETS, one)] += 1

    def text(self) -> str:
        counts = [
            ({"path": path, "method": method, "status": str(status)}, float(n))
            for (path, method, status), n in sorted(self._counts.items())
        ]
        head = family("fedres_requests_total", "counter", "Requests answered.", counts)
        return head + self._histogram("fedres_request_seconds")

    def _histogram(self, name: str) -> str:
        lines = [f"# HELP {name} Time from a request's head to its answer.", f"# TYPE {name} histogram"]
        for path, counts in sorted(self._latencies.items()):
            below = 0
            for bound, n in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
                below += n
                lines.append(_line(f"{name}_bucket", {"path": path, "le": bound}, below))
            lines.append(_line(f"{name}_sum", {"path": path}, self._seconds[path]))
            lines.append(_line(f"{name}_count", {"path": path}, below))
        return "\n".join(lines) + "\n"


def family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> str:
    """Return one metric as text."""
    lines = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
    lines += [_line(name, labels, value) for labels, value in samples]
    return "\n".join(lines) + "\n"


def _line(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    number = "NaN" if math.isnan(value) else repr(value)
    return f"{name}{{{shown}}} {number}" if shown else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
