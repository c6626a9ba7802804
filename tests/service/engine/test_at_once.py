"""Decisions made together are, byte for byte, those that are made one by one."""

import asyncio
import itertools

import msgspec
import numpy as np
import pytest

from fedres.event_ids import new_event_id
from fedres.scoring.model import PersonalModel, SharedModel, learn
from service.engine import Engine
from service.engine.choosing import _best_first
from service.engine.deciding import Action, KnownAction, Offer, RankRequest, decide
from service.engine.engine import _record
from service.errors import ApiError

RICH = [Action(f"a{n}", msgspec.Raw(b'{"x": %d, "kind": "k%d"}' % (n % 3, n))) for n in range(5)]
ODD = [Action('"quoted" \\ né', msgspec.Raw(b'{ "x" : [1, 2.5] }')), Action("known"), Action("b", msgspec.Raw(b"{}"))]


def requests():
    """Yield requests of many kinds, all with ids of their own."""
    contexts = (b"", b"{}", b'{ "hour": 9, "day": "so\xc3\xb1ado" }', b'{"c": {"d": true, "e": [0.5, -1e-7]}}')
    kinds = itertools.product(contexts, (RICH, ODD, ODD[:1]), (None, "nobody", "somebody"), (False, True))
    for k, (context, actions, user, defer) in enumerate(kinds):
        exclude = [actions[0].id, "other"] if k % 3 == 0 and len(actions) > 1 else []
        event_id = f'e"{k}"' if k % 2 else new_event_id()
        offer = Offer(actions) if k % 5 else list(actions)
        fields = {"context": msgspec.Raw(context), "user": user, "exclude": exclude, "defer": defer}
        yield RankRequest(actions=offer, event_id=event_id, **fields)


def trained(engine):
    """Return a view and a personal model that tell actions apart, put where the engine finds them."""
    view, shared, personal = engine.view("default"), SharedModel(), PersonalModel()
    preparer, rng = engine._preparers[view.settings.crosses], np.random.default_rng(0)
    prepared = preparer.prepare(b'{"hour": 9, "c": {"d": true}}', [(a.id, bytes(a.features)) for a in (*RICH, ODD[0])])
    for _ in range(30):
        learn(prepared, int(rng.integers(6)), float(rng.random()), shared, personal)
    view.weights[:] = shared.weights
    for user, model in (("nobody", None), ("somebody", personal)):
        engine._personal.remember((view.since, user), engine._personal.generation, model)
    return view, {"somebody": personal}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"policy": "greedy", "personal": False},
        {"policy": "squarecb", "reward_range": [-1, 2], "default_reward": 0},
        {"apprentice": True, "epsilon": 1},
        {"crosses": False, "epsilon": 0.5},
    ],
)
def test_answers_records_and_what_the_learner_gets_are_those_of_single_decisions(tmp_path, settings):
    async def story():
        engine = Engine.open(tmp_path / "store.db")
        await engine.put_actions("default", [Action("known", msgspec.Raw(b'{"y": "z"}'))])
        await engine.put_settings("default", settings)
        view, models = trained(engine)
        asked = list(requests())
        together = engine.decide_at_once("default", asked)
        for request, written in zip(asked, together, strict=True):
            personal = models.get(request.user) if view.settings.personal else None
            single = decide(request, view, personal, engine._preparers[view.settings.crosses], engine._given.where)
            record = _record("default", request, single)
            assert written.answer == msgspec.json.encode(single.result)
            assert written.record == record
            assert getattr(written.record.body, "known", None) == getattr(record.body, "known", None)
        scores = {tuple(msgspec.json.decode(written.record.body)["scores"]) for written in together}
        await engine.close()
        return len(scores)

    assert asyncio.run(story()) > 5


def test_what_must_be_awaited_explained_or_refused_is_not_decided_together(tmp_path):
    async def story():
        engine = Engine.open(tmp_path / "store.db")
        good = RankRequest(actions=list(RICH))
        unknown = RankRequest(actions=list(RICH), user="from the disk")
        explained = RankRequest(actions=list(RICH), explain=True)
        unregistered = RankRequest(actions=[Action("nowhere")])
        broken = RankRequest(actions=list(RICH), context=msgspec.Raw(b"[]"))
        found = engine.decide_at_once("default", [unknown, good, None, explained, unregistered, good, broken])
        async with engine._change():
            assert engine.decide_at_once("default", [good]) == [None]
        assert engine.decide_at_once("default", [unknown]) == [None]
        with pytest.raises(ApiError, match="loop must be one that exists, got 'no'"):
            engine.decide_at_once("no", [good])
        await engine.close()
        return [written is not None for written in found]

    assert asyncio.run(story()) == [False, True, False, False, False, True, False]


@pytest.mark.parametrize("alone_first", [False, True])
def test_a_list_with_actions_of_the_catalogue_follows_its_changes(tmp_path, alone_first):
    async def story():
        engine, request, found = Engine.open(tmp_path / "store.db"), RankRequest(actions=Offer([Action("known")])), []
        for x in (1, 2):
            position = await engine.put_actions("default", [Action("known", msgspec.Raw(b'{"x": %d}' % x))])
            if alone_first:
                await engine.rank("default", request)
            for written in engine.decide_at_once("default", [request, request]):
                body, case = msgspec.json.decode(written.record.body), written.record.body.known.case
                assert body["actions"] == [{"id": "known", "put": position}]
            found.append(np.frombuffer(case.values, np.float32).tolist())
        await engine.close()
        return found

    assert asyncio.run(story()) == [[1, 1], [1, 2]]


def test_lists_put_together_from_known_actions_are_decided_as_lists_read_anew(tmp_path):
    async def story():
        engine, rng = Engine.open(tmp_path / "store.db"), np.random.default_rng(0)
        await engine.create_loop("shop", {"crosses": False})
        known, logged = [KnownAction.of(action) for action in (*RICH, *ODD)], {"default": set(), "shop": set()}
        for k in range(120):
            loop = "default" if rng.random() < 0.6 else "shop"
            if k % 20 < 2:
                for name in logged:
                    await engine.put_actions(name, [Action("known", msgspec.Raw(b'{"x": %d}' % k))])
            some = [known[n] for n in rng.permutation(len(known))[: rng.integers(1, 7)]]
            fields = {"user": f"u{rng.integers(3)}", "event_id": f"e{k}", "context": msgspec.Raw(b'{"hour": 9}')}
            plain = RankRequest(actions=[one.action for one in some], **fields)
            view, _ = await engine._models(loop, plain.user)
            [written] = engine.decide_at_once(loop, [RankRequest(actions=Offer.of(some), **fields)])
            single = decide(plain, view, None, engine._preparers[view.settings.crosses], engine._given.where)
            assert (written.answer, written.record) == (
                msgspec.json.encode(single.result),
                _record(loop, plain, single),
            )
            assert written.record.body.known == _record(loop, plain, single).body.known
            actions = msgspec.json.decode(written.record.body)["actions"]
            logged[loop] |= {(name, action[name]) for action in actions for name in ("given", "put") if name in action}
            await engine.rank(loop, plain)
        await engine.close()
        return logged

    logged = asyncio.run(story())
    assert not logged["default"] & logged["shop"], "no reference leads into another loop"
    for references in logged.values():
        assert min(sum(name == kind for name, _ in references) for kind in ("given", "put")) > 2


@pytest.mark.parametrize("seed", range(3))
def test_the_best_come_first_and_equals_in_their_order(seed):
    scores = np.random.default_rng(seed).integers(-3, 4, 40).astype(float)
    order = np.empty(40, np.int64)
    _best_first(scores, order)
    assert order.tolist() == sorted(range(40), key=scores.__getitem__, reverse=True)
