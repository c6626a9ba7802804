import type { Features } from "./fedres.d.ts";

export interface DeviceOptions {
  /** This device's name; its key should be bound to it. */
  client: string;
  loop?: string;
  key?: string;
  /** That of the loop's model: "residual-kalman", the default, or "linear" for loops with "adagrad". */
  learner?: "residual-kalman" | "linear";
  /** Clip, round or add noise to what is uploaded of the personal model, as in Python; noise needs clip and scale. */
  privacy?: { clip?: number; step?: number; noise?: "gaussian" | "laplace"; scale?: number } | null;
  /** Where everything is kept; IndexedDB in browsers, else memory. */
  store?: Store;
  /** Seconds between two syncs, 5 by default; null: sync only when called. */
  syncSeconds?: number | null;
  /** Uploads, and decisions without a reward, that are kept; 10,000 by default. */
  queueLimit?: number;
  fetch?: typeof fetch;
  clock?: () => number;
  random?: () => number;
}

export interface DeviceRequest {
  context?: Features;
  actions: Record<string, Features> | string[];
  /** Never leaves the device. */
  private?: Features;
  exclude?: string[];
  eventId?: string;
}

export interface DeviceDecision {
  eventId: string;
  action: string;
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
  static open(url: string, options: DeviceOptions): Promise<FedresDevice>;
  decide(request: DeviceRequest): Promise<DeviceDecision>;
  reward(eventId: string, value: number): Promise<void>;
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
