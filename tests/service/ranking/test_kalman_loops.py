"""Loops with residual-kalman: the service decides and learns as the library does, and publishes all of it."""

import asyncio
import zlib

import httpx
import msgspec
import numpy as np
import pytest
from live import run_service
from machine import Clock, running
from playing import play, raw, refused, request

from bandits import arms
from bandits.models.kalman import KalmanModel
from fedres.decisions.array_checks import check_first
from fedres.decisions.constants import OWN_BYTES, START_EVENTS
from fedres.decisions.kalman_state import Events
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of, request_of
from fedres.draws import event_draw as draw
from fedres.policies import OptimisticSquareCB
from fedres.policies.kernels import explore, pick
from fedres.scoring.sealing import sealed
from service.models.residual_kalman import PUBLISHED, PersonalKalman, from_bytes, read_personal
from service.rank.requests import Action, RankRequest
from service.settings import Settings

# Its name is part of each draw.
LOOP = "shop"


def crc(name):
    return zlib.crc32(name.encode())


class Library:
    """The library's model and policy, told what the service is told; ``predict`` sees what was published last."""

    def __init__(self, low, high):
        self.rule = OptimisticSquareCB().rule((low, high))
        self.model, self.owns = ResidualKalman((low, high)), {}
        self.shown, self.shown_owns = ResidualKalman((low, high)), {}

    def publish(self):
        self.shown.load_arrays(self.model.to_arrays())
        self.shown_owns = dict(self.owns)

    def decide(self, user, context, actions, event):
        """Return the action taken, the probabilities and the scores."""
        fields = [crc("_id"), crc("topic"), crc("price")]
        rows = [([crc(f"_id={a}"), crc(f"topic={t}"), crc("price")], [1, 1, p], fields) for a, t, p in actions]
        prepared = request_of(([crc("hour"), crc(f"day={context['day']}")], [context["hour"], 1.0]), rows)
        prediction = self.shown.predict(prepared, self.shown_owns.get(user, NO_MODEL))
        out = np.empty(len(rows))
        explore(
            self.rule, 0, self.shown.learned, prediction.means, prediction.widths, np.ones(len(rows), np.bool_), out
        )
        return pick(out, draw(event, f"{LOOP}\0")), out.tolist(), prediction.means.tolist(), prepared

    def learn(self, user, prepared, action, reward):
        events = events_of([(prepared, action, reward, 0)])
        (self.owns[user],) = self.model.learn(events, [self.owns.get(user, NO_MODEL)])


@pytest.mark.parametrize(("low", "high", "every"), [(0.0, 1.0, 1), (-2.0, 1.0, 7)])
def test_decisions_over_http_are_those_of_the_library_for_the_same_draws_and_publications(tmp_path, low, high, every):
    rng, library = np.random.default_rng(0), Library(low, high)
    settings = {"reward_range": [low, high], "default_reward": 0.0, "update_interval": 0.005}
    with run_service(tmp_path) as live, live.client() as client:
        live.make_loop(LOOP, **settings)
        live.engine.paused = True
        for k in range(70):
            user, context = f"u{rng.integers(4)}", {"hour": 1 + int(rng.integers(23)), "day": f"d{rng.integers(3)}"}
            actions = [(f"a{j}", f"t{rng.integers(2)}", round(float(rng.lognormal()), 2)) for j in range(5)]
            body = {"user": user, "context": context, "event_id": f"e{k}"}
            body["actions"] = [{"id": a, "features": {"topic": t, "price": p}} for a, t, p in actions]
            reply = client.post(f"/v1/loops/{LOOP}/rank", json=body).raise_for_status().json()
            action, chances, scores, prepared = library.decide(user, context, actions, f"e{k}")
            ranked = {one["id"]: one for one in reply["ranking"]}
            assert reply["action"] == f"a{action}"
            assert [ranked[f"a{j}"]["probability"] for j in range(5)] == chances
            assert [ranked[f"a{j}"]["score"] for j in range(5)] == scores
            value = float(np.float32(low + (high - low) * rng.random() * (action == k % 5)))
            client.post(f"/v1/loops/shop/events/e{k}/reward", json={"value": value}).raise_for_status()
            library.learn(user, prepared, action, value)
            if k % every == every - 1:
                live.settle("shop")
                library.publish()
    assert len(set(chances)) > 1


def test_a_bandit_predicts_and_explores_as_a_hosted_loop_does(tmp_path):
    """Both see the same events and publications: the numbers are the same to the bit."""

    async def story():
        rng, rule, model = np.random.default_rng(3), OptimisticSquareCB().rule((0.0, 1.0)), KalmanModel("fedres")
        async with running(tmp_path) as engine:
            for k in range(60):
                user, x = k % 3, np.round(rng.normal(size=4), 2)
                if k < 3:
                    model.join(user)
                offered, out = arms(x, 3), np.empty(3)
                means, widths = model.predict(user, offered, offered)
                explore(rule, 0, model.progress(user, 0), means, widths, np.ones(3, np.bool_), out)
                context = raw({str(j): value for j, value in enumerate(x.tolist())})
                actions = [Action(str(a)) for a in range(3)]
                answer = await engine.rank("default", RankRequest(user=f"u{user}", context=context, actions=actions))
                ranked, taken = {int(one.id): one for one in answer.ranking}, int(answer.action_id)
                assert [ranked[a].score for a in range(3)] == means.tolist()
                assert [ranked[a].probability for a in range(3)] == out.tolist()
                reward = float([x[0] > 0, x[1] > 0.3, user == 1][taken])
                await engine.reward("default", answer.event_id, reward)
                await engine.settle()
                model.play([(user, taken, offered, offered, reward)])
            assert (len(set(out)), all(own.size for own in model.owns.values())) == (3, True)

    asyncio.run(story())


def assert_published(published, learned):
    for name in PUBLISHED:
        mine, theirs = getattr(published, name), getattr(learned, name)
        assert (mine.shape, mine.tobytes()) == (theirs.shape, theirs.tobytes()), name


def test_rankers_have_also_blocks_that_changed_only_because_all_was_learned_again(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            model = engine.learner.loops["default"].shared.model
            model.choice_events = 60
            for k in range(61):
                offered = [Action("old" if k < 30 else "new", raw({"topic": "t"}))]
                answer = await engine.rank(
                    "default", RankRequest(user="u", context=raw({"hour": k % 24}), actions=offered)
                )
                await engine.reward("default", answer.event_id, float(k % 3 == 0))
                await engine.settle()
                if k >= 16:
                    assert_published(engine.context.loop("default").model.shared, model.shared)
            assert model.first is None

    asyncio.run(story())


def test_rankers_have_all_that_was_learned_however_the_model_grows(tmp_path):
    async def story():
        rng = np.random.default_rng(1)
        async with running(tmp_path) as engine:
            seen = set()
            for k in range(120):
                actions = [Action(f"new-{k}-{j}", raw({"topic": f"t{rng.integers(20)}"})) for j in range(3)]
                rank_request = RankRequest(
                    user=f"u{k % 5}", context=raw({"hour": k % 24, f"c{k % 40}": 1}), actions=actions
                )
                answer = await engine.rank("default", rank_request)
                await engine.reward("default", answer.event_id, float(rng.random()))
                if rng.random() < 0.4:
                    await engine.settle()
                    published = engine.context.loop("default").model
                    model = engine.learner.loops["default"].shared.model
                    assert published.learned == model.learned
                    if model.shared is not None:
                        seen.add(model.shared.means.shape[0])
                        assert_published(published.shared, model.shared)
            assert len(seen) >= 3

    asyncio.run(story())


def test_the_first_events_are_uniform_and_a_user_without_a_model_is_given_what_others_like(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for k in range(60):
                answer = await engine.rank("default", request(f"u{k % 6}", {"hour": k % 4}, event_id=f"e{k}"))
                if k < START_EVENTS:
                    assert {ranked.probability for ranked in answer.ranking} == {1 / 3}
                await engine.reward("default", answer.event_id, float(answer.action_id == "a2"))
                await engine.settle()
            new = await engine.rank("default", request("nobody yet", {"hour": 1}, explain=True))
            assert (new.ranking[0].id, new.ranking[0].probability > 0.9) == ("a2", True)
            assert all(why.width > 0 == why.personal for why in new.explanations)
            assert engine.view().n_users == 6
            model = engine.user_model("default", "u1")
            assert model["events"] + sum(k % 6 == 1 for k in range(START_EVENTS)) == 10
            assert str(crc("_id=a2")) in model["blocks"]

    asyncio.run(story())


def test_clicks_alone_teach_no_preference_until_an_event_is_known_to_have_failed(tmp_path):
    """Only a2 is ever clicked, and nothing is known of the others: they seem to be worth a try, again and again."""

    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            n_clicks = 0
            for k in range(90):
                answer = await engine.rank("default", request(f"u{k % 6}", {"hour": k % 4}, event_id=f"e{k}"))
                assert [ranked.probability for ranked in answer.ranking] == pytest.approx([1 / 3] * 3)
                if answer.action_id == "a2":
                    n_clicks += 1
                    await engine.reward("default", answer.event_id, 1.0)
                    await engine.settle()
            assert START_EVENTS < n_clicks < 45
            clock.pass_seconds(10)  # silence of so long is a failure
            await engine.settle()
            after = await engine.rank("default", request("u1", {"hour": 1}))
            assert max(ranked.probability for ranked in after.ranking) > 0.9

    asyncio.run(story())


def test_a_personal_model_takes_eight_kilobytes_at_most(tmp_path):
    async def story():
        rng = np.random.default_rng(2)
        async with running(tmp_path) as engine:
            for _ in range(80):
                actions = [Action(f"a{j}", raw({"topic": f"t{j % 9}"})) for j in range(40)]
                context = {f"f{j}": float(rng.normal()) for j in range(100)}
                answer = await engine.rank("default", RankRequest(user="u", context=raw(context), actions=actions))
                await engine.reward("default", answer.event_id, float(rng.random()))
            await engine.settle()
            data = engine.learner.personal.data(engine.view().id, "u")
            assert 1_000 < data.nbytes <= OWN_BYTES

    asyncio.run(story())


def test_another_shared_model_begins_with_nobodys_personal_models(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("other")
            await play(engine, 80, loop="other")
            for k in range(40):  # with fewer coordinates than the other has
                answer = await engine.rank("default", RankRequest(user="user-1", actions=[Action("a", raw({}))]))
                await engine.reward("default", answer.event_id, float(k % 2))
            await engine.settle()
            assert engine.user_model("default", "user-1")["blocks"]
            await engine.put_model("default", await engine.model("other"))
            assert await refused(missing(engine, "user-1")) == (404, "unknown_user")
            learned = [engine.context.loop(loop).n_learned for loop in ("default", "other")]
            assert learned[0] == learned[1] > 0
            nobody, somebody = [
                await engine.rank("default", request(user, {"hour": 1}, event_id=f"{user} asks", explain=True))
                for user in ("nobody", "user-1")
            ]
            assert nobody.explanations == somebody.explanations
            await play(engine, 60, seed=1)
            assert engine.user_model("default", "user-1")["blocks"]
            assert engine.digest() == engine.rebuilt()

    asyncio.run(story())


async def missing(engine, user):
    return engine.user_model("default", user)


def damaged(state, change):
    """Return a model's bytes with its arrays changed, under a good checksum."""
    rows = msgspec.msgpack.decode(state[20:-4])
    change(rows)
    return sealed(state[:20] + msgspec.msgpack.encode(rows))


def numbers(rows, name, values):
    rows[name][2] = np.asarray(values, rows[name][0]).tobytes()


def changed(rows, name, change):
    """Change an array of a model in place."""
    kind, shape, data = rows[name]
    array = np.frombuffer(data, kind).reshape(shape).copy()
    change(array)
    rows[name][2] = array.tobytes()


def keys_that_are_not_counted(rows):
    """The table has as many keys as it may, and is said to have none: it would overflow, and a search never end."""
    changed(rows, "scale_keys", lambda keys: keys.__setitem__(slice(1_600), np.arange(1, 1_601)))
    changed(rows, "counts", lambda counts: counts.__setitem__(4, 0))


def moved_key(rows):
    def move(keys):
        slot, free = np.flatnonzero(keys)[0], np.flatnonzero(keys == 0)
        keys[free[free > slot + 1][0]], keys[slot] = keys[slot], 0

    changed(rows, "scale_keys", move)


def doubled_key(rows):
    changed(rows, "scale_keys", lambda keys: keys.__setitem__(np.flatnonzero(keys)[0] + 1, keys.max()))
    changed(rows, "counts", lambda counts: counts.__setitem__(4, 2))


CHANGES = {
    "an array is missing": (lambda rows: rows.pop("means"), "arrays must be"),
    "a core that is elsewhere": (lambda rows: numbers(rows, "scale_core", np.full(2048, 9)), "scale_core"),
    "more blocks than there are": (lambda rows: numbers(rows, "counts", [50, 100, 1, 2, 3]), "must have the shape"),
    "no basis": (lambda rows: numbers(rows, "counts", [50, 4, 0, 2, 3]), "must be in \\[1, 24\\], got 0"),
    "no noise": (lambda rows: numbers(rows, "numbers", [np.nan, 1.0]), "numbers must be finite"),
    "no such type": (lambda rows: rows["means"].__setitem__(0, "O"), "state must be readable"),
    "too many bytes": (lambda rows: rows["moment"].__setitem__(2, rows["moment"][2] + b"0" * 8), "shape"),
    "keys that are not counted": (keys_that_are_not_counted, "must have as many keys as counts has scales, 0, got"),
    "a key without statistics": (moved_key, "scale_core must be"),
    "a key twice": (doubled_key, "scale_keys must have every key once"),
    "a block twice": (lambda rows: changed(rows, "block_keys", lambda keys: keys.fill(0)), "every key once"),
    "a scale without a unit": (lambda rows: changed(rows, "scale_stats", lambda s: s.fill(0)), "positive units"),
    "extreme covariances": (lambda rows: changed(rows, "covariances", lambda P: P.fill(1e308)), "covariances must be"),
    "negative variances": (lambda rows: changed(rows, "covariances", lambda P: np.negative(P, P)), "covariances must"),
    "covariances that are none": (
        lambda rows: changed(rows, "covariances", lambda P: P.fill(0.0) or P[:, 0].fill(1.0) or P[:, :, 0].fill(1.0)),
        "no negative eigenvalues",
    ),
    "extreme means": (lambda rows: changed(rows, "means", lambda means: means.fill(-1e308)), "means must be"),
    "a prior out of its bounds": (lambda rows: changed(rows, "log_tau", lambda t: t.fill(700.0)), "log_tau must be"),
    "a prior of pairs out of its bounds": (
        lambda rows: changed(rows, "pair_log_tau", lambda t: t.fill(-99.0)),
        "pair_log_tau must be",
    ),
    "an extreme tail": (lambda rows: changed(rows, "tail", lambda tail: tail.fill(3e38)), "tail must be"),
    "blocks of the future": (lambda rows: changed(rows, "block_used", lambda used: used.fill(2**60)), "block_used"),
    "an extreme basis": (lambda rows: changed(rows, "bases", lambda bases: bases.fill(1e300)), "bases must be"),
}


@pytest.mark.parametrize(("change", "rule"), CHANGES.values(), ids=CHANGES)
def test_a_model_that_kernels_must_not_see_is_refused(tmp_path, change, rule):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 40)
            state = await engine.model("default")
            assert damaged(state, lambda rows: None) == state
            with pytest.raises(ValueError, match=rule):
                from_bytes(Settings(), damaged(state, change))
            assert await refused(engine.put_model("default", damaged(state, change))) == (422, "invalid_model")

    asyncio.run(story())


@pytest.mark.parametrize(("sizes", "rule"), [([60_000], "2002"), ([2_000] * 70, "131072 features in all")])
def test_a_model_whose_first_events_are_too_large_is_refused(sizes, rule):
    """Work grows with the square of an event's features: one of 250,000 kept the learner busy for minutes."""
    n = sum(sizes)
    features = np.zeros(n, np.uint32), np.ones(n, np.float32), np.zeros(n, np.uint32)
    each = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.float32), np.full(len(sizes), -1, np.int64)
    first = dict(zip(Events._fields, (*features, np.cumsum([0, *sizes]), *each), strict=True))
    with pytest.raises(ValueError, match=rule):
        check_first(first, None if len(sizes) < START_EVENTS else len(sizes))


def test_nobody_downloads_single_events_of_a_start_that_is_not_over(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 10)
            state = await engine.model("default")
            assert msgspec.msgpack.decode(state[20:-4]) == {}
            await engine.put_model("default", state)  # and it begins anew with it
            await play(engine, 40, seed=1)
            assert engine.learner.loops["default"].shared.model.shared is not None
            assert engine.digest() == engine.rebuilt()

    asyncio.run(story())


def test_a_model_is_the_same_after_its_bytes_before_and_after_the_start(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for n in (10, 40):
                await play(engine, n, seed=n)
                state = await engine.model("default")
                assert from_bytes(Settings(), state).to_bytes() == state
            _, words = read_personal(engine.learner.personal.data(engine.view().id, "user-1"))
            assert PersonalKalman.from_bytes(words.to_bytes()).words.tolist() == words.words.tolist()

    asyncio.run(story())


def test_devices_are_told_which_loops_they_can_use(tmp_path):
    with run_service(tmp_path) as live, live.client() as client:
        live.make_loop("phones", model="adagrad")
        assert client.get("/v1/loops/phones/federated/round").json()["policy"] == "epsilon-greedy"
        wrong = ("/v1/federated/round", "/v1/loops/phones/federated/round?model=residual-kalman")
        for reply in (*map(client.get, wrong), client.post("/v1/federated/scores", json={"actions": [{"id": "tea"}]})):
            assert (reply.status_code, reply.json()["error"]["code"]) == (409, "no_device_model")
        right = client.get("/v1/federated/round?model=residual-kalman").json()
        assert (right["policy"], right["floor"], right["gamma"]) == ("optimistic-squarecb", 0.002, 300.0)
        body = {"client": "phone", "residuals": [{"seq": 1, "version": 1, "local": 0, "label": 1}]}
        body["residuals"][0] |= {"context": {}, "action": {"id": "tea", "features": {}}}
        assert client.post("/v1/federated/residuals", json=body).status_code == httpx.codes.CONFLICT
