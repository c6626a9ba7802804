"""The configuration of all processes of a service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from service.http.hosts import Hosts
from service.http.request import Limits
from service.http.server import Tls
from service.log.files import LOG_SOCKET
from service.log.opening import Store
from service.rank.quotas import Quotas

LEARNER_SOCKET, METRICS = "learner.sock", "metrics"
PUBLISHED = "-published"  # beside the store: published models, where their own folder has no room for a second file
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # an environment variable that prometheus_client reads on import
BEAT_SECONDS = 1.0  # between two signs of life of an idle process

Beat = Callable[[], None]  # how a process gives its supervisor a sign of life


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A service on one machine."""

    store: Store
    host: str = "127.0.0.1"
    port: int = 8000
    rankers: int = 1
    loops: tuple[str, ...] | None = None  # loops that this machine follows; None: all
    tls: Tls | None = None
    root_path: str = ""  # the path below which a proxy serves the service
    allowed_hosts: tuple[str, ...] = ()  # other host names of the service
    allowed_origins: tuple[str, ...] = ()  # of web pages that may call it from a browser
    access_log: bool = False
    limits: Limits = field(default_factory=Limits)
    quotas: Quotas = field(default_factory=Quotas)
    accept_loss: bool = False  # start although records are missing
    run: Path = Path()  # the folder of sockets and shared memory, which the supervisor makes

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port must be in [0, 65535], got {self.port}")
        if not 1 <= self.rankers <= 256:
            raise ValueError(f"rankers must be in [1, 256], got {self.rankers}")
        if self.loops is not None and not self.store.is_shared:
            loops = ", ".join(self.loops)
            raise ValueError(f"loops must come with a store in PostgreSQL, got {loops!r} and {str(self.store)!r}")
        Hosts(self.allowed_hosts, origins=self.allowed_origins)  # refuses invalid hosts and origins

    @property
    def log_socket(self) -> Path:
        return self.run / LOG_SOCKET

    @property
    def learner_socket(self) -> Path:
        return self.run / LEARNER_SOCKET
