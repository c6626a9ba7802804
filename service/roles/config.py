"""What all processes of a service are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from service.http.hosts import Hosts
from service.http.request import Limits
from service.http.server import Tls
from service.log.opening import Store

LOG_SOCKET, LEARNER_SOCKET, METRICS = "log.sock", "learner.sock", "metrics"
PUBLISHED = "-published"  # beside the store: published models, where their own folder has no room for a second file
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # in the environment before prometheus_client is imported, which reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A service on one machine."""

    store: Store
    host: str = "127.0.0.1"
    port: int = 8000
    rankers: int = 1
    loops: tuple[str, ...] | None = None  # that this machine follows; None is all
    tls: Tls | None = None
    root_path: str = ""  # below which a proxy offers the service
    allowed_hosts: tuple[str, ...] = ()  # names under which the service is known
    allowed_origins: tuple[str, ...] = ()  # of web pages that may call it from a browser
    access_log: bool = False
    limits: Limits = field(default_factory=Limits)
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
        Hosts(self.allowed_hosts, origins=self.allowed_origins)  # refuses what is no host and no origin

    @property
    def log_socket(self) -> Path:
        return self.run / LOG_SOCKET

    @property
    def learner_socket(self) -> Path:
        return self.run / LEARNER_SOCKET
