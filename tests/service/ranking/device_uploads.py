"""What devices upload in tests."""

from playing import raw

from service.plugins.devices.uploads import Residual
from service.rank.requests import Action, RankRequest

BITS = 6
DIM = 2**BITS + 1


def residual(seq=1, version=1, local=0.25, label=1.0, context=None, action="tea", **more):
    return Residual(seq, version, raw(context or {"cold": True}), Action(action, raw({"hot": 1})), local, label, **more)


def some_residuals(rng, version, n, first, **more):
    contexts = [{"hour": int(rng.integers(24)), "mood": f"m{rng.integers(3)}"} for _ in range(n)]
    numbers = rng.random((n, 2)).tolist()
    return [
        residual(first + k, version, *numbers[k], context=contexts[k], action=f"a{rng.integers(3)}", **more)
        for k in range(n)
    ]


async def hosted(engine, loop, rng, n):
    """Rank and reward for users whose models are hosted."""
    for _ in range(n):
        actions = [Action(f"a{k}", raw({"hot": k})) for k in range(3)]
        request = RankRequest(user=f"u{rng.integers(3)}", context=raw({"hour": int(rng.integers(24))}), actions=actions)
        answer = await engine.rank(loop, request)
        await engine.reward(loop, answer.event_id, float(rng.random()))
