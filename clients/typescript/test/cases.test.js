// The table of cases that the clients in Python and in JavaScript both play: clients/cases.json.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Client } from "../fedres.js";

const CASES = JSON.parse(readFileSync(new URL("../../cases.json", import.meta.url), "utf8"));
const NAMES = { admin_timeout: "adminTimeout", queue_limit: "queueLimit" };
const TIMEOUTS = { NaN, text: "1" };
const inMilliseconds = (value) => (typeof value === "number" ? 1000 * value : TIMEOUTS[value] ?? value);

const optionsOf = (options = {}) => Object.fromEntries(Object.entries(options).map(([name, value]) =>
  [NAMES[name] ?? name, name.endsWith("timeout") ? inMilliseconds(value) : value]));

/** Whether all that is expected is in the value. */
function holds(part, whole) {
  if (part === null || typeof part !== "object") return Object.is(part, whole);
  if (Array.isArray(part)) return part.length === whole.length && part.every((each, k) => holds(each, whole[k]));
  return Object.entries(part).every(([name, value]) => whole !== null && name in whole && holds(value, whole[name]));
}

/** A service that gives the answers in turn, the last one again and again. */
function scripted(answers, requests) {
  let k = 0;
  return async (url, { body }) => {
    const answer = answers[Math.min(k++, answers.length - 1)];
    requests.push({ path: new URL(url).pathname, body: body === undefined ? null : JSON.parse(body) });
    if (answer === "lost") throw new TypeError("fetch failed", { cause: Object.assign(new Error("refused"), { code: "ECONNREFUSED" }) });
    return answer.body === undefined ? new Response(null, { status: answer.status }) : Response.json(answer.body, { status: answer.status });
  };
}

async function call(client, { call: kind, actions, user, timeout, event, value, id, seconds = 60 }) {
  if (kind === "rank") return client.rank({ actions, user, ...(timeout === undefined ? {} : { timeout: inMilliseconds(timeout) }) });
  if (kind === "reward") return client.reward(event, value, id === undefined ? {} : { id });
  if (kind === "activate") return client.activate(event);
  return kind === "flush" ? client.flush(1000 * seconds) : client[kind]();
}

for (const { name, options } of CASES.constructor) {
  test(`is refused at once: ${name}`, () => assert.throws(() => new Client("http://127.0.0.1:1", optionsOf(options)), /must/));
}

for (const { name, options, answers, calls, requests, rewards } of CASES.calls) {
  test(name, async (context) => {
    context.mock.method(console, "warn", () => {});
    const seen = [], client = new Client("http://127.0.0.1:1", { ...optionsOf(options), fetch: scripted(answers, seen) });
    for (const [k, step] of calls.entries()) {
      const before = seen.length, isPut = ["reward", "activate"].includes(step.call);
      const done = call(client, step);
      if (step.raises) await assert.rejects(done, Error, `call ${k}`);
      else if (!isPut) {
        const result = await done;
        if (step.result !== null && typeof step.result === "object") assert.ok(holds(step.result, { ...result, code: result.error?.code }), JSON.stringify(result));
        else if (step.result !== undefined) assert.equal(result, step.result);
      }
      if (step.requests_at_most !== undefined) assert.ok(seen.length - before <= step.requests_at_most, `call ${k}`); // none during the rest after a slow try
      if (step.requests !== undefined) assert.equal(seen.length - before, step.requests, `call ${k}`);
    }
    if (requests) assert.ok(holds(requests, seen), JSON.stringify(seen));
    if (rewards) assert.ok(holds(rewards, client.rewardStatus()), JSON.stringify(client.rewardStatus()));
    void client.close(0);
  });
}
