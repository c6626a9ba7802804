import type { Explained, Ranked, Settings, UnmatchedReward } from "./schema.d.ts";

export type * from "./schema.d.ts";

/** JSON by name. An interface or a class of your own will do. */
export type Features = object;

/** Sent as text. */
export type Id = string | number | bigint;

/** Without features, an action has those of the catalogue. */
export interface OfferedAction {
  id: Id;
  features?: Features | null | undefined;
}

/**
 * The best action first: it is the fallback, and what a control group sees by default. Objects whose keys look like whole numbers are
 * refused, as JavaScript sorts them: take a list or a Map.
 */
export type Actions =
  | Iterable<Id | OfferedAction>
  | ReadonlyMap<Id, Features | null | undefined>
  | Readonly<Record<string, Features | null | undefined>>;

/** The ids of actions, as they were passed. */
export type IdOf<A extends Actions> =
  A extends ReadonlyMap<infer I extends Id, unknown> ? I
  : A extends Iterable<infer Each> ? (Each extends { id: infer I extends Id } ? I : Extract<Each, Id>)
  : Extract<keyof A, string>;

export interface Request<A extends Actions = Actions> {
  actions: A;
  context?: Features | null | undefined;
  /** null, undefined and "" are nobody. */
  user?: Id | null | undefined;
  exclude?: Iterable<Id> | null | undefined;
  /** Made by the client where there is none. */
  eventId?: Id | null | undefined;
  defer?: boolean | undefined;
  explain?: boolean | undefined;
}

export interface Times {
  /** Milliseconds that this call may take with all its tries. */
  deadline?: number | undefined;
  /** Another name of `deadline`. */
  timeout?: number | undefined;
}

export interface SlotRequest {
  id: Id;
  features?: Features | null | undefined;
  exclude?: Iterable<Id> | null | undefined;
  /** The action that the control group sees here. */
  baseline?: Id | null | undefined;
}

/** A number, true for 1, or named outcomes such as `{ click: 1 }`. */
export type RewardValue = number | boolean | bigint | Readonly<Record<string, number | boolean | bigint>>;

/** With `fallback`, the service did not decide (`error` says why), and rewards are not sent. */
export interface Decision<I extends Id = string> {
  /** That of a fallback begins with "fallback-". */
  eventId: string;
  /** The id as it was passed. */
  action: I;
  /** null in a fallback. */
  probability: number | null;
  ranking: (Omit<Ranked, "id"> & { id: I })[];
  modelVersion: number;
  slot?: Id;
  /** control, treatment or held, where the loop has a control group. */
  arm?: string | null;
  explanations?: (Omit<Explained, "id"> & { id: I })[] | null;
  fallback: boolean;
  error: ServiceError | null;
  reward(reward: RewardValue, options?: { id?: Id | null | undefined }): void;
  activate(): void;
}

/** A stored event; other fields are those of the export. */
export interface Event {
  event_id: string;
  position: number;
  action: string;
  /** null for feedback, on which nobody decided. */
  probability: number | null;
  reward: number | null;
  status: string;
  user?: string | null;
  arm?: string | null;
  [field: string]: unknown;
}

/** What an action earned that the service did not choose. */
export interface FeedbackEvent {
  action: Id | { id: Id; features?: Features | null | undefined };
  reward: number;
  user?: Id | null | undefined;
  context?: Features | null | undefined;
  /** An event with a known id is not stored again. */
  eventId?: Id | null | undefined;
  /** When it happened: a date, seconds since 1970 or ISO 8601. */
  time?: Date | number | string | null | undefined;
}

export interface RecommendRequest {
  /** 1 to 100; 10 by default. */
  n?: number | undefined;
  user?: Id | null | undefined;
  context?: Features | null | undefined;
  /** By attributes, such as `{ genre: ["crime", "comedy"], price: { max: 10 } }`. */
  filter?: Readonly<Record<string, unknown>> | null | undefined;
  exclude?: Iterable<Id> | undefined;
  /** Leave out what the user was shown: ever, or within so many seconds. */
  excludeSeen?: boolean | number | undefined;
  eventId?: Id | null | undefined;
  defer?: boolean | undefined;
  /** Items to show while the service does not answer. */
  fallback?: Iterable<Id> | undefined;
}

/** An item of the catalogue in its place on a page. */
export interface Recommendation {
  id: string;
  eventId: string;
  /** The expected reward; null in a fallback. */
  score: number | null;
  /** Of this item in this place, given those before; null in a fallback. */
  probability: number | null;
  arm?: string | null;
  fallback: boolean;
  error: ServiceError | null;
  reward(reward: RewardValue, options?: { id?: Id | null | undefined }): void;
  activate(): void;
}

export type Fallback = "first" | ((request: Request) => Id) | null;

/** A call that came to its end. */
export interface Observed {
  /** Such as "rank" or "reward". */
  name: string;
  /** With all tries. */
  milliseconds: number;
  /** Of the last answer; 0 if none came. */
  status: number;
  error: ServiceError | null;
}

export interface Options {
  loop?: string | undefined;
  /** FEDRES_KEY of Node's environment by default. */
  key?: string | undefined;
  /** Milliseconds that a decision may take with all its tries; 1000 by default. */
  deadline?: number | undefined;
  /** Another name of `deadline`. */
  timeout?: number | undefined;
  /** Who decides while the service does not; with null, a `ServiceError` is thrown. */
  fallback?: Fallback | undefined;
  queueLimit?: number | undefined;
  /** Milliseconds for calls other than decisions; 30,000 by default. */
  adminDeadline?: number | undefined;
  /** Called after every call. */
  observe?: ((call: Observed) => void) | undefined;
  fetch?: typeof fetch | undefined;
  random?: (() => number) | undefined;
}

export class ServiceError extends Error {
  constructor(status: number, code: string, message: string, target?: string | null, options?: ErrorOptions);
  status: number;
  code: string;
  target: string | null;
}

export function newEventId(): string;

export class Client {
  /** `url` is FEDRES_URL of Node's environment by default. */
  constructor(url?: string | undefined, options?: Options);
  rank<A extends Actions>(request: Request<A> & Times): Promise<Decision<IdOf<A>>>;
  rankMany<R extends Request>(requests: Iterable<R>, options?: Times): Promise<Decision<IdOf<R["actions"]>>[]>;
  recommend(request?: RecommendRequest & Times): Promise<Recommendation[]>;
  slots<A extends Actions>(slots: Iterable<Id | SlotRequest>, request: Request<A> & Times): Promise<Decision<IdOf<A>>[]>;
  reward(eventId: Id, reward: RewardValue, options?: { id?: Id | null | undefined }): void;
  activate(eventId: Id): void;
  settings(): Promise<Required<Settings>>;
  changeSettings(changes: Settings): Promise<Required<Settings>>;
  replaceSettings(settings: Settings): Promise<Required<Settings>>;
  actions(): Promise<Record<string, Record<string, unknown>>>;
  putActions(actions: Actions, options?: { retire?: Iterable<Id> | undefined }): Promise<void>;
  popular(options?: { n?: number | undefined; seconds?: number | undefined }): Promise<{ id: string; score: number; events: number }[]>;
  similar(item: Id, options?: { n?: number | undefined }): Promise<{ id: string; score: number }[]>;
  feedback(events: Iterable<FeedbackEvent>): Promise<{ stored: number; repeated: number }>;
  events(options?: { after?: number | undefined; pageSize?: number | undefined }): AsyncGenerator<Event>;
  evaluate(
    policies: readonly string[],
    options?: { estimators?: readonly string[] | undefined; timeUniform?: boolean | undefined },
  ): Promise<{ rows: Record<string, unknown>[]; [field: string]: unknown }>;
  lift(): Promise<Record<string, unknown>>;
  unmatched(): Promise<UnmatchedReward[]>;
  erase(user: Id): Promise<void>;
  createLoop(name: string, settings?: Settings): Promise<Required<Settings>>;
  status(): Promise<Record<string, unknown>>;
  rewards(): { queued: number; sent: number; refused: number; dropped: number; oldestMilliseconds: number };
  flush(milliseconds?: number): Promise<boolean>;
  close(milliseconds?: number): Promise<void>;
}
