// What callers of the TypeScript client write, for tsc alone: it must compile with all strict checks.

import {
  Client, NoAnswerError, ServiceError, type Decision, type ErrorBody, type Observed, type RankRequest,
  type StoredEvent,
} from "fedres";
import { FedresDevice } from "fedres/device";
import type { RankResult } from "fedres/schema";
import { FakeService, type FakeReward } from "fedres/testing";

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
  await client.rank({ actions: listed, user: null, exclude: ids, timeout: undefined });
  await client.rank({ actions: { tea: { hot: true }, juice: {} }, user: 42 });
  const [top] = await client.slots([{ id: "top", baseline: "tea" }, "side"], { actions: listed });
  const many = await client.rankMany([{ actions: listed }, { actions: banners }]);
  const inlined: "tea" | "juice" = (await client.rank({ actions: ["tea", "juice"] })).action;
  const signal = AbortSignal.timeout(100);
  await client.withLoop("offers").rank({ actions: [inlined], signal, context: new Weather("cold") });
  const stored: StoredEvent[] = [];
  for await (const event of client.events({ signal })) stored.push(event);
  decision.reward(true);
  decision.reward({ click: 1, bought: false });
  client.reward(decision.eventId, 1, { id: undefined });
  await client.putActions(banners, { retire: listed });
  return [literal, numbered, mapped, stored[0]?.action, top?.action, ...many.map(({ action }) => action)].join();
}

export async function onDevice(): Promise<number | undefined> {
  const device = await FedresDevice.open(environment.FEDRES_URL, { client: "browser-7", openSeconds: 1, key: undefined });
  const { eventId, action, scores } = await device.decide({ actions: listed, private: { age: 33 }, context: undefined });
  await device.reward(eventId, true);
  return scores[action];
}

class Weather {
  constructor(readonly sky: string) {}
}

export async function tested(): Promise<FakeReward[]> {
  const service = new FakeService({ choose: ({ actions }) => actions[0] ?? "" });
  const ours = service.client({ timeout: 100 });
  const request: RankRequest = { actions: { tea: {}, juice: null } };
  (await ours.rank(request)).reward(1);
  await ours[Symbol.asyncDispose]();
  return service.rewards();
}

export function reason(error: unknown): string {
  if (error instanceof NoAnswerError) return String(error.cause);
  return error instanceof ServiceError ? `${error.requestId} ${error.code}` : "other";
}

export function read(text: string): RankResult | ErrorBody {
  return JSON.parse(text) as RankResult | ErrorBody;
}

void new Client(new URL("http://127.0.0.1:8000"), { key: environment.FEDRES_KEY });
// @ts-expect-error: dates are no features
void client.rank({ actions: ids, context: new Date() });
// @ts-expect-error: functions are no features
void client.rank({ actions: ids, context: () => 1 });
// @ts-expect-error: lists are no features
void client.rank({ actions: ids, context: [1] });
// @ts-expect-error: text is no list of actions
void client.rank({ actions: "tea" });
// @ts-expect-error: the client alone makes its errors
void new ServiceError();
// @ts-expect-error: a former name
void client.rank({ actions: ids, deadline: 1 });

// @ts-expect-error: a reward is no text
client.reward("event", "1");
// @ts-expect-error: an option that nobody reads
void client.rank({ actions: listed, contxt: {} });
// @ts-expect-error: an id is text or a number
void client.rank({ actions: [true] });
