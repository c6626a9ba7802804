"""Several slots of a page, filled by one call."""

from __future__ import annotations

import msgspec

from service.engine import Engine
from service.engine.slots import SlotsResult
from service.http.gate import Call, Handler
from service.http.hot import at_most
from service.http.limits import Limits
from service.http.openapi import Json, operation
from service.http.replies import Reply, json_reply
from service.http.routing import encode
from service.http.strict import decode_strictly
from service.http.table import of_a_loop
from service.http.wire import RankSlots

ENTRIES: dict[str, Json] = {
    "/rank/slots": operation("Choose an action for each slot of a page.", body=RankSlots, reply=SlotsResult)
}

_slots = msgspec.json.Decoder(RankSlots)


def hot_handlers(engine: Engine, limits: Limits) -> dict[str, Handler]:
    """Return the handlers of the paths in ``ENTRIES``."""

    async def rank_slots(call: Call) -> Reply:
        request = decode_strictly(_slots, call.body)
        at_most("actions", "too_many_actions", len(request.actions), limits.actions)
        at_most("slots", "too_many_slots", len(request.slots), limits.slots)
        for place, slot in enumerate(request.slots):
            at_most(f"slots[{place}].exclude", "too_many_excluded", len(slot.exclude), limits.actions)
        return json_reply(encode(await engine.rank_slots(call.loop, request)))

    return dict.fromkeys(of_a_loop("/rank/slots"), rank_slots)
