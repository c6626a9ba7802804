"""The API of Azure Personalizer on top of the native one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.plugins import Core, Plugin

if TYPE_CHECKING:
    from service.http.replies import Reply
    from service.http.routes import Route


def _routes(core: Core) -> list[Route]:
    from service.plugins.personalizer.routes import personalizer_routes

    return personalizer_routes(core.context, core.ranker, core.admin, core.root_path).all


def _failure(reply: Reply) -> Reply:
    from service.plugins.personalizer.errors import reshape

    return reshape(reply)


plugin = Plugin(name="personalizer", routes=_routes, failures={b"personalizer": _failure, b"loops": _failure})
