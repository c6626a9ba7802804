import type { Explained, Ranked, Settings, UnmatchedReward } from "./schema.d.ts";

export type * from "./schema.d.ts";

export type Features = Record<string, unknown>;

export interface Request {
  /** Features by id, or ids: those of the catalogue, or actions without features. */
  actions: Record<string, Features> | string[];
  context?: Features;
  user?: string;
  exclude?: string[];
  /** Made by the client where there is none. */
  eventId?: string;
  defer?: boolean;
  explain?: boolean;
}

/** With `fallback`, the service did not decide (`error` says why), and rewards are not sent. */
export interface Decision {
  eventId: string;
  action: string;
  probability: number;
  ranking: Ranked[];
  modelVersion: number;
  slot?: string;
  explanations?: Explained[] | null;
  fallback: boolean;
  error: ServiceError | null;
  /** Send a number, or named outcomes such as `{ click: 1 }`. */
  reward(reward: number | Record<string, number>, options?: { id?: string }): void;
  activate(): void;
}

/** A stored event; other fields are those of the export. */
export interface Event {
  event_id: string;
  position: number;
  action: string;
  probability: number;
  reward: number | null;
  status: string;
  [field: string]: unknown;
}

export type Fallback = "first" | ((request: Request) => string) | null;

export interface Options {
  loop?: string;
  key?: string;
  /** Milliseconds that a decision may take with all its tries; 1000 by default. */
  deadline?: number;
  /** Who decides while the service does not; with null, a `ServiceError` is thrown. */
  fallback?: Fallback;
  queueLimit?: number;
  /** Milliseconds for calls other than decisions; 30,000 by default. */
  adminDeadline?: number;
  fetch?: typeof fetch;
  random?: () => number;
}

export class ServiceError extends Error {
  status: number;
  code: string;
  target: string | null;
}

export function newEventId(): string;

export class Client {
  constructor(url: string, options?: Options);
  rank(request: Request & { deadline?: number }): Promise<Decision>;
  rankMany(requests: Request[], options?: { deadline?: number }): Promise<Decision[]>;
  slots(
    slots: (string | { id: string; features?: Features; exclude?: string[] })[],
    request: Request & { deadline?: number },
  ): Promise<Decision[]>;
  reward(eventId: string, reward: number | Record<string, number>, options?: { id?: string }): void;
  activate(eventId: string): void;
  settings(): Promise<Required<Settings>>;
  changeSettings(changes: Settings): Promise<Required<Settings>>;
  replaceSettings(settings: Settings): Promise<Required<Settings>>;
  actions(): Promise<Record<string, Features>>;
  putActions(actions: Record<string, Features>, options?: { retire?: string[] }): Promise<void>;
  events(options?: { after?: number; pageSize?: number }): AsyncGenerator<Event>;
  evaluate(policies: string[], options?: { estimators?: string[]; timeUniform?: boolean }): Promise<Record<string, unknown>>;
  lift(): Promise<Record<string, unknown>>;
  unmatched(): Promise<UnmatchedReward[]>;
  erase(user: string): Promise<void>;
  createLoop(name: string, settings?: Settings): Promise<Required<Settings>>;
  status(): Promise<Record<string, unknown>>;
  rewards(): { queued: number; sent: number; refused: number; dropped: number };
  flush(milliseconds?: number): Promise<boolean>;
  close(milliseconds?: number): Promise<void>;
}
