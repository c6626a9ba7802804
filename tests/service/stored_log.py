"""A scripted log: every kind of decision, reward and setting, with ids and a clock of its own.

The test compares what is stored with ``stored_log.txt``. A change of the decision model moves scores; then, and only
then, write the file anew:

    python tests/service/stored_log.py > tests/service/stored_log.txt

The command also prints, to standard error, a digest of the exact bytes, to compare two versions on one machine. The
file has numbers with 6 digits, as other processors round differently.
"""

import asyncio
import hashlib
import sys
import tempfile
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))  # where pytest finds these helpers

from machine import Clock, running
from playing import raw, request

from service.errors import ApiError
from service.log.records import LOOP, Record, encode
from service.rank.requests import Action, RankRequest
from service.rank.slots import Slot, SlotsRequest
from service.settings import Settings

FILE = Path(__file__).with_suffix(".txt")
ADAGRAD = {"model": "adagrad", "policy": "epsilon-greedy", "epsilon": 0.3, "bits": 10}
FORMULA = {"outcomes": {"click": 60.0, "buy": 120.0}, "formula": "0.2 * click + 0.8 * buy", "wait_time": 120.0}
EARLIER_LOOPS = ("default", "adagrad", "formula")  # whose draws depend on the event's id alone
CONTROLS = [
    {"apprentice": True},
    {"apprentice": False, "control": {"share": 0.5, "baseline": "first"}},
    {"control": {"share": 0.5, "baseline": "uniform"}},
    {"control": {"share": 0.5, "baseline": "uniform", "learn": False}},
    {"control": {"share": 0.0, "baseline": "first"}},
]


def ranks(loop, k):
    """Return the k-th request: by id, inline, with what is not ASCII, excluded, deferred, without a user."""
    context = {"hour": k % 5, "device": "phone" if k % 2 else "desk", "é": [k % 3]}
    user = None if k % 7 == 0 else f"u{k % 4}"
    if k % 3 == 0:
        actions = [Action(f"c{n}") for n in range(4)] + [Action("unlisted")]
    else:
        actions = [Action(f"a{n}", raw({"topic": f"t{n}", "price": n / 3, "ü": "ö"[: k % 2]})) for n in range(3)]
    exclude = [actions[0].id] if k % 5 == 0 else []
    event_id = f"{loop}-{k}"
    return RankRequest(
        actions=actions, context=raw(context), user=user, exclude=exclude, event_id=event_id, defer=k % 11 == 0
    )


async def decided(engine, clock, loop, first, n):
    """Decide ``n`` times, alone and together, and reward what should be."""
    results = []
    for k in range(first, first + n, 3):
        alone, *together = [ranks(loop, j) for j in range(k, k + 3)]
        some = [await engine.rank(loop, alone), *await engine.rank_many(loop, together)]
        for j, result in enumerate(some, k):
            assert not isinstance(result, ApiError), result
            clock.pass_seconds(1.5)
            if j % 11 == 0:
                await engine.activate(loop, result.event_id)
            if j % 4 != 3:
                await rewarded(engine, loop, result.event_id, float((j + len(result.action_id)) % 2), j)
        results += some
        await engine.settle()
    return results


def made_before_draws_by_loop(engine, loop, fields):
    """Create a loop as a version did whose draws depend on the event's id alone."""
    body = encode(Settings(**fields))
    engine.log.append([[Record(loop, LOOP, "loop after 0", body=body)]])


async def rewarded(engine, loop, event_id, value, j):
    if loop in ("formula", "new"):
        outcomes = {"click": 1.0, "buy": value} if j % 2 else {"click": value}
        await engine.reward(loop, event_id, outcomes=outcomes)
    else:
        await engine.reward(loop, event_id, value, f"r{j}" if j % 2 else None)


async def played(folder):
    """Return the log's records and the results of the script."""
    clock, results = Clock(), []
    async with running(folder, clock=clock) as engine:
        for loop, fields in (("adagrad", ADAGRAD), ("formula", FORMULA)):
            made_before_draws_by_loop(engine, loop, fields)
        await engine.settle()
        put = [Action(f"c{n}", raw({"topic": f"t{n % 2}", "size": n})) for n in range(4)]
        for loop in EARLIER_LOOPS:
            await engine.put_actions(loop, put, [])
            await engine.settle()
            results += await decided(engine, clock, loop, 0, 36)
        for number, changes in enumerate(CONTROLS):
            await engine.patch_settings("default", changes)
            results += await decided(engine, clock, "default", 100 * (1 + number), 12)
        slots = [Slot(id=f"s{k}", features=raw({"row": k}), baseline="a1" if k else None) for k in range(3)]
        page = SlotsRequest(actions=request(n_actions=5).actions, slots=slots, user="u1", event_id="page")
        results += [await engine.rank_slots("default", page), await engine.rank("default", ranks("default", 1))]
        clock.pass_seconds(700)
        await engine.settle()
        entries = [entry for loop in EARLIER_LOOPS for entry in engine.logged(loop)]
        await engine.create_loop("new", FORMULA)
        await engine.put_actions("new", put, [])
        await engine.settle()
        results += await decided(engine, clock, "new", 0, 36)
        return [*entries, *engine.logged("new")], results


def lines(entries, results):
    """Return a line for each record and each result."""
    for entry in entries:
        named = " ".join(str(part) for part in (entry.loop, entry.position, entry.kind, entry.event, entry.user))
        yield f"{named} {_digest(entry.example or b'')} {_digest(_rounded(entry.body))}"
    for result in results:
        shown = msgspec.json.encode(result)
        yield f"result {result.event_id} {getattr(result, 'action_id', '')} {_digest(_rounded(shown))}"


def _rounded(body):
    """Return the numbers of JSON with 6 digits; what is no JSON (a model) by its size."""
    try:
        return msgspec.json.encode(_round(msgspec.json.decode(body)))
    except msgspec.DecodeError:
        return b"%d" % len(body)


def _round(tree):
    if isinstance(tree, float):
        return float(f"{tree:.6g}")
    if isinstance(tree, dict):
        return {name: _round(value) for name, value in tree.items() if name not in ("token",)}
    return [_round(value) for value in tree] if isinstance(tree, list) else tree


def _digest(data):
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def script():
    """Return the lines of the script, and a digest of the exact bytes."""
    with tempfile.TemporaryDirectory() as folder:
        entries, results = asyncio.run(played(Path(folder)))
    exact = _digest(msgspec.msgpack.encode([entries, [msgspec.json.encode(result) for result in results]]))
    return [*lines(entries, results)], exact


if __name__ == "__main__":
    stored, exact = script()
    print("\n".join(stored))
    print(f"exact bytes: {exact}", file=sys.stderr)
