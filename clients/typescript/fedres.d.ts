import type { Explained, FeedbackStored, LiftReport, PopularItem, Ranked } from "./schema.d.ts";
import type { Settings, SimilarItem, UnmatchedReward } from "./schema.d.ts";

export type { Control, Defences, ErrorBody, Explained, Guardrail } from "./schema.d.ts";
export type { FeedbackStored, LiftReport, PopularItem, Ranked } from "./schema.d.ts";
export type { Settings, SimilarItem, Strongest, UnmatchedReward } from "./schema.d.ts";

declare global {
  /** Older libraries of TypeScript lack the symbol. */
  interface SymbolConstructor {
    /** Names the method that `await using` calls. */
    readonly asyncDispose: unique symbol;
  }
}

/** What functions, dates, lists, maps and sets have, and features must not be. */
interface NoFeatures {
  /** Functions have it. */
  [Symbol.hasInstance]?: never;
  /** Dates have it. */
  [Symbol.toPrimitive]?: never;
  /** Lists, maps and sets have it. */
  [Symbol.iterator]?: never;
}

/**
 * JSON by name: numbers, text, booleans, lists and objects of them. An interface or a class of your
 * own
 * will do; dates and functions are refused.
 */
export type Features = (object & NoFeatures) | { readonly [name: string]: unknown };

/** Text or a whole number; it is sent as text, and comes back as you passed it. */
export type Id = string | number | bigint;

/** An action to choose from. */
export interface OfferedAction {
  /** The action's id; each at most once in a request. */
  id: Id;
  /** What is known of the action. Without features, it has those of the catalogue. */
  features?: Features | null | undefined;
}

/**
 * A list of `{ id, features }`, a list of ids, or a `Map` or an object from ids to features. The
 * best
 * action first: it is the fallback, and what a control group sees by default. Objects whose keys
 * look
 * like whole numbers are refused, as JavaScript sorts them: pass a list or a `Map`.
 */
export type Actions =
  | (Iterable<Id | OfferedAction> & object)
  | ReadonlyMap<Id, Features | null | undefined>
  | Readonly<Record<string, Features | null | undefined>>;

/** The ids of actions, as they were passed. */
export type IdOf<A extends Actions> =
  A extends ReadonlyMap<infer I extends Id, unknown> ? I
  : A extends Iterable<infer Each>
    ? Each extends { id: infer I extends Id } ? I : Extract<Each, Id>
  : Extract<keyof A, string>;

/** Options of every call that asks the service. */
export interface CallOptions {
  /** Milliseconds that this call may take, all tries included; default: the client's. */
  timeout?: number | undefined;
  /** Cancels the call, which then throws the signal's reason; a decision has no fallback then. */
  signal?: AbortSignal | undefined;
}

/** A request for a decision. */
export interface RankRequest<A extends Actions = Actions> {
  /** The actions to choose from, the best first. */
  actions: A;
  /** Features of the situation, known before the decision. */
  context?: Features | null | undefined;
  /** Who is decided for; null, undefined and "" are nobody. */
  user?: Id | null | undefined;
  /** Ids of actions that must not be chosen. */
  exclude?: Iterable<Id> | null | undefined;
  /** The id of the event; made by the client by default. A repeat has the same decision. */
  eventId?: Id | null | undefined;
  /** Learn from the event only if `activate` is called; default: false. */
  defer?: boolean | undefined;
  /** Return why the actions score as they do; default: false. */
  explain?: boolean | undefined;
}

/** A place on a page. */
export interface SlotRequest {
  /** The slot's id; each once in a request. */
  id: Id;
  /** Features of the place. */
  features?: Features | null | undefined;
  /** Ids of actions that must not be shown here. */
  exclude?: Iterable<Id> | null | undefined;
  /** The action that the control group sees here. */
  baseline?: Id | null | undefined;
}

/** A number, true for 1, or named outcomes such as `{ click: 1 }`. */
export type RewardValue =
  | number
  | boolean
  | bigint
  | Readonly<Record<string, number | boolean | bigint>>;

/** Options of a reward. */
export interface RewardOptions {
  /** Two rewards with one id count once; made by the client by default. */
  id?: Id | null | undefined;
}

/** What a decision and an item of a page have in common. */
export interface WithFeedback {
  /** The id of the event; that of a fallback begins with "fallback-". */
  eventId: string;
  /** Control, treatment or held, where the loop has a control group. */
  arm?: string | null;
  /** Whether the service did not decide; rewards are not sent then. */
  fallback: boolean;
  /** Why the service did not decide; null if it did. */
  error: ServiceError | null;
  /**
   * Send the reward in the background. Copies of a decision lack this: pass them to
   * `Client.reward`.
   */
  reward(reward: RewardValue, options?: RewardOptions): void;
  /** Report in the background that a deferred decision was shown. */
  activate(): void;
}

/** Which action to take. */
export interface Decision<I extends Id = string> extends WithFeedback {
  /** The id of the action, as it was passed. */
  action: I;
  /** The probability with which the action was chosen; null in a fallback. */
  probability: number | null;
  /** All actions with their scores and probabilities, the best score first; empty in a fallback. */
  ranking: (Omit<Ranked, "id"> & { id: I })[];
  /** The version of the model that decided; 0 in a fallback. */
  modelVersion: number;
  /** The slot that the action is for, in decisions by `slots`. */
  slot?: Id;
  /** Why the actions score as they do, if the request has `explain`. */
  explanations?: (Omit<Explained, "id"> & { id: I })[] | null;
}

/** A stored event; other fields are those of the export. */
export interface StoredEvent {
  /** The id of the event. */
  event_id: string;
  /** The position in the loop's log. */
  position: number;
  /** The id of the action. */
  action: string;
  /** The probability of the action; null for feedback, on which nobody decided. */
  probability: number | null;
  /** The reward; null while the event waits for it, and if none came. */
  reward: number | null;
  /** Waiting, deferred, rewarded, expired or feedback. */
  status: string;
  /** The user's id, null for nobody. */
  user?: string | null;
  /** Control, treatment or held, where the loop has a control group. */
  arm?: string | null;
  /** Other fields of the export. */
  [field: string]: unknown;
}

/** What an action earned that the service did not choose. */
export interface FeedbackEvent {
  /** The action's id, or the action with features. */
  action: Id | { id: Id; features?: Features | null | undefined };
  /** What the action earned. */
  reward: number;
  /** Who it was for. */
  user?: Id | null | undefined;
  /** Features of the situation. */
  context?: Features | null | undefined;
  /** An event whose id is stored already is not stored again; made by the client by default. */
  eventId?: Id | null | undefined;
  /** When it happened: a date, seconds since 1970 or ISO 8601; default: now. */
  time?: Date | number | string | null | undefined;
}

/** A request for items of the catalogue. */
export interface RecommendRequest {
  /** The number of items, 1 to 100; default: 10. */
  n?: number | undefined;
  /** Who the items are for; null, undefined and "" are nobody. */
  user?: Id | null | undefined;
  /** Features of the situation. */
  context?: Features | null | undefined;
  /** By attributes, such as `{ genre: ["crime", "comedy"], price: { max: 10 } }`. */
  filter?: Readonly<Record<string, unknown>> | null | undefined;
  /** Ids of items that must not be shown. */
  exclude?: Iterable<Id> | undefined;
  /** Leave out what the user was shown: ever (true), or within so many seconds. */
  excludeSeen?: boolean | number | undefined;
  /** The id of the page; made by the client by default. */
  eventId?: Id | null | undefined;
  /** Learn from an item only if `activate` is called; default: false. */
  defer?: boolean | undefined;
  /** Ids of items to show while the service does not answer; default: none. */
  fallback?: Iterable<Id> | undefined;
}

/** An item of the catalogue in its place on a page. */
export interface Recommendation extends WithFeedback {
  /** The id of the item. */
  id: string;
  /** The expected reward; null in a fallback. */
  score: number | null;
  /** Of this item in this place, given those before; null in a fallback. */
  probability: number | null;
}

/** Who decides while the service does not: the first action, a function, or null to throw. */
export type Fallback = "first" | ((request: RankRequest) => Id) | null;

/** A completed call. */
export interface Observed {
  /** The method, such as "rank"; "rewards" for a batch of rewards. */
  name: string;
  /** Milliseconds of the call, all tries included. */
  milliseconds: number;
  /** The status of the last answer; 0 if none came. */
  status: number;
  /** The error of a call that failed. */
  error: ServiceError | null;
}

/** Counts of rewards and activations so far, by their state, and the age of the oldest. */
export interface RewardStatus {
  /** Not yet acknowledged by the service. */
  queued: number;
  /** Stored by the service. */
  sent: number;
  /** Refused by the service, for good. */
  refused: number;
  /** Dropped for lack of room in the queue, or unsent when the client was closed. */
  dropped: number;
  /** Milliseconds for which the oldest of the queued ones has waited; 0 without any. */
  oldestMilliseconds: number;
}

/** Options of a client. */
export interface Options {
  /** The loop; default: "default". */
  loop?: string | undefined;
  /** The API key; default: `FEDRES_KEY` of Node's environment. */
  key?: string | undefined;
  /** Milliseconds that a decision may take, all tries included; default: 1,000. */
  timeout?: number | undefined;
  /** Milliseconds that all other calls may take; default: 30,000. */
  adminTimeout?: number | undefined;
  /** Who decides while the service does not; with null, calls throw a `ServiceError`. */
  fallback?: Fallback | undefined;
  /** Rewards that are kept while the service is away; default: 10,000. */
  queueLimit?: number | undefined;
  /** Called after every call, and after every batch of rewards. */
  observe?: ((call: Observed) => void) | undefined;
  /** Sends requests instead of the global `fetch`: for a proxy, or for tests. */
  fetch?: typeof fetch | undefined;
  /** Draws the waits before retries, in [0, 1); default: `Math.random`. */
  random?: (() => number) | undefined;
}

/** The service refused a call, or did not answer. */
export class ServiceError extends Error {
  /** Made by the client only. */
  protected constructor();
  /** The HTTP status; 0 where no answer came. */
  status: number;
  /** The code of the error, such as "unknown_loop". */
  code: string;
  /** The field of the request at fault, if it is one. */
  target: string | null;
  /** The id of the last request, as the service logs it; null if none was sent. */
  requestId: string | null;
  /** Return the error as plain data. */
  toJSON(): Record<string, unknown>;
}

/** No answer came in time, or none that can be read; `cause` is the failure of `fetch`. */
export class NoAnswerError extends ServiceError {}

/** The service does not accept the key, or not for this call (401, 403). */
export class KeyRefusedError extends ServiceError {}

/** A limit is reached (429). */
export class LimitError extends ServiceError {}

/** The service refused the request itself (other 4xx). */
export class RefusedError extends ServiceError {}

/** The version of this package. */
export const VERSION: string;

/** Return an id that nobody had before, for an event or a reward. */
export function newEventId(): string;

/**
 * Requests decisions from a service, and sends their rewards in the background. Create one per
 * process
 * and service; call `close` at the end.
 */
export class Client {
  /** `url` is `FEDRES_URL` of Node's environment by default. */
  constructor(url?: string | URL | undefined, options?: Options);

  /** Return a client of another loop, which shares the connections and the queue of rewards. */
  withLoop(loop: string): Client;

  /** Return which action to take. */
  rank<const A extends Actions>(request: RankRequest<A> & CallOptions): Promise<Decision<IdOf<A>>>;

  /** Return a decision for each of at most 100 requests, in one call. */
  rankMany<R extends RankRequest>(
    requests: Iterable<R>,
    options?: CallOptions,
  ): Promise<Decision<IdOf<R["actions"]>>[]>;

  /**
   * Return at most `n` items of the catalogue for a user, the first place first; while the service
   * does
   * not answer, those of `fallback`.
   */
  recommend(request?: RecommendRequest & CallOptions): Promise<Recommendation[]>;

  /** Return a decision for each slot of a page, no action twice. */
  slots<const A extends Actions>(
    slots: Iterable<Id | SlotRequest>,
    request: RankRequest<A> & CallOptions,
  ): Promise<Decision<IdOf<A>>[]>;

  /** Send a reward in the background: a number, true, or named outcomes. */
  reward(eventId: Id, reward: RewardValue, options?: RewardOptions): void;

  /** Report in the background that the decision of a deferred event was shown. */
  activate(eventId: Id): void;

  /** Return the loop's settings. */
  settings(options?: CallOptions): Promise<Required<Settings>>;

  /** Change some settings, and return all. */
  changeSettings(changes: Settings, options?: CallOptions): Promise<Required<Settings>>;

  /** Replace all settings, and return them: missing ones get their defaults. */
  replaceSettings(settings: Settings, options?: CallOptions): Promise<Required<Settings>>;

  /** Return the catalogue: features by id. */
  catalogue(options?: CallOptions): Promise<Record<string, Record<string, unknown>>>;

  /** Add or replace actions of the catalogue, in any form that `rank` takes, and retire others. */
  putActions(
    actions: Actions,
    options?: CallOptions & { retire?: Iterable<Id> | undefined },
  ): Promise<void>;

  /** Return the `n` items that earned most within the last seconds; default: 10, 30 days. */
  popular(
    options?: CallOptions & { n?: number | undefined; seconds?: number | undefined },
  ): Promise<PopularItem[]>;

  /** Return the `n` items of the catalogue that are most like another one; default: 10. */
  similar(
    item: Id,
    options?: CallOptions & { n?: number | undefined },
  ): Promise<SimilarItem[]>;

  /**
   * Send what actions earned that the service did not choose, at most 500 in a call; return how
   * many
   * events are new and how many were stored before.
   */
  feedback(
    events: Iterable<FeedbackEvent>,
    options?: CallOptions,
  ): Promise<FeedbackStored>;

  /**
   * Yield the stored events behind a position, oldest first, fetched `pageSize` (1,000) at a time.
   */
  events(
    options?: CallOptions & { after?: number | undefined; pageSize?: number | undefined },
  ): AsyncGenerator<StoredEvent>;

  /**
   * Return what other policies would have earned on the stored events. Intervals hold for one look,
   * with
   * `timeUniform` at all looks at the growing log together.
   */
  evaluate(
    policies: readonly string[],
    options?: CallOptions & {
      estimators?: readonly string[] | undefined;
      timeUniform?: boolean | undefined;
    },
  ): Promise<{ rows: Record<string, unknown>[]; [field: string]: unknown }>;

  /** Return how much more the policy earns than its control group. */
  lift(options?: CallOptions): Promise<LiftReport>;

  /** Return the newest rewards that do not count, and why. */
  unmatched(options?: CallOptions): Promise<UnmatchedReward[]>;

  /** Erase a user in all loops, within 150 seconds by default; resolves when nothing is left. */
  erase(user: Id, options?: CallOptions): Promise<void>;

  /** Make a loop, and return its settings. */
  createLoop(name: string, settings?: Settings, options?: CallOptions): Promise<Required<Settings>>;

  /** Return the status of the service. */
  status(options?: CallOptions): Promise<Record<string, unknown>>;

  /** Return how many rewards of all loops wait, since when, and what became of the others. */
  rewardStatus(): RewardStatus;

  /**
   * Wait until the service has all rewards, at most so many milliseconds (5,000); return whether it
   * has.
   */
  flush(milliseconds?: number): Promise<boolean>;

  /**
   * Send the remaining rewards of all loops for at most so many milliseconds (5,000), and drop the
   * rest.
   * Every later call throws.
   */
  close(milliseconds?: number): Promise<void>;

  /** Close the client at the end of a block with `await using`. */
  [Symbol.asyncDispose](): Promise<void>;
}
