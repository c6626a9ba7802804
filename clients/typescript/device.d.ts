import type { Actions, Features, Id, IdOf } from "./fedres.d.ts";

/** Options of a device. */
export interface DeviceOptions {
  /** This device's name; its key should be bound to it. */
  client: Id;
  /** The loop; default: "default". */
  loop?: string | undefined;
  /** A key with the role `device`; default: `FEDRES_KEY` of Node's environment. */
  key?: string | undefined;
  /**
   * That of the loop's model: "residual-kalman" (default), or "linear" for loops with "adagrad".
   */
  learner?: "residual-kalman" | "linear" | undefined;
  /**
   * Clip, round or add noise to uploads of the personal model, as in Python; noise needs clip,
   * scale.
   */
  privacy?:
    | { clip?: number; step?: number; noise?: "gaussian" | "laplace"; scale?: number }
    | null
    | undefined;
  /** Where everything is kept; default: IndexedDB in browsers, else memory. */
  store?: Store | undefined;
  /** Seconds between two syncs; default: 5. null: sync only when called. */
  syncSeconds?: number | null | undefined;
  /** Seconds that `open` waits for the newest model; default: 2. 0: it does not ask for it. */
  openSeconds?: number | undefined;
  /** Uploads, and decisions without a reward, that are kept; default: 10,000. */
  queueLimit?: number | undefined;
  /** Sends requests instead of the global `fetch`: for tests. */
  fetch?: typeof fetch | undefined;
  /** Returns the time in milliseconds since 1970; default: `Date.now`. */
  clock?: (() => number) | undefined;
  /** Draws the waits before retries, in [0, 1); default: `Math.random`. */
  random?: (() => number) | undefined;
}

/** A request for a decision. */
export interface DeviceRequest<A extends Actions = Actions> {
  /** Features of the situation; they are uploaded with the reward. */
  context?: Features | null | undefined;
  /** The actions to choose from. */
  actions: A;
  /** Features that never leave the device. */
  private?: Features | null | undefined;
  /** Ids of actions that must not be chosen. */
  exclude?: Iterable<Id> | null | undefined;
  /** The id of the event; made by the device by default. */
  eventId?: Id | null | undefined;
}

/** Which action to take. */
export interface DeviceDecision<I extends Id = string> {
  /** The id of the event, for its reward. */
  eventId: string;
  /** The id of the action, as it was passed. */
  action: I;
  /** The probability with which the action was chosen. */
  probability: number;
  /** The expected reward of each action. */
  scores: Record<string, number>;
  /** The version of the shared model; 0: none took part. */
  modelVersion: number;
}

/** How a device is. */
export interface DeviceStatus {
  /** The version of the shared model; 0: none. */
  modelVersion: number;
  /** Decisions that wait for their rewards. */
  waiting: number;
  /** Uploads that wait for the service. */
  queued: number;
  /** Uploads that were dropped. */
  dropped: number;
  /** Why the last sync failed; null if it did not. */
  trouble: string | null;
}

/** Decides with private features, offline too. */
export class FedresDevice {
  private constructor();

  /**
   * Open a device; in a browser, one tab at a time may. `url` is `FEDRES_URL` of Node's environment
   * where
   * it is undefined. This waits for the newest model, at most `openSeconds`.
   */
  static open(url: string | URL | undefined, options: DeviceOptions): Promise<FedresDevice>;

  /** Return which action to take; this waits for the disk and never for the network. */
  decide<const A extends Actions>(request: DeviceRequest<A>): Promise<DeviceDecision<IdOf<A>>>;

  /** Learn a reward, and queue what is to be uploaded; resolves when both are on disk. */
  reward(eventId: Id, value: number | boolean | bigint): Promise<void>;

  /** Upload what waits, then fetch the newest model; `trouble` is why that failed. */
  sync(): Promise<{ sent: number; dropped: number; version: number; trouble: string | null }>;

  /** Return how the device is. */
  status(): DeviceStatus;

  /** Save the personal model, and let another tab open the device. */
  close(): Promise<void>;
}

/** A change of a store: without a value, the key is removed. */
export type Change = [
  store: "meta" | "waiting" | "queue" | "journal",
  key: string | number,
  value?: unknown,
];

/** Where a device keeps everything. */
export interface Store {
  /** Return all that is kept, by store. */
  open(): Promise<Record<string, Map<string | number, unknown>>>;
  /** Do all changes or none. */
  write(changes: Change[]): Promise<void>;
  /** Close the store. */
  close(): void;
}

/** A store in the browser's IndexedDB. */
export class IndexedDBStore implements Store {
  /** `name` is that of the database. */
  constructor(name: string);
  /** Return all that is kept, by store. */
  open(): Promise<Record<string, Map<string | number, unknown>>>;
  /** Do all changes or none. */
  write(changes: Change[]): Promise<void>;
  /** Close the database. */
  close(): void;
}

/** A store in memory. */
export class MemoryStore implements Store {
  /** Return all that is kept, by store. */
  open(): Promise<Record<string, Map<string | number, unknown>>>;
  /** Do all changes or none. */
  write(changes: Change[]): Promise<void>;
  /** Nothing is to be closed. */
  close(): void;
}
