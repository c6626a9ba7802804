// The part of client_calls.py that runs in Node: what a call of the client costs beside a plain fetch.
//   node benchmarks/client_calls.mjs overhead|burst ADDRESS CALLS

import { Client } from "../clients/typescript/fedres.js";

const [measurement, url, calls] = process.argv.slice(2);
const n = Number(calls);
const actions = Array.from({ length: 10 }, (_, k) => ({ id: `action-${k}`, features: { k, hot: true } }));
const body = JSON.stringify({ user: "anna", context: { hour: 9 }, actions });
const headers = { "Content-Type": "application/json" };

async function plain() {
  const reply = await fetch(`${url}/v1/loops/default/rank`, { method: "POST", headers, body });
  return { fallback: !reply.ok, ...JSON.parse(await reply.text()) };
}

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
const rounded = (value) => Math.round(value * 10) / 10;

/** Call in blocks of 20, plain and by the client in turns; print processor and median time in µs. */
async function overhead() {
  const client = new Client(url, { timeout: 60_000 });
  const ways = { plain, client: () => client.rank({ user: "anna", context: { hour: 9 }, actions }) };
  const cpu = { plain: [], client: [] };
  const took = { plain: [], client: [] };
  for (let block = -10; block < n / 20; block++) {
    for (const [name, call] of Object.entries(ways)) {
      const before = process.cpuUsage();
      for (let k = 0; k < 20; k++) {
        const began = performance.now();
        await call();
        if (block >= 0) took[name].push(1000 * (performance.now() - began));
      }
      const { user, system } = process.cpuUsage(before);
      if (block >= 0) cpu[name].push((user + system) / 20);
    }
  }
  const results = Object.keys(ways).map((name) =>
    [name, { cpu: rounded(median(cpu[name])), median: rounded(median(took[name])) }]);
  console.log(JSON.stringify(Object.fromEntries(results)));
  await client.close(0);
}

/** Decide so often at once, plain and by the client in turns. */
async function burst() {
  const client = new Client(url, { timeout: 1000 });
  const ways = {
    plain,
    client: () => client.rank({ user: "anna", context: { hour: 9 }, actions }),
  };
  await Promise.all(Object.values(ways).map((call) => call())); // connects
  const results = { plain: [], client: [] };
  for (let round = 0; round < 3; round++) {
    for (const [name, call] of Object.entries(ways)) {
      const began = performance.now();
      const done = await Promise.all(Array.from({ length: n }, async () => {
        const { fallback } = await call();
        return { fallback, took: performance.now() - began };
      }));
      const fallbacks = done.filter(({ fallback }) => fallback).length;
      const late = done.filter(({ took }) => took > 1000).length;
      const longest = rounded(Math.max(...done.map(({ took }) => took)) / 1000);
      results[name].push({ fallbacks, after_1_s: late, longest });
    }
  }
  console.log(JSON.stringify(results));
  await client.close(0);
}

await { overhead, burst }[measurement]();
