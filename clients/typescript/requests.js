// Requests for decisions: what callers pass, checked, and what is sent of it.

import { FALLBACK_PREFIX, LONGEST_ID, newEventId } from "./ids.js";
import {
  actionList, checkOptions, features, identifier, identifiers, number, userId,
} from "./inputs.js";

const REQUEST = ["actions", "context", "user", "exclude", "eventId", "defer", "explain"];
const RECOMMEND = [
  "n", "user", "context", "filter", "exclude", "excludeSeen", "eventId", "defer", "fallback",
];
const FEEDBACK = ["action", "reward", "user", "context", "eventId", "time"];
export const CALL = ["timeout", "signal"]; // options of every call

const isMissing = (value) => value === undefined || value === null;

/**
 * Return a request, checked and with an event id: what is sent of it, and what the caller passed.
 */
export function checked(what, request, more = []) {
  checkOptions(what, request, [...REQUEST, ...more]);
  const actions = actionList(request.actions);
  const isGenerator = typeof request.actions.next === "function"; // which is read once
  const passed = isGenerator ? actions.map(({ callerId }) => callerId) : request.actions;
  const valid = {
    actions,
    exclude: identifiers("exclude", request.exclude ?? []),
    eventId: newEvent(request.eventId),
    user: userId(request.user),
    context: features("context", request.context ?? {}),
    defer: request.defer ?? false,
    explain: request.explain ?? false,
  };
  valid.request = { ...request, actions: passed, eventId: valid.eventId };
  allowed(valid);
  return valid;
}

/** Return what is sent of a request: fields at their defaults are left out. */
export function bodyOf({ actions, context, user, exclude, eventId, defer, explain }) {
  const body = { event_id: eventId };
  if (user !== null) body.user = user;
  if (Object.keys(context).length > 0) body.context = context;
  body.actions = actions.map(({ id, features: own }) => {
    return own === null ? { id } : { id, features: own };
  });
  if (exclude.length > 0) body.exclude = exclude;
  if (defer) body.defer = defer;
  if (explain) body.explain = explain;
  return body;
}

/** Return a slot as it is sent, with the caller's id beside. */
export function place(slot) {
  const { id, ...rest } = slot !== null && typeof slot === "object" ? slot : { id: slot };
  checkOptions("a slot", rest, ["features", "exclude", "baseline"]);
  const sent = {
    id: identifier("slots", id),
    features: features(`slots[${String(id)}]`, rest.features ?? {}),
    exclude: identifiers("exclude", rest.exclude ?? []),
  };
  if (!isMissing(rest.baseline)) sent.baseline = identifier("baseline", rest.baseline);
  return { ...sent, callerId: id };
}

/** Return what is sent for a page of items, and the ids of the fallback. */
export function recommendation(request) {
  checkOptions("recommend", request, [...RECOMMEND, ...CALL]);
  const { n = 10 } = request;
  const sent = {
    event_id: newEvent(request.eventId),
    n,
    context: features("context", request.context ?? {}),
    filter: request.filter ?? {},
    exclude: identifiers("exclude", request.exclude ?? []),
    exclude_seen: request.excludeSeen ?? false,
    defer: request.defer ?? false,
  };
  const user = userId(request.user);
  if (user !== null) sent.user = user;
  return { sent, fallback: identifiers("fallback", request.fallback ?? []).slice(0, n) };
}

/** Return an event of feedback as it is sent: with an id, so that a repeat stores nothing twice. */
export function feedbackEvent(event, k) {
  checkOptions(`events[${k}]`, event, FEEDBACK);
  const { action, time } = event;
  const isObject = typeof action === "object" && action !== null;
  const user = userId(event.user);
  const sent = {
    action: identifier("action", isObject ? action.id : action),
    reward: number("reward", event.reward),
    event_id: newEvent(event.eventId),
    context: features("context", event.context ?? {}),
  };
  if (isObject) {
    sent.action = { id: sent.action, features: features("action", action.features ?? {}) };
  }
  if (user !== null) sent.user = user;
  if (!isMissing(time)) sent.time = time instanceof Date ? time / 1000 : time;
  return sent;
}

/** Return the id of an event to be made. */
function newEvent(callerId) {
  if (isMissing(callerId)) return newEventId();
  const eventId = identifier("eventId", callerId);
  if (eventId.startsWith(FALLBACK_PREFIX)) {
    const rule = `eventId must not begin with ${FALLBACK_PREFIX}`;
    throw new RangeError(`${rule}, as those of fallbacks do`);
  }
  return eventId;
}

/** Return the actions that are not excluded, at least one. */
export function allowed({ actions, exclude }) {
  const left = exclude.length === 0 ? actions : actions.filter(({ id }) => !exclude.includes(id));
  if (left.length === 0) {
    const rule = "exclude must leave at least one action";
    throw new RangeError(`${rule}, got all ${actions.length} of them`);
  }
  return left;
}

/** Return a decision with the ids of actions that the caller passed. */
export function withCallerIds(actions, decision) {
  if (actions.every(({ callerId }) => typeof callerId === "string")) return decision;
  const callerIds = new Map(actions.map(({ id, callerId }) => [id, callerId]));
  const back = (places) =>
    places?.map((each) => ({ ...each, id: callerIds.get(each.id) ?? each.id }));
  const { action, ranking, explanations } = decision;
  return {
    ...decision,
    action: callerIds.get(action) ?? action,
    ranking: back(ranking),
    explanations: back(explanations),
  };
}

/**
 * Return a number of milliseconds that a caller sets: a caller's mistake must not look like a
 * service
 * that does not answer.
 */
export function milliseconds(name, value) {
  if (typeof value !== "number") {
    const got = JSON.stringify(value) ?? String(value);
    throw new TypeError(`${name} must be a number of milliseconds, got ${got}`);
  }
  if (!(value > 0)) throw new RangeError(`${name} must be positive, got ${value}`);
  return value;
}

/** Return an id as text; not empty, and not too long. */
export function named(name, value) {
  const text = identifier(name, value);
  if (text === "" || [...text].length > LONGEST_ID) {
    throw new RangeError(`${name} must have 1 to ${LONGEST_ID} characters`);
  }
  return text;
}

/** Return an id as a part of a path. */
export function segment(name, value) {
  const text = identifier(name, value);
  if (text === "." || text === "..") {
    throw new RangeError(`${name} must not be "${text}": fetch removes such a part of a path`);
  }
  return encodeURIComponent(text);
}
