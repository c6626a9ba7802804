// Generated from /openapi.json by generate_types.py; do not edit.

/** An action; one without features has those of the catalogue, or its id alone if it is not in there. */
export interface Action {
  id: string;
  features?: Record<string, unknown> | null;
}

/** Many requests at once, each decided or rejected separately. */
export interface Batch {
  requests: RankRequest[];
}

/** The actions that can be named by id alone. */
export interface Catalogue {
  actions: Action[];
}

/** Actions to add or change, and ids to retire. */
export interface CatalogueChange {
  put?: Action[];
  retire?: string[];
}

/** A control group: users whose decisions a baseline makes. Any change of it begins a new experiment. */
export interface Control {
  share?: number;
  baseline?: "first" | "uniform";
  experiment?: string;
  learn?: boolean | null;
  hold?: string | null;
  by_loop?: boolean;
}

/** The result of each request of a batch, in its order. */
export interface Decisions {
  results: (RankResult | Error)[];
}

/** Setting `defences` of a loop; None turns one off. */
export interface Defences {
  max_norm?: number | null;
  client_share?: number | null;
  client_pull?: number | null;
  combine?: "mean" | "median" | "trimmed-mean";
}

/** The shape of every error. */
export interface Error {
  error: ErrorDetail;
}

/** An error. */
export interface ErrorDetail {
  code: string;
  message: string;
  target: string | null;
}

/** Policies to estimate from the logged events, by these estimators. */
export interface Evaluate {
  policies: string[];
  estimators?: string[];
  time_uniform?: boolean;
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

/** How far the mean of an outcome per event may move against the control group. */
export interface Guardrail {
  outcome: string;
  rise?: number | null;
  fall?: number | null;
  revert?: boolean;
}

/** A loop to create; missing settings have their defaults. */
export interface NewLoop {
  name: string;
  settings?: Settings;
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

/** The decision; `action_id` is called `action` in JSON. */
export interface RankResult {
  event_id: string;
  action: string;
  probability: number;
  ranking: Ranked[];
  model_version: number;
  arm?: string | null;
  explanations?: Explained[] | null;
}

/** An action with its score and its probability. */
export interface Ranked {
  id: string;
  probability: number;
  score: number;
}

/** An example of a device, less what is private: the shared features, the local prediction and the label. */
export interface Residual {
  seq: number;
  version: number;
  context: Record<string, unknown> | null;
  action: Action;
  local: number;
  label: number;
  global?: number | null;
  variance?: number | null;
  slopes?: number[] | null;
}

/** Examples of one device; a repeated sequence number counts once. */
export interface Residuals {
  client: string;
  residuals: Residual[];
}

/** Positions of the residuals in the log, and the published version. */
export interface ResidualsStored {
  positions: number[];
  version: number;
}

export interface Reward {
  value?: number | null;
  id?: string | null;
  outcomes?: Record<string, unknown> | null;
}

/** How a loop learns; with a round who uploads after it, or with a client too whether it does. */
export interface Round {
  model: string;
  global_learner: string;
  hyperparameters: Record<string, unknown>;
  bits: number;
  timing: string;
  crosses: boolean;
  personal: boolean;
  policy: string;
  epsilon: number;
  floor: number;
  gamma: number;
  learning_rate: number;
  largest_number: number;
  draw_prefix: string;
  reward_range: number[];
  settings_version: number;
  version: number;
  n_learned: number;
  number: number | null;
  t: number | null;
  senders: number[] | null;
  takes_part: boolean | null;
}

/** The settings of a loop; a record of them in the log applies from its position on. */
export interface Settings {
  model?: "adagrad" | "residual-kalman";
  policy?: "epsilon-greedy" | "greedy" | "optimistic-squarecb" | "squarecb" | null;
  gamma?: number | null;
  floor?: number;
  epsilon?: number;
  learning_rate?: number;
  largest_number?: number;
  reward_range?: unknown[];
  wait_time?: number;
  default_reward?: number | null;
  wait_from?: "activation" | "rank";
  aggregation?: "average" | "earliest" | "sum";
  outcomes?: Record<string, unknown>;
  formula?: string | null;
  guardrails?: Guardrail[];
  control?: Control;
  apprentice?: boolean;
  crosses?: boolean;
  personal?: boolean;
  update_interval?: number;
  global_learner?: "dynamic-fedavg" | "fedogd" | "fedomd" | "fedres-adagrad" | "fedres-sgd" | "fedsea" | "ofedavg" | "ofediq";
  hyperparameters?: Record<string, unknown>;
  bits?: number;
  timing?: "aligned" | "on-arrival";
  defences?: Defences;
  retention?: number | null;
  annotations?: Record<string, unknown>;
  draws_by_loop?: boolean;
}

/** A place for one action, its features, what it must not show, and what it would show without the service. */
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

/** The filled slots, in the order of the request. */
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

/** The newest rewards that came too late or have no event, oldest first. */
export interface Unmatched {
  rewards: UnmatchedReward[];
}

/** A reward that does not count, or not yet. */
export interface UnmatchedReward {
  event_id: string;
  time: string;
  value: number;
  id: string | null;
  status: string;
}
