// Run by `npm test`, which starts a service (FEDRES_URL); tests/client/test_typescript.py also has a faulty proxy before it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, ServiceError, newEventId } from "../fedres.js";

const { FEDRES_URL: url, FEDRES_FAULTY_URL: faulty, FEDRES_LOOP: loop } = process.env;
if (!url) throw new Error("these tests need a service at FEDRES_URL: run them by npm test");
const MENU = { tea: { hot: true }, juice: { hot: false }, milk: {} };
const nobody = "http://127.0.0.1:1";
const LIMIT = 1000 * Number(process.env.FEDRES_TEST_SECONDS ?? 300);

/** A client for which a slow machine is no failure. */
const patient = (address, options) => new Client(address, { timeout: LIMIT, adminTimeout: LIMIT, ...options });

test("decides, and sends the reward", async () => {
  const client = patient(url, { fallback: null });
  const decision = await client.rank({ user: "anna", context: { weather: "cold" }, actions: MENU, explain: true });
  assert.ok(decision.action in MENU);
  assert.equal(decision.ranking.length, 3);
  assert.equal(decision.explanations.length, 3);
  decision.reward(1);
  assert.ok(await client.flush(LIMIT));
  assert.deepEqual(client.rewardStatus(), { queued: 0, sent: 1, refused: 0, dropped: 0, oldestMilliseconds: 0 });
  await client.close();
  assert.throws(() => client.reward("e", 1), /closed/);
});

test("decides on many requests, and on slots", async () => {
  const client = patient(url);
  const taken = (await client.rank({ actions: MENU })).eventId;
  const [good, refused] = await client.rankMany([
    { actions: ["a", "b"], exclude: ["a"] },
    { actions: MENU, user: "ben", eventId: taken },
  ]);
  assert.deepEqual([good.action, good.fallback], ["b", false]);
  assert.deepEqual([refused.fallback, refused.error.code], [true, "event_exists"]);
  const [top, side] = await client.slots(["top", { id: "side", exclude: ["milk"] }], { actions: MENU });
  assert.deepEqual([top.slot, side.slot, side.fallback], ["top", "side", false]);
  assert.notEqual(top.action, side.action);
  await client.close();
});

test("recommends items of the catalogue, or those of the fallback", async () => {
  const client = patient(url);
  await client.putActions({ tea: { hot: true }, juice: { hot: false }, milk: { hot: true } });
  const page = await client.recommend({ n: 5, user: "ann", filter: { hot: true }, exclude: ["milk"], context: { hour: 9 }, eventId: "js-page" });
  assert.deepEqual(page.map(({ id, eventId, probability, fallback }) => [id, eventId, probability, fallback]), [["tea", "js-page~1", 1, false]]);
  page[0].reward(1);
  assert.ok(await client.flush(LIMIT));
  assert.deepEqual((await client.recommend({ filter: { heat: 1 }, fallback: ["a", "b"], n: 1 })).map(({ id, error }) => [id, error.code]), [["a", "unknown_attribute"]]);
  await assert.rejects(client.recommend({ users: "ann" }), /did you mean "user"/);
  await client.close();
});

test("sends feedback once", async () => {
  const client = patient(url);
  const events = [{ action: "tea", reward: 1, user: 7, eventId: "js-rating", time: new Date(1714557600000) }, { action: { id: "juice", features: { hot: false } }, reward: 0.5, context: { hour: 9 } }];
  assert.deepEqual(await client.feedback(events), { stored: 2, repeated: 0 });
  assert.deepEqual(await client.feedback(events.slice(0, 1)), { stored: 0, repeated: 1 });
  await assert.rejects(client.feedback([{ item: "tea", reward: 1 }]), /item/);
  assert.equal((await client.popular({ n: 1, seconds: 3e7 })).length, 1);
  assert.deepEqual((await client.similar("tea", { n: 1 })).map(({ id }) => id), ["milk"]);
  await assert.rejects(client.similar("te/a"), /'te\/a' is not in the catalogue/);
  await assert.rejects(client.feedback([{ action: "tea", reward: 2 }]), /reward must be in/);
  await client.close();
});

test("through a faulty network nothing is lost and nothing doubled", { skip: !faulty && "there is no faulty proxy" }, async () => {
  const client = patient(faulty, { loop, fallback: null });
  const decided = [];
  for (let k = 0; k < 40; k++) {
    const decision = await client.rank({ context: { k }, actions: MENU });
    decision.reward(1);
    decided.push([decision.eventId, decision.action]);
  }
  assert.ok(await client.flush(LIMIT));
  assert.equal(client.rewardStatus().sent, 40);
  await client.close();
  console.log(`decided ${JSON.stringify(decided)}`);
});

test("falls back while the service is away, and says so", async () => {
  const client = new Client(nobody, { timeout: 100 });
  const decision = await client.rank({ actions: MENU, exclude: ["tea"] });
  decision.reward(1);
  assert.deepEqual([decision.action, decision.fallback, decision.error.status], ["juice", true, 0]);
  assert.equal(client.rewardStatus().queued, 0);
  assert.deepEqual((await client.slots(["a", "b"], { actions: MENU })).map((one) => one.action), ["tea", "juice"]);
  for (const [fallback, action] of [[() => "milk", "milk"], [() => "wine", "tea"], [() => { throw Error(); }, "tea"]]) {
    assert.equal((await new Client(nobody, { timeout: 50, fallback }).rank({ actions: MENU })).action, action);
  }
  await assert.rejects(new Client(nobody, { timeout: 50, fallback: null }).rank({ actions: MENU }), ServiceError);
  await assert.rejects(client.rank({ actions: [] }), RangeError);
});

test("a reply that never comes keeps nobody waiting", async () => {
  const never = (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(Error("gone"))));
  assert.ok((await new Client(url, { timeout: 50, fetch: never }).rank({ actions: MENU })).fallback);
});

test("drops the oldest rewards when there are too many", async () => {
  const client = new Client(nobody, { queueLimit: 10 });
  for (let k = 0; k < 100; k++) client.reward(`e${k}`, 1);
  assert.deepEqual(counted(client), { queued: 10, sent: 0, refused: 0, dropped: 90 });
  await client.close(0);
  assert.equal(client.rewardStatus().dropped, 100);
});

test("ids are new and need no quoting", () => {
  const ids = new Set(Array.from({ length: 1000 }, newEventId));
  assert.equal(ids.size, 1000);
  for (const id of ids) assert.match(id, /^[\w-]{22}$/);
});

test("a loop whose first answer was lost is there and ours", async () => {
  let lost = 0;
  const losing = async (...asked) => {
    const reply = await fetch(...asked);
    if (lost++ === 0) throw new Error("the answer was lost");
    return reply;
  };
  const client = patient(url, { fetch: losing }), name = `made-${newEventId()}`;
  assert.equal((await client.createLoop(name, { epsilon: 0.25 })).epsilon, 0.25);
  assert.equal(lost, 2);
  await assert.rejects(client.createLoop(name, { epsilon: 0.5 }), (error) => error.status === 409);
  await client.close();
});

test("named outcomes make the reward", async () => {
  const admin = patient(url), name = `outcomes-${newEventId()}`;
  await admin.createLoop(name, { outcomes: { click: 600, purchase: 600 }, formula: "click + purchase / 100" });
  const client = patient(url, { loop: name, fallback: null });
  const decision = await client.rank({ actions: MENU });
  decision.reward({ click: 1 });
  client.reward(decision.eventId, { purchase: 50 });
  assert.ok(await client.flush(LIMIT));
  assert.deepEqual(client.rewardStatus(), { queued: 0, sent: 2, refused: 0, dropped: 0, oldestMilliseconds: 0 });
  await Promise.all([admin.close(), client.close()]);
});

test("settings, catalogue, export and the rest", async () => {
  const client = patient(url, { loop: `admin-${newEventId()}`, fallback: null });
  const name = `admin-${newEventId()}`;
  assert.equal((await client.createLoop(name, { epsilon: 0.3 })).epsilon, 0.3);
  const shop = patient(url, { loop: name, fallback: null });
  assert.equal((await shop.changeSettings({ wait_time: 5 })).epsilon, 0.3);
  assert.deepEqual([(await shop.settings()).wait_time, (await shop.replaceSettings({})).epsilon], [5, 0.1]);
  await shop.putActions({ ...MENU, old: {} });
  await shop.putActions({}, { retire: ["old"] });
  assert.deepEqual(await shop.catalogue(), MENU);
  for (let k = 0; k < 12; k++) (await shop.rank({ user: `${name}-${k}`, actions: ["tea", "juice"] })).reward(k % 2);
  assert.ok(await shop.flush(LIMIT));
  const events = [];
  for await (const event of shop.events({ pageSize: 5 })) events.push(event);
  assert.equal(events.length, 12);
  assert.equal(new Set(events.map((event) => event.event_id)).size, 12);
  assert.deepEqual([(await shop.evaluate(["uniform"])).rows.length > 0, await shop.unmatched()], [true, []]);
  const [once, daily] = await Promise.all([false, true].map((timeUniform) => shop.evaluate(["uniform"], { timeUniform })));
  assert.ok(daily.rows[0].low < once.rows[0].low);
  await assert.rejects(shop.lift(), (error) => error.code === "no_experiment");
  await shop.changeSettings({ control: { share: 0.5, experiment: "autumn" } });
  assert.equal((await shop.lift()).experiment, "autumn");
  await shop.erase(`${name}-0`);
  for await (const event of shop.events()) assert.notEqual(event.user, `${name}-0`);
  assert.ok("loops" in (await shop.status()));
  await assert.rejects(client.settings(), (error) => error instanceof ServiceError && error.status === 404);
  await Promise.all([client.close(), shop.close()]);
});

test("a reward that comes just as the last one was sent is sent too", async () => {
  for (let ticks = 0; ticks < 12; ticks++) {
    let sent = 0, late;
    const text = async () => {
      if (++sent === 1) late = (async () => { for (let k = 0; k < ticks; k++) await null; client.reward("late", 1); })();
      return '{"results": [{"event_id": "first"}]}';
    };
    const client = new Client(nobody, { fetch: async () => ({ ok: true, status: 200, headers: new Headers(), text }) });
    client.reward("first", 1);
    await client.flush();
    await late;
    assert.ok(await client.flush(), `${ticks} ticks later`);
    assert.equal(client.rewardStatus().sent, 2);
  }
});

test("a reward that is no JSON is refused at once and holds up no other, and one that changes later is sent as it was", async () => {
  const bodies = [];
  const client = new Client(nobody, { fetch: async (_, { body }) => (bodies.push(body), stored(body)) });
  assert.throws(() => client.reward("a", { click: "1" }), TypeError);
  const outcomes = { click: 1 };
  client.reward("b", 1, { id: "b" });
  client.reward("c", outcomes, { id: "c" });
  outcomes.click = 2;
  assert.ok(await client.flush());
  const [first, second] = bodies.flatMap((body) => JSON.parse(body).rewards);
  assert.deepEqual([first, second], [{ event_id: "b", value: 1, id: "b" }, { event_id: "c", outcomes: { click: 1 }, id: "c" }]);
  await assert.rejects(client.rank({ context: { n: () => 1 }, actions: MENU }), TypeError);
});

test("timers that are too long for setTimeout do not go off at once", async (context) => {
  const set = context.mock.method(globalThis, "setTimeout", () => 0).mock;
  const longest = () => Math.max(...set.calls.map(({ arguments: [, milliseconds] }) => milliseconds));
  const busy = async () => new Response("{}", { status: 503, headers: { "Retry-After": "9999999" } });
  const client = new Client(nobody, { fetch: busy, adminTimeout: Infinity });
  client.reward("a", 1);
  void client.flush(Infinity);
  void client.settings();
  while (set.callCount() < 5) await null; // flush, two tries, two waits
  assert.ok(longest() < 2 ** 31);
});

test("a clock that is set back does not move the deadline", async (context) => {
  let tries = 0;
  const busy = async () => {
    tries += 1;
    context.mock.method(Date, "now", () => 0);
    return new Response("{}", { status: 503 });
  };
  const client = new Client(nobody, { fetch: async () => (tries > 99 ? new Response("{}", { status: 422 }) : busy()), random: () => 0.001 });
  assert.equal((await client.rank({ actions: MENU, timeout: 20 })).error.status, 503);
});

test("whatever a proxy answers, decisions fall back and other calls throw a ServiceError", async () => {
  for (const said of ["{}", "null", "[]", '{"results": [null]}', '{"results": [{}]}', '{"slots": []}', '{"slots": [{"id": "top"}]}']) {
    const client = new Client(nobody, { fetch: async () => new Response(said) });
    const decisions = [await client.rank({ actions: MENU }), ...await client.rankMany([{ actions: MENU }]), ...await client.slots(["top"], { actions: MENU })];
    assert.deepEqual(decisions.map(({ action, error }) => [action, error.code]), Array(3).fill(["tea", "unreadable_answer"]), said);
    for (const call of ["settings", "catalogue", "unmatched"]) await assert.rejects(client[call](), ServiceError);
  }
  const client = new Client(nobody, { fetch: async () => new Response("<html>") });
  await assert.rejects(client.events().next(), ServiceError);
});

/** The service's answer to a batch of rewards that are all stored. */
const stored = (body) => Response.json({ results: JSON.parse(body).rewards.map(({ event_id: event }) => ({ event_id: event })) });
const counted = (client) => (({ oldestMilliseconds: _, ...counts }) => counts)(client.rewardStatus());

const answers = (status, code) => async () => Response.json({ error: { code, message: "no", target: null } }, { status });
const warnings = (context) => context.mock.method(console, "warn", () => {}).mock;

test("a wrong key, a missing loop, a proxy and a redirect lose no reward, and are said once", async (context) => {
  const refusals = [answers(401, "unauthorized"), answers(403, "forbidden"), answers(404, "unknown_loop")];
  const others = [async () => new Response("<html>", { status: 400 }), async () => new Response(null, { status: 301 })];
  for (const refusal of [...refusals, ...others]) {
    const warned = warnings(context);
    let fetch = refusal;
    let waits = 0;
    const set = context.mock.method(globalThis, "setTimeout", (work, after, ...rest) => {
      const isHeld = after > 20_000 && after <= 30_000; // such a wait takes a millisecond
      if (isHeld) setOn += 30_000;
      waits += isHeld;
      return realTimeout(work, isHeld ? 1 : after, ...rest);
    });
    let setOn = 0;
    const clock = context.mock.method(performance, "now", () => realNow() + setOn);
    const client = new Client(nobody, { fetch: (...asked) => fetch(...asked) });
    for (let k = 0; k < 5; k++) client.reward(`e${k}`, true);
    assert.equal(await client.flush(20), false);
    while (waits < 3) await new Promise((resolve) => realTimeout(resolve, 1));
    assert.deepEqual(counted(client), { queued: 5, sent: 0, refused: 0, dropped: 0 });
    const messages = warned.calls.map(({ arguments: [message] }) => message);
    assert.equal(messages.filter((message) => message.includes("takes no rewards of")).length, 1);
    assert.ok(messages.length <= 2); // and that rewards have waited for long
    const bodies = [];
    fetch = async (_, { body }) => (bodies.push(...JSON.parse(body).rewards), stored(body));
    assert.ok(await client.flush(LIMIT));
    assert.deepEqual(bodies.map(({ event_id: event, value }) => [event, value]), ["e0", "e1", "e2", "e3", "e4"].map((event) => [event, 1]));
    set.mock.restore();
    clock.mock.restore();
    await client.close();
  }
});
const realTimeout = globalThis.setTimeout;
const realNow = performance.now.bind(performance);

test("one reward that makes the service refuse a batch keeps no other, and a service without batches gets them one by one", async (context) => {
  warnings(context);
  const seen = [];
  const poisoned = async (_, { body }) => (seen.push(JSON.parse(body).rewards), body.includes("poison") ? answers(422, "invalid")() : stored(body));
  const client = new Client(nobody, { fetch: poisoned });
  for (let k = 0; k < 400; k++) client.reward(k === 123 ? "poison" : `e${k}`, 1);
  assert.ok(await client.flush(LIMIT));
  assert.deepEqual(counted(client), { queued: 0, sent: 399, refused: 1, dropped: 0 });
  assert.ok(seen.length < 40, `${seen.length} requests`);
  const sent = seen.filter((batch) => !batch.some(({ event_id: event }) => event === "poison")).flat().map(({ event_id: event }) => event);
  assert.deepEqual(sent, Array.from({ length: 400 }, (_, k) => `e${k}`).filter((event) => event !== "e123"));

  const paths = [];
  const older = async (path) => (paths.push(path.slice(path.indexOf("/events"))), path.endsWith("/rewards") ? answers(404, "unknown_path")() : new Response(null, { status: 204 }));
  const other = new Client(nobody, { fetch: older });
  for (const event of ["a/b", "..", ".", "c"]) other.reward(event, 1);
  other.activate("d");
  assert.ok(await other.flush(LIMIT));
  assert.deepEqual(counted(other), { queued: 0, sent: 3, refused: 2, dropped: 0 });
  assert.deepEqual(paths, ["/events/rewards", "/events/a%2Fb/reward", "/events/c/reward", "/events/d/activate"]);
});

test("no id, however strange, changes what happens to the next call", async (context) => {
  warnings(context);
  const received = [];
  const decided = { event_id: "e", action: "tea", probability: 1, ranking: [], model_version: 1 };
  const fetch = async (path, { body }) => {
    if (new URL(path).pathname !== path.slice(nobody.length).split("?")[0]) return new Response("<html>", { status: 404 }); // normalized on its way
    if (!path.endsWith("/events/rewards")) return Response.json(decided);
    received.push(...JSON.parse(body).rewards.map(({ event_id: event }) => event));
    return stored(body);
  };
  const client = new Client(nobody, { fetch });
  for (const strange of [".", "..", "../..", "a/b", "\\", "%2e%2e", "%00", "rewards", "?x=1", "#", " ", "é", "😀", "\ud800", "x".repeat(200), "x".repeat(201), ""]) {
    const calls = [
      () => client.reward(strange, 1), () => client.reward("e", 1, { id: strange }), () => client.reward("e", { [strange]: 1 }), () => client.activate(strange),
      () => client.rank({ actions: [strange, "b"], user: strange }), () => client.similar(strange), () => client.erase(strange), () => new Client(nobody, { loop: strange }),
    ];
    for (const call of calls) {
      try {
        await call();
      } catch (error) {
        assert.ok(error instanceof RangeError || error instanceof TypeError || error instanceof ServiceError, `${strange}: ${error}`);
      }
      assert.equal((await client.rank({ actions: MENU })).fallback, false, strange);
    }
    client.reward(`good after ${strange.length}`, 1);
    assert.ok(await client.flush(LIMIT), strange);
    assert.equal(received.at(-1), `good after ${strange.length}`);
  }
  assert.ok(received.includes("..") && received.includes("."));
});

test("rewards have an age, and one that waits for long is said", async (context) => {
  const warned = warnings(context);
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const client = new Client(nobody, { fetch: async () => new Promise(() => {}) });
  client.reward("a", 1);
  now = 11_000;
  assert.equal(client.rewardStatus().oldestMilliseconds, 11_000);
  for (let k = 0; k < 3; k++) client.reward("b", 1);
  assert.deepEqual(warned.calls.map(({ arguments: [message] }) => message), ["fedres: rewards have waited for 10 s to be sent: 2 are queued"]);
});

test("a client that is closed while its key is wrong waits for one more try", async (context) => {
  const warned = warnings(context);
  const client = new Client(nobody, { fetch: answers(401, "unauthorized") });
  client.reward("e", 1);
  await client.close(600_000);
  assert.equal(client.rewardStatus().dropped, 1);
  assert.match(warned.calls.at(-1).arguments[0], /1 rewards were not sent/);
});

test("rewards are numbers, true is 1, and all else is thrown at the call", async () => {
  const bodies = [];
  const client = new Client(nobody, { fetch: async (_, { body }) => (bodies.push(...JSON.parse(body).rewards), stored(body)) });
  for (const value of [true, false, 0.5, 2n, { toNumber: () => 0.25 }]) client.reward("e", value, { id: 7 });
  client.reward("e", { click: true }, { id: "c" });
  assert.ok(await client.flush());
  assert.deepEqual(bodies.slice(0, 5).map(({ value, id }) => [value, id]), [1, 0, 0.5, 2, 0.25].map((value) => [value, "7"]));
  assert.deepEqual(bodies[5], { event_id: "e", outcomes: { click: 1 }, id: "c" });
  const fallen = await new Client(nobody, { timeout: 20 }).rank({ actions: MENU });
  for (const value of ["1", null, undefined, NaN, Infinity, {}, [1], new Date(), { click: "1" }, { click: NaN }, () => 1]) {
    assert.throws(() => client.reward("e", value), /must be/, String(value));
    assert.throws(() => fallen.reward(value), /must be/, String(value));
  }
  assert.throws(() => client.reward("", 1), RangeError);
  assert.throws(() => client.reward({}, 1), TypeError);
  assert.throws(() => client.reward("e", 1, { Id: "x" }), /did you mean "id"/);
});

test("a reward by the id of a fallback is not sent", async (context) => {
  warnings(context);
  const { eventId } = await new Client(nobody, { timeout: 20 }).rank({ actions: MENU });
  assert.match(eventId, /^fallback-[\w-]{22}$/);
  const client = new Client(nobody, { fetch: () => assert.fail("nothing is sent") });
  client.reward(eventId, 1);
  client.activate(eventId);
  assert.ok(await client.flush());
  await assert.rejects(client.rank({ actions: MENU, eventId }), /must not begin with fallback-/);
});

test("actions come in four forms, keep their order, and ids come back as they were given", async () => {
  const client = patient(url, { loop: await fresh(), fallback: null });
  const listed = [{ id: "tea", features: { hot: true } }, { id: "juice", features: { hot: false } }, { id: "milk" }];
  await client.putActions(listed);
  assert.deepEqual(await client.catalogue(), MENU);
  for (const actions of [listed, MENU, Object.keys(MENU), new Map(Object.entries(MENU)), listed.values(), new Set(["tea", "juice", "milk"])]) {
    assert.ok((await client.rank({ actions, user: "" })).action in MENU);
  }
  for (const actions of [[1042, 17, 3n], new Map([[1042, { x: 1 }], [17, {}]]), [{ id: 1042 }, { id: 17 }]]) {
    const decision = await client.rank({ actions, user: 42, exclude: [17, 3], explain: true });
    assert.equal(decision.action, 1042);
    assert.ok([decision.ranking, decision.explanations].every((places) => places.some(({ id }) => id === 1042)));
  }
  const [top] = await client.slots([0], { actions: [7] });
  assert.deepEqual([top.slot, top.action], [0, 7]);
  const events = [];
  for await (const event of client.events()) events.push(event);
  assert.deepEqual(events.slice(0, 6).map(({ user, actions }) => [user, actions.map(({ features }) => features)]),
    Array(6).fill([null, Object.values(MENU)]));
  assert.deepEqual(events.slice(6, 9).map(({ user, actions }) => [user, actions[0].id]), Array(3).fill(["42", "1042"]));
  await client.close();
});

test("what can never be sent is thrown at the call", async () => {
  const client = new Client(nobody, { fetch: () => assert.fail("nothing is sent") }), itself = {};
  itself.again = itself;
  for (const [request, message] of [
    [{ actions: { 1042: {}, 17: {} } }, /list or a Map where ids look like whole numbers/],
    [{ actions: [["tea", {}]] }, /a list of objects, .*, an object or a Map, .* or a list of ids/],
    [{ actions: [{ id: "tea", feature: {} }] }, /did you mean "features"/], [{ actions: "tea" }, /actions must be/],
    [{ actions: [1.5] }, /text or a whole number, got 1.5/], [{ actions: [true] }, /actions must be/], [{ actions: ["1", 1] }, /different ids/],
    [{ actions: {} }, /at least one action/], [{ exclude: Object.keys(MENU) }, /exclude must leave/], [{ exclude: "tea" }, /exclude must be a list/],
    [{ user: {} }, /user must be/], [{ eventId: true }, /eventId must be/], [{ context: [1] }, /context must be an object/],
    [{ context: { at: new Date() } }, /hour and weekday/], [{ context: { x: NaN } }, /context.x must be a finite number/],
    [{ context: { a: { b: [1, Infinity] } } }, /context.a.b\[1\] must be a finite/], [{ context: { tags: new Set() } }, /must be JSON/],
    [{ context: itself }, /must not hold itself/], [{ contxt: {} }, /rank has no option "contxt": did you mean "context"/],
    [{ event_id: "e" }, /did you mean "eventId"/], [{ deadline: 1 }, /did you mean "timeout"/],
  ]) await assert.rejects(client.rank({ actions: MENU, ...request }), message);
  await assert.rejects(client.rankMany([{ actions: MENU, timeout: 1 }]), /no option "timeout"/);
  await assert.rejects(client.slots([{ id: "top", base: "tea" }], { actions: MENU }), /did you mean "baseline"/);
  assert.throws(() => new Client(nobody, { timeoutt: 1 }), /did you mean "timeout"/);
  assert.throws(() => new Client("localhost"), /FEDRES_URL/);
});

test("features of typed arrays, decimals and bigints are numbers", async () => {
  let sent;
  const client = new Client(nobody, { fetch: async (_, { body }) => ((sent = JSON.parse(body)), new Response("{}")) });
  await client.rank({ context: { taste: new Float32Array([0.5, 2]), price: { toNumber: () => 9.99 }, n: 3n, gone: undefined, no: null }, actions: MENU });
  assert.deepEqual(sent.context, { taste: [0.5, 2], price: 9.99, n: 3, no: null });
});

test("each kind of trouble is said once on the console, and an observer sees every call", async (context) => {
  const warned = warnings(context), seen = [];
  const said = () => warned.calls.map(({ arguments: [message] }) => message);
  let fetch = answers(404, "unknown_loop");
  const observe = (call) => (seen.push([call.name, call.status, call.error?.code ?? null]), assert.ok(call.milliseconds >= 0));
  const client = new Client(nobody, { observe, fetch: (...asked) => fetch(...asked), timeout: 20 });
  for (let k = 0; k < 3; k++) assert.ok((await client.rank({ actions: MENU })).fallback);
  fetch = answers(401, "unauthorized");
  for (let k = 0; k < 3; k++) await client.rankMany([{ actions: MENU }]);
  assert.equal(warned.callCount(), 2);
  fetch = async () => { throw new Error("gone"); };
  const decided = { event_id: "e", action: "tea", probability: 1, ranking: [], model_version: 1 };
  for (let away = 0; away < 2; away++) {
    for (let k = 0; k < 3; k++) await client.rank({ actions: MENU });
    fetch = async () => Response.json(decided);
    assert.equal((await client.rank({ actions: MENU })).fallback, false);
    fetch = async () => { throw new Error("gone again"); };
  }
  fetch = answers(422, "invalid");
  for (let k = 0; k < 3; k++) client.reward("e", 2);
  assert.ok(await client.flush());
  assert.equal(client.rewardStatus().refused, 3);
  assert.deepEqual(said().map((message) => message.slice(0, 45)), [
    "fedres: the service refused a request: 404 no", "fedres: the service refused a request: 401 no", "fedres: the service does not decide: gone",
    "fedres: the service does not decide: gone aga", "fedres: the service refused 1 of the rewards ",
  ]);
  assert.deepEqual(seen[0], ["rank", 404, "unknown_loop"]);
  assert.deepEqual(seen.at(-1), ["rewards", 422, "invalid"]);
  const failing = new Client(nobody, { observe: () => { throw new Error("no"); }, fetch: async () => Response.json(decided) });
  assert.equal((await failing.rank({ actions: MENU })).action, "tea");
});

async function fresh() {
  const name = `loop-${newEventId()}`, client = patient(url);
  await client.createLoop(name);
  await client.close();
  return name;
}
