import type { Actions, Features, Id, IdOf } from "./fedres.d.ts";

export interface DeviceOptions {
  /** This device's name; its key should be bound to it. */
  client: Id;
  loop?: string | undefined;
  key?: string | undefined;
  /** That of the loop's model: "residual-kalman", the default, or "linear" for loops with "adagrad". */
  learner?: "residual-kalman" | "linear" | undefined;
  /** Clip, round or add noise to what is uploaded of the personal model, as in Python; noise needs clip and scale. */
  privacy?: { clip?: number; step?: number; noise?: "gaussian" | "laplace"; scale?: number } | null | undefined;
  /** Where everything is kept; IndexedDB in browsers, else memory. */
  store?: Store | undefined;
  /** Seconds between two syncs, 5 by default; null: sync only when called. */
  syncSeconds?: number | null | undefined;
  /** Seconds that `open` waits for the newest model, 2 by default; 0: it does not ask for it. */
  openSeconds?: number | undefined;
  /** Uploads, and decisions without a reward, that are kept; 10,000 by default. */
  queueLimit?: number | undefined;
  fetch?: typeof fetch | undefined;
  clock?: (() => number) | undefined;
  random?: (() => number) | undefined;
}

export interface DeviceRequest<A extends Actions = Actions> {
  context?: Features | null | undefined;
  actions: A;
  /** Never leaves the device. */
  private?: Features | null | undefined;
  exclude?: Iterable<Id> | null | undefined;
  eventId?: Id | null | undefined;
}

export interface DeviceDecision<I extends Id = string> {
  eventId: string;
  /** The id as it was passed. */
  action: I;
  probability: number;
  scores: Record<string, number>;
  /** 0: no shared model took part. */
  modelVersion: number;
}

export interface DeviceStatus {
  modelVersion: number;
  waiting: number;
  queued: number;
  dropped: number;
  trouble: string | null;
}

export class FedresDevice {
  /** `url` is FEDRES_URL of Node's environment where it is undefined. */
  static open(url: string | undefined, options: DeviceOptions): Promise<FedresDevice>;
  decide<A extends Actions>(request: DeviceRequest<A>): Promise<DeviceDecision<IdOf<A>>>;
  reward(eventId: Id, value: number | boolean | bigint): Promise<void>;
  sync(): Promise<{ sent: number; dropped: number; version: number; trouble: string | null }>;
  status(): DeviceStatus;
  close(): Promise<void>;
}

export type Change = [store: "meta" | "waiting" | "queue" | "journal", key: string | number, value?: unknown];

export interface Store {
  open(): Promise<Record<string, Map<string | number, unknown>>>;
  /** Do all changes or none. */
  write(changes: Change[]): Promise<void>;
  close(): void;
}

export class IndexedDBStore implements Store {
  constructor(name: string);
  open(): Promise<Record<string, Map<string | number, unknown>>>;
  write(changes: Change[]): Promise<void>;
  close(): void;
}

export class MemoryStore implements Store {
  open(): Promise<Record<string, Map<string | number, unknown>>>;
  write(changes: Change[]): Promise<void>;
  close(): void;
}
