// What callers of the TypeScript client write, for tsc alone: it must compile with all strict checks.

import { Client, type Decision, type Observed } from "fedres";
import { FedresDevice } from "fedres/device";

interface Banner {
  hot: boolean;
  price?: number;
}

declare const environment: { [name: string]: string | undefined };
declare const banners: Record<string, Banner>;
declare const session: { user?: string; weather: string | null };

const seen: string[] = [];
const client = new Client(environment.FEDRES_URL, {
  key: environment.FEDRES_KEY,
  timeout: 200,
  observe: (call: Observed) => seen.push(call.name),
});
const ids = ["tea", "juice"] as const;
const listed: readonly string[] = ids;

export async function decide(): Promise<string> {
  const decision: Decision = await client.rank({ user: session.user, context: { weather: session.weather }, actions: banners });
  const literal: "tea" | "juice" = (await client.rank({ actions: ids })).action;
  const numbered: number = (await client.rank({ actions: [{ id: 1042, features: { hot: true } }, { id: 17 }] })).action;
  const mapped: number = (await client.rank({ actions: new Map([[1042, { hot: true }], [17, { hot: false }]]) })).action;
  await client.rank({ actions: listed, user: null, exclude: ids, deadline: undefined });
  await client.rank({ actions: { tea: { hot: true }, juice: {} }, user: 42 });
  const [top] = await client.slots([{ id: "top", baseline: "tea" }, "side"], { actions: listed });
  const many = await client.rankMany([{ actions: listed }, { actions: banners }]);
  decision.reward(true);
  decision.reward({ click: 1, bought: false });
  client.reward(decision.eventId, 1, { id: undefined });
  await client.putActions(banners, { retire: listed });
  return [literal, numbered, mapped, top?.action, ...many.map(({ action }) => action)].join();
}

export async function onDevice(): Promise<number | undefined> {
  const device = await FedresDevice.open(environment.FEDRES_URL, { client: "browser-7", openSeconds: 1, key: undefined });
  const { eventId, action, scores } = await device.decide({ actions: listed, private: { age: 33 }, context: undefined });
  await device.reward(eventId, true);
  return scores[action];
}

// @ts-expect-error: a reward is no text
client.reward("event", "1");
// @ts-expect-error: an option that nobody reads
void client.rank({ actions: listed, contxt: {} });
// @ts-expect-error: an id is text or a number
void client.rank({ actions: [true] });
