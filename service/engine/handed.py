"""Records of decisions on their way to the learner of the same process, which need not read them again."""

from __future__ import annotations

import msgspec

from fedres.scoring.features import Prepared
from service.engine.joining import Case
from service.engine.records import LoggedRank, RankBody, encode


class Known(msgspec.Struct, frozen=True, gc=False):
    """What the learner needs of a rank record."""

    case: Case
    deferred: bool
    agreed: bool | None


class Handed(bytes):
    """The body of a rank record, and what the learner would find in it."""

    known: Known


def handed(user: str | None, rank: RankBody, prepared: Prepared) -> bytes:
    """Return the record of a decision on ``prepared``; where actions are excluded, for the learner to read itself."""
    text = encode(rank)
    if rank.exclude:
        return text
    return known_body(text, Known(_case(user, rank, prepared), rank.deferred, agreed(rank)))


def known_body(text: bytes, known: Known) -> Handed:
    body = Handed(text)
    body.known = known
    return body


def agreed(rank: RankBody | LoggedRank) -> bool | None:
    """Return whether an apprentice took what the policy drew, None where the loop was none."""
    return None if rank.wished is None else rank.wished == rank.action


def _case(user: str | None, rank: RankBody, prepared: Prepared) -> Case:
    """Return what comes of preparing the context and the action taken alone."""
    taken, starts = rank.action, prepared.starts
    n, first, last = 4 * int(starts[0]), 4 * int(starts[taken]), 4 * int(starts[taken + 1])
    hashes, values = prepared.hashes.tobytes(), prepared.values.tobytes()
    weight = 0.0 if taken else 1 / rank.probabilities[0]
    return Case(user, hashes[:n] + hashes[first:last], values[:n] + values[first:last], n // 4, weight)
