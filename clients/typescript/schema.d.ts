// Generated from /openapi.json by generate_types.py; do not edit.

/** An action; one without features has those of the catalogue, or its id alone if it is not in there. */
export interface Action {
  /** Id of the action; it is a feature, too. */
  id: string;
  /** Features of the action. Without them, those of the catalogue. */
  features?: Record<string, unknown> | null;
}

/** The users of an arm of the experiment, and their rewards. */
export interface ArmReport {
  /** Users in the arm. */
  users: number;
  /** Events with a final reward, the default reward included. */
  events: number;
  /** Mean reward per event; null without events. */
  reward: number | null;
}

/** Many requests at once, each decided or rejected separately. */
export interface Batch {
  /** The rank requests; each is decided or rejected separately. */
  requests: RankRequest[];
}

/** An estimate with its 95% interval. */
export interface Bounds {
  /** The estimate. */
  value: number;
  /** Lower end of the 95% interval. */
  low: number;
  /** Upper end of the 95% interval. */
  high: number;
}

/** The actions that can be named by id alone. */
export interface Catalogue {
  /** The actions with their features, in the order of their registration. */
  actions: Action[];
}

/** Actions to add or change, and ids to retire. */
export interface CatalogueChange {
  /** Actions to add, or to replace with all their features. */
  put?: Action[];
  /** Ids of actions to remove. */
  retire?: string[];
}

/** A control group: users whose decisions a baseline makes. Any change of it begins a new experiment. */
export interface Control {
  /** Share of the users in the control group, or of events without a user; 0 ends the experiment. */
  share?: number;
  /** The rule of the control group: the caller's first action, or any action with equal probability. */
  baseline?: "first" | "uniform";
  /** Name of the experiment, which also decides who is in the group. */
  experiment?: string;
  /** Whether models learn from the group; null: unless the baseline is first, whose actions are not drawn. */
  learn?: boolean | null;
  /** Why the baseline decides for everybody at the moment; null if it does not. */
  hold?: string | null;
  /** Whether the group is drawn for this loop alone; the service sets it. */
  by_loop?: boolean;
}

/** The result of each request of a batch, in its order. */
export interface Decisions {
  /** A rank response or an error for each request, in order. */
  results: (RankResult | ErrorBody)[];
}

/** Setting `defences` of a loop; None turns one off. */
export interface Defences {
  /** Largest norm of an upload, as a multiple of the norm that three in four clients stay below. */
  max_norm?: number | null;
  /** Most uploads of a client in a window, as a multiple of the mean client's. */
  client_share?: number | null;
  /** Largest pull of a client in a window, as a multiple of the mean client's. */
  client_pull?: number | null;
  /** How gradients and deltas of several clients are combined. */
  combine?: "mean" | "median" | "trimmed-mean";
}

/** The shape of every error. */
export interface ErrorBody {
  /** What is wrong. */
  error: ErrorDetail;
}

/** An error. */
export interface ErrorDetail {
  /** The kind of error, for programs; the reference of errors lists all of them. */
  code: string;
  /** What is wrong, for people: the argument, the rule and the value. */
  message: string;
  /** The field, header or object that is wrong; null if there is none. */
  target: string | null;
}

/** Policies to estimate from the logged events, by these estimators. */
export interface Evaluate {
  /** Names of the policies to estimate, such as uniform or likeliest. */
  policies: string[];
  /** Names of the estimators, such as ips, snips or dr. */
  estimators?: string[];
  /** Whether intervals are valid at all looks at the growing log together, else at one look. */
  time_uniform?: boolean;
}

/** Why an action scores as it does. */
export interface Explained {
  /** Id of the action. */
  id: string;
  /** The shared part of the score. */
  shared: number;
  /** The personal part of the score. */
  personal: number;
  /** The pairs of features that add most. */
  strongest: Strongest[];
  /** How unsure the score is, if the model knows it. */
  width?: number | null;
}

/** How many events are new, and how many existed already. */
export interface FeedbackStored {
  /** Events that are new. */
  stored: number;
  /** Events whose id was known. */
  repeated: number;
}

/** What one slot shows; `action_id` is called `action` in JSON. */
export interface FilledSlot {
  /** Id of the slot. */
  id: string;
  /** Id to send the slot's reward to. */
  event_id: string;
  /** The chosen action. */
  action: string;
  /** Its probability, given the slots before. */
  probability: number;
  /** All actions, best score first. */
  ranking: Ranked[];
}

/** How far the mean of an outcome per event may move against the control group. */
export interface Guardrail {
  /** Name of the outcome. */
  outcome: string;
  /** Raise an alarm once the outcome certainly rose by more than this; null if fall is set. */
  rise?: number | null;
  /** Raise an alarm once the outcome certainly fell by more than this; null if rise is set. */
  fall?: number | null;
  /** After the alarm, let the baseline decide for everybody. */
  revert?: boolean;
}

/** A hold that goes on: the baseline decides for everybody. */
export interface HeldPeriod {
  /** When it began, as ISO 8601. */
  since: string;
  /** Why the loop is held. */
  reason: string;
}

/** Treatment against control, from the beginning of the experiment on; what was decided during holds is left out. */
export interface LiftReport {
  /** Name of the experiment. */
  experiment: string;
  /** When it began, as ISO 8601. */
  began: string;
  /** Share of the users in the control group. */
  share: number;
  /** The rule of the control group: first or uniform. */
  baseline: string;
  /** The control group. */
  control: ArmReport;
  /** All other users. */
  treatment: ArmReport;
  /** Treatment − control, per event; null without enough data. */
  absolute: Bounds | null;
  /** The difference as a share of control; null without enough data. */
  relative: Bounds | null;
  /** The result in words. */
  sentence: string;
  /** The data that a result still needs; null if there is a result. */
  missing: string | null;
  /** Whether users were not split as the share requires; then no figure here can be trusted. */
  sample_ratio_is_wrong: boolean;
  /** Share of the variance that users' earlier rewards do not explain. */
  variance_left: number;
  /** Additional users needed to halve the absolute interval; null without a result. */
  more_users: number | null;
  /** The same for each named outcome. */
  outcomes: OutcomeLift[];
  /** Time from which on the log still has events; null if none were removed. */
  events_since?: string | null;
  /** The hold that goes on; null if the policy decides. */
  held?: HeldPeriod | null;
  /** Seconds of earlier holds of this experiment, all together. */
  paused_seconds?: number;
  /** When it ended, as ISO 8601; null if it goes on. Events that were pending then are left out. */
  ended?: string | null;
}

/** A loop to create; missing settings have their defaults. */
export interface NewLoop {
  /** Letters, digits, -, _ and . */
  name: string;
  /** Settings that differ from the defaults. */
  settings?: Settings;
}

/** Treatment against control for a named outcome, by its sum per event. */
export interface OutcomeLift {
  /** Name of the outcome. */
  outcome: string;
  /** Mean per event in the control group; null without events. */
  control: number | null;
  /** Mean per event in the treatment; null without events. */
  treatment: number | null;
  /** Treatment − control; null below 20 users in each arm or 20 events with the outcome. */
  absolute: Bounds | null;
  /** The difference as a share of control; null if unknown. */
  relative: Bounds | null;
}

/** An item and what it earned. */
export interface PopularItem {
  /** Id of the item. */
  id: string;
  /** Mean reward of its events, shrunk to the mean of all items while it has few. */
  score: number;
  /** Events with a reward in the window. */
  events: number;
}

/** A request for a decision. */
export interface RankRequest {
  /** The actions to choose from, in your own order of preference. */
  actions: Action[];
  /** Features of the situation, known before the decision. */
  context?: Record<string, unknown> | null;
  /** Id of the user: selects the personal model. Without it, only the shared model decides. */
  user?: string | null;
  /** Ids of actions that must not be chosen; they get probability 0. */
  exclude?: string[];
  /** Id of this event, generated if missing. A repeat with the same id gets the same decision. */
  event_id?: string | null;
  /** Do not start the wait for a reward until the event is activated. */
  defer?: boolean;
  /** Add explanations of the scores to the response. */
  explain?: boolean;
}

/** The decision; `action_id` is called `action` in JSON. */
export interface RankResult {
  /** Id to send the reward to. */
  event_id: string;
  /** The chosen action. */
  action: string;
  /** Probability that the action was drawn with. */
  probability: number;
  /** All actions, best score first. */
  ranking: Ranked[];
  /** Position in the loop's log up to which the models had learned. */
  model_version: number;
  /** control, treatment or held, if the loop has a control group. */
  arm?: string | null;
  /** With explain: the parts of each action's score. */
  explanations?: Explained[] | null;
}

/** An action with its score and its probability. */
export interface Ranked {
  /** Id of the action. */
  id: string;
  /** Probability of the action; 0 if it was excluded. */
  probability: number;
  /** Expected reward. */
  score: number;
}

/** An example of a device, less what is private: the shared features, the local prediction and the label. */
export interface Residual {
  /** Number that the device gives this example; a repeat with the same number counts once. */
  seq: number;
  /** Version of the shared model that the example was made with. */
  version: number;
  /** The shared features of the situation; private features stay on the device. */
  context: Record<string, unknown> | null;
  /** The chosen action. */
  action: Action;
  /** Prediction of the device's own model. */
  local: number;
  /** The reward. */
  label: number;
  /** Prediction of the shared model; required if the loop's timing is aligned. */
  global?: number | null;
  /** Variance of the local prediction; required by the model residual-kalman. */
  variance?: number | null;
  /** Slopes of the local prediction by part of the action; required by the model residual-kalman, may be empty. */
  slopes?: number[] | null;
}

/** Examples of one device; a repeated sequence number counts once. */
export interface Residuals {
  /** Id of the device. */
  client: string;
  /** The examples, oldest first. */
  residuals: Residual[];
}

/** Positions of the residuals in the log, and the published version. */
export interface ResidualsStored {
  /** Position of each residual in the log; a repeat has that of the first. */
  positions: number[];
  /** Version of the published model, which includes uploads up to this position. */
  version: number;
}

/** The reward of an event, or named outcomes where the loop's reward is a formula over them. */
export interface Reward {
  /** The reward, within the loop's reward_range. */
  value?: number | null;
  /** Rewards of an event with the same id count once. */
  id?: string | null;
  /** Named outcomes, if the loop has a formula over them. */
  outcomes?: Record<string, unknown> | null;
}

/** How a loop learns; with a round who uploads after it, or with a client too whether it does. */
export interface Round {
  /** Setting model of the loop. */
  model: string;
  /** Setting global_learner: the learner of the shared model. */
  global_learner: string;
  /** Setting hyperparameters of that learner, with defaults. */
  hyperparameters: Record<string, unknown>;
  /** Setting bits: the shared model has 2^bits weights. */
  bits: number;
  /** Setting timing: on-arrival or aligned. */
  timing: string;
  /** Setting crosses: whether pairs of features have weights. */
  crosses: boolean;
  /** Setting personal: whether devices have a model of their own. */
  personal: boolean;
  /** Setting policy: how scores become probabilities. */
  policy: string;
  /** Setting epsilon of epsilon-greedy. */
  epsilon: number;
  /** Setting floor of optimistic-squarecb. */
  floor: number;
  /** γ of the SquareCB policies, with the default if the setting is null. */
  gamma: number;
  /** Setting learning_rate of the models. */
  learning_rate: number;
  /** Setting largest_number: the bound of numbers in features. */
  largest_number: number;
  /** Prefix of an event's id in the draw of its number. */
  draw_prefix: string;
  /** Setting reward_range: smallest and largest reward. */
  reward_range: number[];
  /** Position of the settings in the loop's log. */
  settings_version: number;
  /** Version of the published shared model. */
  version: number;
  /** Uploads that the shared model has learned. */
  n_learned: number;
  /** Number of the client in the loop, from 0; null without a client or a number. */
  number: number | null;
  /** The round of the request; null without one. */
  t: number | null;
  /** Numbers of the devices that upload after the round; null with a client, without a round, or for residuals. */
  senders: number[] | null;
  /** Whether the client uploads after the round; true for residuals, else null without client and round. */
  takes_part: boolean | null;
}

/** The settings of a loop; a record of them in the log applies from its position on. */
export interface Settings {
  /** The model; fixed when the loop is created. */
  model?: "adagrad" | "residual-kalman";
  /** How scores become probabilities. null: optimistic-squarecb; for adagrad epsilon-greedy. */
  policy?: "epsilon-greedy" | "greedy" | "optimistic-squarecb" | "squarecb" | null;
  /** Both SquareCB policies: γ = gamma·√(rewards learned); larger explores less. null: 300 or 10. */
  gamma?: number | null;
  /** optimistic-squarecb: share of the probability that is spread evenly, for off-policy evaluation. */
  floor?: number;
  /** epsilon-greedy: probability of a uniform draw. */
  epsilon?: number;
  /** adagrad: learning rate of the shared and the personal models. */
  learning_rate?: number;
  /** adagrad: numbers in features beyond it are refused, as its steps would diverge; 30 in new loops. */
  largest_number?: number;
  /** Smallest and largest reward; others are rejected. */
  reward_range?: unknown[];
  /** Seconds that an event waits for its reward; make it short if only clicks are sent. */
  wait_time?: number;
  /** Learned if no reward arrives in time; null: nothing is learned. */
  default_reward?: number | null;
  /** When the wait time of a deferred event begins: when it is activated, or with its decision. */
  wait_from?: "activation" | "rank";
  /** The first reward counts, or the sum or the average of all within the wait time. */
  aggregation?: "average" | "earliest" | "sum";
  /** Named outcomes, each with the seconds from the decision within which it counts. */
  outcomes?: Record<string, unknown>;
  /** The reward as a formula over outcomes. */
  formula?: string | null;
  /** How far outcomes may rise or fall against the control group. */
  guardrails?: Guardrail[];
  /** The control group. */
  control?: Control;
  /** Always return the first action and learn from it; the status shows how often the policy agreed. */
  apprentice?: boolean;
  /** A weight for every pair of a context and an action feature; false for adagrad only. */
  crosses?: boolean;
  /** One model per user beside the shared one. */
  personal?: boolean;
  /** Minimum seconds between two publications of the models; large ones are published less often, up to every 0.5 s. */
  update_interval?: number;
  /** adagrad: learner of the shared model; fixed. */
  global_learner?: "dynamic-fedavg" | "fedogd" | "fedomd" | "fedres-adagrad" | "fedres-sgd" | "fedsea" | "ofedavg" | "ofediq";
  /** adagrad: of that learner; fixed. */
  hyperparameters?: Record<string, unknown>;
  /** adagrad: 2^bits shared weights; fixed. */
  bits?: number;
  /** Which model the error of a device's residual is computed with: the newest, or the one that it was made with. */
  timing?: "aligned" | "on-arrival";
  /** Bounds on what one device can do to the shared model; null turns one off. */
  defences?: Defences;
  /** Seconds after which events are removed from the log, at least wait_time and an hour; null keeps them. */
  retention?: number | null;
  /** Strings by name, for other tools. */
  annotations?: Record<string, unknown>;
  /** Whether an event's draw depends on the loop's name and the event's id, or on the id alone. The service sets it: true for new loops, false for loops of versions without this setting; fixed. */
  draws_by_loop?: boolean;
}

/** An item and how similar it is. */
export interface SimilarItem {
  /** Id of the item. */
  id: string;
  /** Similarity, from 0 to 1. */
  score: number;
}

/** A place for one action, its features, what it must not show, and what it would show without the service. */
export interface Slot {
  /** Id of the slot; a feature of its context. */
  id: string;
  /** Features of the slot, added to its context. */
  features?: Record<string, unknown> | null;
  /** Ids of actions that this slot must not show. */
  exclude?: string[];
  /** The action that the slot would show without the service. */
  baseline?: string | null;
}

/** A request for a decision on each slot of a page, no action twice. */
export interface SlotsRequest {
  /** The actions to choose from; none is shown twice. */
  actions: Action[];
  /** The slots, in the order in which they are filled. */
  slots: Slot[];
  /** Features of the situation, known before the decision. */
  context?: Record<string, unknown> | null;
  /** Id of the user: selects the personal model. Without it, only the shared model decides. */
  user?: string | null;
  /** Id of this call, generated if missing; each slot is an event with this id, a ~ and its number. */
  event_id?: string | null;
  /** Do not start the wait for a reward until the event is activated. */
  defer?: boolean;
}

/** The filled slots, in the order of the request. */
export interface SlotsResult {
  /** Id of the call. */
  event_id: string;
  /** Position in the loop's log up to which the models had learned. */
  model_version: number;
  /** The filled slots, in the order of the request. */
  slots: FilledSlot[];
}

/** What a pair of features adds to a score; an empty name is none, and two of them are the constant. */
export interface Strongest {
  /** Feature of the context; empty for none. */
  context: string;
  /** Feature of the action; empty for none. */
  action: string;
  /** The part of the pair in the shared score. */
  shared: number;
  /** The part of the pair in the personal score. */
  personal: number;
}

/** The newest rewards that came too late or have no event, oldest first. */
export interface Unmatched {
  /** The rewards, oldest first. */
  rewards: UnmatchedReward[];
}

/** A reward that does not count, or not yet. */
export interface UnmatchedReward {
  /** Id of the event that the reward names. */
  event_id: string;
  /** When the reward was stored, as ISO 8601. */
  time: string;
  /** The reward. */
  value: number;
  /** Id of the reward; null if it has none. */
  id: string | null;
  /** Why it does not count: late, unmatched, too many or early; an early one still waits for its event. */
  status: string;
}
