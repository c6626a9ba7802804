// A device without a service; tests/client/test_browser_device.py compares it with the Python device.

import assert from "node:assert/strict";
import { test } from "node:test";

import { short } from "../choosing.js";
import { FedresDevice, MemoryStore } from "../device.js";
import { KalmanHalf, LinearHalf } from "../halves.js";

const open = (options) => FedresDevice.open("http://127.0.0.1:1", { client: "phone", syncSeconds: 0.002, openSeconds: 0, ...options });

test("a service that does not answer is left alone for a while, longer each time, and as long as it asks", async () => {
  let now = 1e9, late = 0, asked = 0, syncs = 0, after = "";
  const busy = async () => (asked++, new Response("{}", { status: 503, headers: after && { "Retry-After": after } }));
  const device = await open({ fetch: busy, clock: () => now, random: () => 1 });
  const turns = async () => { // others sync again and again meanwhile
    for (const end = syncs + 10; syncs < end;) await new Promise((resolve) => setTimeout(resolve, 1));
  };
  const other = await open({ client: "other", fetch: async () => (syncs++, new Response("{}", { status: 503 })), clock: () => (late += 1e9) });
  await turns();
  assert.equal(asked, 1);
  for (const [rest, wanted] of [[999, 1], [1, 2], [1999, 2], [1, 3]]) {
    now += rest;
    await turns();
    assert.equal(asked, wanted);
  }
  after = "60";
  now += 4000;
  await turns();
  assert.equal(asked, 4);
  now += 59_999;
  await turns();
  assert.equal(asked, 4);
  assert.match(device.status().trouble, /503/);
  await Promise.all([device.close(), other.close()]);
});

test("the journal becomes a saved model, and a device that is opened again goes on from it", async () => {
  const store = new MemoryStore(), options = { store, learner: "linear", syncSeconds: null };
  let device = await open(options);
  const probe = () => device.decide({ context: { x: 0.3 }, actions: ["a", "b"] });
  for (let k = 0; k < 1003; k++) {
    const { eventId, action } = await device.decide({ context: { x: k / 1003, day: `d${k % 7}` }, actions: ["a", "b"] });
    await device.reward(eventId, Number(action === (k % 7 > 3 ? "a" : "b")));
  }
  assert.equal(store.content.journal.size, 3);
  const before = await probe();
  device = await open(options); // the first was not closed: as after a crash
  assert.deepEqual((await probe()).scores, before.scores);
  await device.close();
  assert.equal(store.content.journal.size, 0);
  device = await open(options);
  assert.deepEqual((await probe()).scores, before.scores);
});

test("numbers are sent with the fewest digits that are the same in 32 bits", () => {
  for (const [part, wanted] of [[0.1, 0.1], [1 / 3, 0.33333334], [0, 0], [-2.5, -2.5], [16777217, 16777216], [1e-20, 1e-20]]) {
    assert.equal(short(Math.fround(part)), wanted);
  }
});

test("a device that could not be opened syncs no more, and lets go of its store", async (context) => {
  const set = context.mock.method(globalThis, "setInterval").mock, store = new MemoryStore();
  const closed = context.mock.method(store, "close").mock;
  await (await open({ store, learner: "linear", syncSeconds: null })).close();
  await assert.rejects(open({ store }), /learner must be linear/);
  assert.deepEqual([set.callCount(), closed.callCount()], [0, 2]);
});

test("a context that the caller changes after the decision is uploaded as it was", async () => {
  for (const learner of ["linear", "residual-kalman"]) {
    const store = new MemoryStore(), device = await open({ learner, store, syncSeconds: null });
    const context = { day: 1 }, actions = { a: { hot: true } };
    const { eventId } = await device.decide({ context, actions });
    [context.day, actions.a.hot] = [2, false];
    await device.reward(eventId, 1);
    const [upload] = store.content.queue.values();
    assert.deepEqual([upload.context, upload.action.features], [{ day: 1 }, { hot: true }]);
  }
});

test("a network that answers for the service is trouble, and a sync on the timer that fails otherwise too", async () => {
  for (const learner of ["linear", "residual-kalman"]) {
    for (const [said, status] of [["null", 200], ["{}", 200], ["[]", 200], ["<html>", 200], ["null", 400]]) {
      const store = new MemoryStore(), options = { learner, store, syncSeconds: null };
      const device = await open({ ...options, fetch: async () => new Response(said, { status }) });
      assert.match((await device.sync()).trouble, /^the service /, said);
      await open(options); // nothing of it is on disk
    }
  }
  const full = async () => { throw new Error("the disk is full"); };
  const round = { ...KalmanHalf.round, version: 1 }, store = new MemoryStore();
  const device = await open({ store, fetch: async () => ((store.write = full), Response.json(round)) });
  while (!device.status().trouble) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.match(device.status().trouble, /the disk is full/);
});

test("uploads that a proxy refuses, and not the service, are kept", async () => {
  const round = { ...LinearHalf.round, version: 1 }, store = new MemoryStore();
  store.content.meta.set("learner", "linear").set("round", round);
  let refused = () => new Response("<html>", { status: 400 });
  const fetch = async (url) => {
    if (url.includes("/round")) return Response.json(round);
    return url.includes("/model") ? new Response(null, { status: 304 }) : refused();
  };
  const device = await open({ learner: "linear", store, syncSeconds: null, fetch });
  for (let k = 0; k < 3; k++) await device.reward((await device.decide({ actions: ["a"] })).eventId, 1);
  const { trouble, dropped } = await device.sync();
  assert.deepEqual([trouble.slice(0, 23), dropped], ["the service answers 400", 0]);
  refused = () => Response.json({ error: { code: "invalid", message: "no", target: "residuals[0]" } }, { status: 422 });
  assert.equal((await device.sync()).dropped, 3);
});

test("a device takes actions in all forms, and says at the call what it cannot take", async () => {
  const device = await open({ syncSeconds: null });
  for (const actions of [[{ id: 1042, features: { hot: true } }], new Map([[1042, { hot: true }]]), [1042]]) {
    assert.equal((await device.decide({ actions, eventId: undefined })).action, 1042);
  }
  const { eventId } = await device.decide({ actions: ["tea"], eventId: 7 });
  assert.equal(eventId, "7");
  for (const [request, message] of [
    [{ actions: { 1042: {}, 17: {} } }, /list or a Map/], [{ actions: ["a"], contxt: {} }, /did you mean "context"/], [{ actions: [""] }, /1 to 200/],
    [{ actions: ["a"], private: { at: new Date() } }, /private.at must be JSON, got a Date/], [{ actions: ["a"], context: { x: NaN } }, /context.x must be/],
  ]) await assert.rejects(device.decide(request), message);
  for (const value of ["1", null, NaN, {}]) await assert.rejects(device.reward(7, value), /value must be/);
  await device.reward(7, true);
  assert.equal(device.status().queued, 1);
  await assert.rejects(open({ openSecond: 1 }), /did you mean "openSeconds"/);
});

test("opening waits for a model no longer than it may, and goes on with the stored one", async (context) => {
  context.mock.method(console, "warn", () => {});
  let asked = 0;
  const silent = () => (asked++, new Promise(() => {}));
  const device = await open({ openSeconds: 0.01, syncSeconds: null, fetch: silent });
  assert.deepEqual([asked, (await device.decide({ actions: ["a", "b"] })).probability, device.status().trouble], [1, 0.5, null]);
  const refusing = await open({ client: "other", openSeconds: 60, syncSeconds: null, fetch: async () => new Response("{}", { status: 503 }) });
  assert.match(refusing.status().trouble, /503/);
});
