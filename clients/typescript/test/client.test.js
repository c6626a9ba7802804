// Run by tests/client/test_typescript.py, which starts a real service (FEDRES_URL) and a faulty proxy before it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, ServiceError, newEventId } from "../fedres.js";

const { FEDRES_URL: url, FEDRES_FAULTY_URL: faulty, FEDRES_LOOP: loop } = process.env;
const MENU = { tea: { hot: true }, juice: { hot: false }, milk: {} };
const nobody = "http://127.0.0.1:1";

test("decides, and sends the reward", async () => {
  const client = new Client(url, { deadline: 60_000, fallback: null });
  const decision = await client.rank({ user: "anna", context: { weather: "cold" }, actions: MENU, explain: true });
  assert.ok(decision.action in MENU);
  assert.equal(decision.ranking.length, 3);
  assert.equal(decision.explanations.length, 3);
  decision.reward(1);
  assert.ok(await client.flush(60_000));
  assert.deepEqual(client.rewards(), { queued: 0, sent: 1, refused: 0, dropped: 0 });
  await client.close();
  assert.throws(() => client.reward("e", 1), /closed/);
});

test("decides on many requests, and on slots", async () => {
  const client = new Client(url, { deadline: 60_000 });
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

test("through a faulty network nothing is lost and nothing doubled", async () => {
  const client = new Client(faulty, { loop, deadline: 60_000, fallback: null });
  const decided = [];
  for (let k = 0; k < 40; k++) {
    const decision = await client.rank({ context: { k }, actions: MENU });
    decision.reward(1);
    decided.push([decision.eventId, decision.action]);
  }
  assert.ok(await client.flush(60_000));
  assert.equal(client.rewards().sent, 40);
  await client.close();
  console.log(`decided ${JSON.stringify(decided)}`);
});

test("falls back while the service is away, and says so", async () => {
  const client = new Client(nobody, { deadline: 100 });
  const decision = await client.rank({ actions: MENU, exclude: ["tea"] });
  decision.reward(1);
  assert.deepEqual([decision.action, decision.fallback, decision.error.status], ["juice", true, 0]);
  assert.equal(client.rewards().queued, 0);
  assert.deepEqual((await client.slots(["a", "b"], { actions: MENU })).map((one) => one.action), ["tea", "juice"]);
  for (const [fallback, action] of [[() => "milk", "milk"], [() => "wine", "tea"], [() => { throw Error(); }, "tea"]]) {
    assert.equal((await new Client(nobody, { deadline: 50, fallback }).rank({ actions: MENU })).action, action);
  }
  await assert.rejects(new Client(nobody, { deadline: 50, fallback: null }).rank({ actions: MENU }), ServiceError);
  await assert.rejects(client.rank({ actions: [] }), RangeError);
});

test("a reply that never comes keeps nobody waiting", async () => {
  const never = (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(Error("gone"))));
  assert.ok((await new Client(url, { deadline: 50, fetch: never }).rank({ actions: MENU })).fallback);
});

test("drops the oldest rewards when there are too many", async () => {
  const client = new Client(nobody, { queueLimit: 10 });
  for (let k = 0; k < 100; k++) client.reward(`e${k}`, 1);
  assert.deepEqual(client.rewards(), { queued: 10, sent: 0, refused: 0, dropped: 90 });
  await client.close(0);
  assert.equal(client.rewards().dropped, 100);
});

test("ids are new and need no quoting", () => {
  const ids = new Set(Array.from({ length: 1000 }, newEventId));
  assert.equal(ids.size, 1000);
  for (const id of ids) assert.match(id, /^[\w-]{22}$/);
});

test("ids are new without a global crypto too, as in Node 18", () => {
  const kept = Object.getOwnPropertyDescriptor(globalThis, "crypto");
  delete globalThis.crypto;
  try {
    assert.match(newEventId(), /^[\w-]{22}$/);
    assert.notEqual(newEventId(), newEventId());
  } finally {
    Object.defineProperty(globalThis, "crypto", kept);
  }
});

test("a loop whose first answer was lost is there and ours", async () => {
  let lost = 0;
  const losing = async (...asked) => {
    const reply = await fetch(...asked);
    if (lost++ === 0) throw new Error("the answer was lost");
    return reply;
  };
  const client = new Client(url, { fetch: losing }), name = `made-${newEventId()}`;
  assert.equal((await client.createLoop(name, { epsilon: 0.25 })).epsilon, 0.25);
  assert.equal(lost, 2);
  await assert.rejects(client.createLoop(name, { epsilon: 0.5 }), (error) => error.status === 409);
  await client.close();
});

test("named outcomes make the reward", async () => {
  const admin = new Client(url), name = `outcomes-${newEventId()}`;
  await admin.createLoop(name, { outcomes: { click: 600, purchase: 600 }, formula: "click + purchase / 100" });
  const client = new Client(url, { loop: name, deadline: 60_000, fallback: null });
  const decision = await client.rank({ actions: MENU });
  decision.reward({ click: 1 });
  client.reward(decision.eventId, { purchase: 50 });
  assert.ok(await client.flush(60_000));
  assert.deepEqual(client.rewards(), { queued: 0, sent: 2, refused: 0, dropped: 0 });
  await Promise.all([admin.close(), client.close()]);
});

test("settings, catalogue, export and the rest", async () => {
  const client = new Client(url, { loop: `admin-${newEventId()}`, deadline: 60_000, fallback: null });
  const name = `admin-${newEventId()}`;
  assert.equal((await client.createLoop(name, { epsilon: 0.3 })).epsilon, 0.3);
  const shop = new Client(url, { loop: name, deadline: 60_000, fallback: null });
  assert.equal((await shop.changeSettings({ wait_time: 5 })).epsilon, 0.3);
  assert.deepEqual([(await shop.settings()).wait_time, (await shop.replaceSettings({})).epsilon], [5, 0.1]);
  await shop.putActions({ ...MENU, old: {} });
  await shop.putActions({}, { retire: ["old"] });
  assert.deepEqual(await shop.actions(), MENU);
  for (let k = 0; k < 12; k++) (await shop.rank({ user: `${name}-${k}`, actions: ["tea", "juice"] })).reward(k % 2);
  assert.ok(await shop.flush(60_000));
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
      return "";
    };
    const client = new Client(nobody, { fetch: async () => ({ ok: true, status: 204, headers: new Headers(), text }) });
    client.reward("first", 1);
    await client.flush();
    await late;
    assert.ok(await client.flush(), `${ticks} ticks later`);
    assert.equal(client.rewards().sent, 2);
  }
});

test("a reward that is no JSON is refused at once and holds up no other, and one that changes later is sent as it was", async () => {
  const bodies = [];
  const client = new Client(nobody, { fetch: async (_, { body }) => (bodies.push(body), new Response(null, { status: 204 })) });
  assert.throws(() => client.reward("a", 10n), TypeError);
  const outcomes = { click: 1 };
  client.reward("b", 1, { id: "b" });
  client.reward("c", outcomes, { id: "c" });
  outcomes.click = 2;
  assert.ok(await client.flush());
  assert.deepEqual(bodies.map((body) => JSON.parse(body)), [{ value: 1, id: "b" }, { outcomes: { click: 1 }, id: "c" }]);
  assert.ok((await client.rank({ context: { n: 1n }, actions: MENU, deadline: 60_000 })).fallback);
});

test("timers that are too long for setTimeout do not go off at once", async (context) => {
  const set = context.mock.method(globalThis, "setTimeout", () => 0).mock;
  const longest = () => Math.max(...set.calls.map(({ arguments: [, milliseconds] }) => milliseconds));
  const busy = async () => new Response("{}", { status: 503, headers: { "Retry-After": "9999999" } });
  const client = new Client(nobody, { fetch: busy, adminDeadline: Infinity });
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
  assert.equal((await client.rank({ actions: MENU, deadline: 20 })).error.status, 503);
});

test("whatever a proxy answers, decisions fall back and other calls throw a ServiceError", async () => {
  for (const said of ["{}", "null", "[]", '{"results": [null]}', '{"results": [{}]}', '{"slots": []}', '{"slots": [{"id": "top"}]}']) {
    const client = new Client(nobody, { fetch: async () => new Response(said) });
    const decisions = [await client.rank({ actions: MENU }), ...await client.rankMany([{ actions: MENU }]), ...await client.slots(["top"], { actions: MENU })];
    assert.deepEqual(decisions.map(({ action, error }) => [action, error.code]), Array(3).fill(["tea", "unreadable_answer"]), said);
    for (const call of ["settings", "actions", "unmatched"]) await assert.rejects(client[call](), ServiceError);
  }
  const client = new Client(nobody, { fetch: async () => new Response("<html>") });
  await assert.rejects(client.events().next(), ServiceError);
});
