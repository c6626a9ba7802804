// A device that is told what to do by lines of JSON on standard input, and answers each by a line: for parity tests.

import { createInterface } from "node:readline";

import { LocalModel } from "../../clients/typescript/adagrad.js";
import { FedresDevice, MemoryStore } from "../../clients/typescript/device.js";

const stores = new Map();
let device, model;

const commands = {
  async open({ url, store, ...options }) {
    if (!stores.has(store)) stores.set(store, new MemoryStore());
    device = await FedresDevice.open(url, { openSeconds: 0, ...options, store: stores.get(store), syncSeconds: null });
    return device.status();
  },
  decide: (request) => device.decide(request),
  reward: ({ eventId, value }) => device.reward(eventId, value),
  sync: () => device.sync(),
  status: () => device.status(),
  close: () => device.close(),
  crash() { device = undefined; },
  model({ rate }) { model = new LocalModel(rate); },
  learn({ indices, values, label, offset }) {
    const example = { indices: Int32Array.from(indices), values: Float32Array.from(values) };
    const score = model.score(example);
    model.learn(example, label, offset);
    return score;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, argument] = JSON.parse(line);
  try {
    console.log(JSON.stringify({ value: (await commands[name](argument ?? {})) ?? null }));
  } catch (error) {
    console.log(JSON.stringify({ error: error.message }));
  }
}
