// Generated from /openapi.json by generate_types.py; do not edit.

/** An action; one without features has those of the catalogue, or its id alone if it is not in there. */
export interface Action {
  id: string;
  features?: Record<string, unknown> | null;
}

/** Many requests at once, each decided or refused on its own. */
export interface Batch {
  requests: RankRequest[];
}

/** What became of each request of a batch, in its order. */
export interface Decisions {
  results: (RankResult | Error)[];
}

/** What every failure looks like. */
export interface Error {
  error: ErrorDetail;
}

export interface ErrorDetail {
  code: string;
  message: string;
  target: string | null;
}

/** Why an action scores as it does. */
export interface Explained {
  id: string;
  shared: number;
  personal: number;
  strongest: Strongest[];
  width?: number | null;
}

/** What one slot shows; `action_id` is called `action` in JSON. */
export interface FilledSlot {
  id: string;
  event_id: string;
  action: string;
  probability: number;
  ranking: Ranked[];
}

/** A request for a decision. */
export interface RankRequest {
  actions: Action[];
  context?: Record<string, unknown> | null;
  user?: string | null;
  exclude?: string[];
  event_id?: string | null;
  defer?: boolean;
  explain?: boolean;
}

/** The answer; `action_id` is called `action` in JSON. */
export interface RankResult {
  event_id: string;
  action: string;
  probability: number;
  ranking: Ranked[];
  model_version: number;
  arm?: string | null;
  explanations?: Explained[] | null;
}

export interface Ranked {
  id: string;
  probability: number;
  score: number;
}

export interface Reward {
  value?: number | null;
  id?: string | null;
  outcomes?: Record<string, unknown> | null;
}

/** A place for one action, its features, what it must not show, and what it would show without us. */
export interface Slot {
  id: string;
  features?: Record<string, unknown> | null;
  exclude?: string[];
  baseline?: string | null;
}

/** A request for a decision on each slot of a page, no action twice. */
export interface SlotsRequest {
  actions: Action[];
  slots: Slot[];
  context?: Record<string, unknown> | null;
  user?: string | null;
  event_id?: string | null;
  defer?: boolean;
}

/** The answer: the slots in the order they came and were filled in. */
export interface SlotsResult {
  event_id: string;
  model_version: number;
  slots: FilledSlot[];
}

/** What a pair of features adds to a score; an empty name is none, and two of them are the constant. */
export interface Strongest {
  context: string;
  action: string;
  shared: number;
  personal: number;
}
