// Cancelling, loops, errors, the end of a process, and types' documentation: without a service.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:http";
import { test } from "node:test";

import {
  Client, KeyRefusedError, LimitError, NoAnswerError, RefusedError, ServiceError, VERSION,
} from "../fedres.js";
import { FakeService } from "../testing.js";

const LIMIT = 1000 * Number(process.env.FEDRES_TEST_SECONDS ?? 300);
const nobody = "http://127.0.0.1:1";
const actions = ["tea", "juice"];
const decided = { event_id: "e", action: "tea", probability: 1, ranking: [], model_version: 1 };
const hangs = (_, { signal }) =>
  new Promise((_resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
const refuses = (status) => async () =>
  Response.json({ error: { code: "no", message: "no", target: null } }, { status });

test("each kind of error has a class, a request id and a cause", async (context) => {
  context.mock.method(console, "warn", () => {});
  const classes = [[401, KeyRefusedError], [403, KeyRefusedError], [422, RefusedError], [404, RefusedError]];
  for (const [status, kind] of [...classes, [429, LimitError], [503, ServiceError]]) {
    const client = new Client(nobody, { fetch: refuses(status), timeout: 20, fallback: null });
    const error = await client.rank({ actions }).catch((thrown) => thrown);
    assert.equal(Object.getPrototypeOf(error), kind.prototype, String(status));
    assert.ok(error instanceof ServiceError && error.name === kind.name);
    assert.match(error.requestId, /^[\w-]{22}$/);
    assert.deepEqual(JSON.parse(JSON.stringify(error)), {
      name: kind.name, status, code: "no", message: "no", target: null, requestId: error.requestId,
    });
  }
  const server = await listening();
  server.close();
  const closed = `http://127.0.0.1:${server.port}`;
  const once = new Client(closed, { random: () => Infinity }); // the wait for a second try is too long
  const error = await once.settings({ timeout: LIMIT }).catch((thrown) => thrown);
  assert.ok(error instanceof NoAnswerError && error.cause instanceof Error);
  assert.match(error.message, /ECONNREFUSED/);
  const late = await new Client(nobody, { fetch: hangs }).settings({ timeout: 40 }).catch((thrown) => thrown);
  assert.equal(late.message, "no answer within 40 ms");
});

test("a request that a signal cancels throws its reason, and the service is not away", async () => {
  let fetch = hangs;
  const client = new Client(nobody, { fetch: (...words) => fetch(...words) });
  const calls = {
    rank: (signal) => client.rank({ actions, signal }),
    rankMany: (signal) => client.rankMany([{ actions }], { signal }),
    slots: (signal) => client.slots(["top"], { actions, signal }),
    recommend: (signal) => client.recommend({ signal }),
    settings: (signal) => client.settings({ signal }),
    events: (signal) => client.events({ signal }).next(),
    erase: (signal) => client.erase("anna", { signal }),
  };
  for (const [name, call] of Object.entries(calls)) {
    const control = new AbortController();
    const done = call(control.signal);
    const reason = new Error(`${name} is not wanted`);
    setImmediate(() => control.abort(reason));
    await assert.rejects(done, reason);
    await assert.rejects(call(control.signal), reason);
  }
  fetch = async () => Response.json(decided);
  assert.equal((await client.rank({ actions })).fallback, false);
  const control = new AbortController();
  await client.rank({ actions, signal: control.signal });
  control.abort(); // too late
});

test("a wait for a retry ends with the signal", async () => {
  const control = new AbortController();
  const busy = async () => new Response("{}", { status: 503, headers: { "Retry-After": "3600" } });
  const client = new Client(nobody, { fetch: busy, adminTimeout: 1e9 });
  const done = client.settings({ signal: control.signal });
  setTimeout(() => control.abort(new Error("enough")), 20);
  await assert.rejects(done, /enough/);
});

test("requests name the client and its version", async () => {
  const sent = [];
  const client = new Client(nobody, {
    fetch: async (_, { headers }) => (sent.push(headers), Response.json(decided)),
  });
  await client.rank({ actions });
  assert.equal(sent[0]["User-Agent"], `fedres-client/${VERSION} node/${process.versions.node}`);
  const manifest = new URL("../package.json", import.meta.url);
  assert.equal(VERSION, JSON.parse(readFileSync(manifest, "utf8")).version);
});

test("clients of several loops share the queue, and a loop that is held keeps no other", async (context) => {
  context.mock.method(console, "warn", () => {});
  const service = new FakeService();
  const fetch = (url, request) =>
    url.includes("/missing/") ? refusedLoop() : service.fetch(url, request);
  const client = new Client(nobody, { fetch });
  const offers = client.withLoop("offers");
  const missing = client.withLoop("missing");
  assert.equal((await offers.rank({ actions })).action, "tea");
  missing.reward("a", 1);
  client.reward("b", 1, { id: "1" });
  offers.reward("c", 1, { id: "2" });
  assert.equal(await offers.flush(200), false);
  assert.deepEqual((await service.rewards()).map(({ loop, eventId }) => [loop, eventId]), [
    ["default", "b"], ["offers", "c"],
  ]);
  assert.deepEqual([client.rewardStatus().queued, missing.rewardStatus().queued], [1, 1]);
  await offers.close();
  assert.throws(() => client.reward("d", 1), /closed/);
  assert.throws(() => client.withLoop(""), /loop must be a name/);
});
const refusedLoop = async () =>
  Response.json({ error: { code: "unknown_loop", message: "no", target: null } }, { status: 404 });

test("a client closes itself at the end of a block", async () => {
  const service = new FakeService();
  const client = service.client();
  client.reward("e", 1);
  await client[Symbol.asyncDispose]();
  assert.equal(client.rewardStatus().sent, 1);
  await assert.rejects(client.rank({ actions }), /closed/);
});

test("an address may be a URL, and former names are refused with the new ones", async () => {
  const service = new FakeService();
  const client = new Client(new URL("http://fake.invalid/base/"), { fetch: service.fetch });
  assert.equal((await client.rank({ actions })).fallback, false);
  assert.throws(() => new Client(nobody, { deadline: 1 }), /did you mean "timeout"/);
  assert.throws(() => new Client(nobody, { adminDeadline: 1 }), /did you mean "adminTimeout"/);
  await assert.rejects(client.rank({ actions, deadline: 1 }), /did you mean "timeout"/);
  await assert.rejects(client.putActions({}, { retier: ["a"] }), /did you mean "retire"/);
});

test("a fake service decides as a test determines, and records rewards", async (context) => {
  context.mock.method(console, "warn", () => {});
  const service = new FakeService({ choose: "juice", catalogue: { a: {}, b: {}, c: {} } });
  const client = service.client({ loop: "menu" });
  const decision = await client.rank({ actions, user: 7, context: { hour: 9 } });
  assert.deepEqual([decision.action, decision.probability, decision.fallback], ["juice", 1, false]);
  decision.reward(1);
  decision.reward({ click: 1 }, { id: "twice" });
  decision.reward({ click: 1 }, { id: "twice" });
  decision.activate();
  assert.deepEqual((await service.rewards()).map(({ value, outcomes }) => value ?? outcomes), [1, { click: 1 }]);
  const { eventId } = decision;
  assert.deepEqual(service.decisions, [
    { loop: "menu", eventId, user: "7", context: { hour: 9 }, action: "juice" },
  ]);
  service.choose = ({ user, actions: offered }) => (user === "anna" ? offered.at(-1) : offered[0]);
  const [anna, ben] = await client.rankMany([{ actions, user: "anna" }, { actions, user: "ben" }]);
  assert.deepEqual([anna.action, ben.action], ["juice", "tea"]);
  const page = await client.slots(["top", "side"], { actions });
  assert.deepEqual(page.map(({ slot, action }) => [slot, action]), [["top", "tea"], ["side", "juice"]]);
  assert.deepEqual((await client.recommend({ n: 2, exclude: ["a"] })).map(({ id }) => id), ["b", "c"]);
  service.choose = "wine";
  const refused = await client.rank({ actions });
  assert.deepEqual([refused.fallback, refused.error.code], [true, "not_offered"]);
  service.isAway = true;
  assert.ok((await client.rank({ actions, timeout: 20 })).fallback);
  service.isAway = false;
  await assert.rejects(client.lift(), /decisions and rewards only/);
  await client.close();
});

/** Start a server on a free port. */
async function listening(answer) {
  const server = createServer(answer);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { port: server.address().port, close };
}

/** Run a program in Node, with the client at `path`. */
function run(program) {
  const path = JSON.stringify(new URL("../fedres.js", import.meta.url).href);
  const code = `import { Client } from ${path};\n${program}`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", code]);
  let printed = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (part) => {
      printed += part;
    });
  }
  return new Promise((resolve) => child.once("exit", (status) => resolve({ status, printed })));
}

test("a process with an unsent reward ends, and reports what it did not send", async () => {
  const { status, printed } = await run(`
    const set = globalThis.setTimeout;
    globalThis.setTimeout = (work, after) => set(work, after === 5000 ? 50 : after);
    new Client("${nobody}").reward("e", 1);`);
  assert.equal(status, 0);
  assert.match(printed, /fedres: 1 rewards were not sent/);
});

test("a process sends its rewards before it ends, without close", async () => {
  const bodies = [];
  const server = await listening(async (request, response) => {
    for await (const part of request) bodies.push(JSON.parse(part));
    response.end('{"results": [{"event_id": "e"}]}');
  });
  const url = `http://127.0.0.1:${server.port}`;
  const { status, printed } = await run(`new Client("${url}").reward("e", 1);`);
  server.close();
  assert.deepEqual([status, printed, bodies.length], [0, "", 1]);
});

test("a page that is left sends its rewards with keepalive, 64 KB at most", async (context) => {
  const listeners = {};
  globalThis.document = {};
  globalThis.addEventListener = (name, work) => {
    listeners[name] = work;
  };
  context.after(() => {
    delete globalThis.document;
    delete globalThis.addEventListener;
  });
  const { RewardQueue } = await import("../rewards.js?in-a-page");
  const sent = [];
  const post = (path, content, _, options) => {
    sent.push({ path, content, keepalive: options?.keepalive ?? false });
    return new Promise(() => {});
  };
  const queue = new RewardQueue({ limit: 10_000, post, backOff: () => 1, observe() {}, warn() {} });
  for (let k = 0; k < 2000; k++) queue.put("/v1/loops/a", `event-${k}`, "reward", '{"value":1,"id":"x"}');
  await new Promise(setImmediate); // a batch is in flight
  queue.put("/v1/loops/b", "other", "reward", '{"value":1,"id":"y"}');
  listeners.pagehide();
  const kept = sent.filter(({ keepalive }) => keepalive);
  assert.ok(kept.length >= 1 && kept[0].path === "/v1/loops/a/events/rewards");
  assert.equal(JSON.parse(kept[0].content).rewards[0].event_id, "event-0");
  const bytes = kept.reduce((sum, { content }) => sum + content.length, 0);
  assert.ok(bytes > 10_000 && bytes < 64_000, String(bytes));
  assert.equal(queue.status().queued, 2001);
  context.mock.method(console, "warn", () => {});
  await queue.close(0);
});

test("CommonJS programs may require the package", () => {
  const require = createRequire(import.meta.url);
  assert.equal(require("../fedres.js").Client, Client);
});

/** The lines of a file of types that declare something, each with the line before it. */
function declarations(text) {
  const declared = [];
  let depth = 0;
  let before = "";
  let isComplete = true; // the last line of code ended what it declares
  for (const line of text.split("\n")) {
    const code = line.trim();
    const isComment = /^(\/\*|\*)/.test(code);
    if (!isComment && code !== "") {
      const isInner = depth === 1 && isComplete && !/^[}|]/.test(code);
      if (isInner || /^export (?!type \{)|^interface/.test(line)) declared.push([line, before]);
      depth += code.split(/[({[]/).length - code.split(/[)}\]]/).length;
      isComplete = /[;{}]$/.test(code);
    }
    before = line;
  }
  return declared;
}

test("every exported type and each of its members is documented", () => {
  for (const [file, least] of [["fedres", 120], ["device", 50], ["testing", 30], ["schema", 150]]) {
    const text = readFileSync(new URL(`../${file}.d.ts`, import.meta.url), "utf8");
    const declared = declarations(text).filter(([line]) => !/private constructor/.test(line));
    assert.ok(declared.length >= least, `${file}: ${declared.length}`);
    const missing = declared.filter(([, before]) => !before.endsWith("*/")).map(([line]) => line);
    assert.deepEqual(missing, [], file);
  }
});
