import type { Client, Features, Id, Options } from "./fedres.d.ts";

/** What a fake service decides on. */
export interface FakeRequest {
  /** The user's id as text, null for nobody. */
  user: string | null;
  /** Features of the situation, as they were sent. */
  context: Record<string, unknown>;
  /** The ids of the actions that may be chosen. */
  actions: string[];
  /** The slot that is filled, in requests by `slots`. */
  slot?: string;
}

/** A decision that a fake service made. */
export interface FakeDecision {
  /** The loop. */
  loop: string;
  /** The id of the event. */
  eventId: string;
  /** The user's id as text, null for nobody. */
  user: string | null;
  /** Features of the situation, as they were sent. */
  context: Record<string, unknown>;
  /** The id of the chosen action. */
  action: string;
  /** The slot that was filled, in requests by `slots`. */
  slot?: string;
}

/** A reward that a fake service received. */
export interface FakeReward {
  /** The loop. */
  loop: string;
  /** The id of the event. */
  eventId: string;
  /** The id of the reward. */
  id: string;
  /** The number; missing with named outcomes. */
  value?: number;
  /** Named outcomes. */
  outcomes?: Record<string, number>;
}

/** Options of a fake service. */
export interface FakeOptions {
  /** The id of the action to choose, or a function that returns it; default: the first action. */
  choose?: Id | ((request: FakeRequest) => Id) | null | undefined;
  /** Features by id, for `recommend`. */
  catalogue?: Record<string, Features> | undefined;
}

/** A service in this process, for tests: it decides as you determine, and records rewards. */
export class FakeService {
  /** Start without decisions and rewards. */
  constructor(options?: FakeOptions);
  /** The action to choose, or a function that returns it; null: the first. You may change it. */
  choose: Id | ((request: FakeRequest) => Id) | null;
  /** Features by id, for `recommend`. You may change it. */
  catalogue: Record<string, Features>;
  /** Whether the service does not answer. You may change it. */
  isAway: boolean;
  /** The decisions so far. */
  readonly decisions: FakeDecision[];
  /** Answers requests as the service would: for the option `fetch` of a client of your own. */
  readonly fetch: typeof fetch;
  /** Return a client of this service. */
  client(options?: Omit<Options, "fetch">): Client;
  /** Send what the clients have queued, and return all rewards so far. */
  rewards(): Promise<FakeReward[]>;
}
