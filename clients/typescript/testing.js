// @ts-self-types="./testing.d.ts"
// A service for the tests of your own program: it decides as you determine, and records rewards.

import { Client } from "./fedres.js";
import { checkOptions, identifier } from "./inputs.js";

const OPTIONS = ["choose", "catalogue"];

export class FakeService {
  #clients = [];
  #rewards = [];

  constructor(options = {}) {
    checkOptions("FakeService", options, OPTIONS);
    this.choose = options.choose ?? null;
    this.catalogue = options.catalogue ?? {};
    this.isAway = false;
    this.decisions = [];
    this.fetch = (url, request) => this.#answer(url, request);
  }

  client(options = {}) {
    const client = new Client("http://fake.invalid", { ...options, fetch: this.fetch });
    this.#clients.push(client);
    return client;
  }

  async rewards() {
    if (!this.isAway) await Promise.all(this.#clients.map((client) => client.flush()));
    return [...this.#rewards];
  }

  async #answer(url, { method, body, signal }) {
    signal?.throwIfAborted();
    if (this.isAway) throw new Error("the fake service is away");
    const [, loop, path] = /\/v1\/loops\/([^/]+)(\/.*)$/.exec(url) ?? [null, "", url];
    const sent = body === undefined ? {} : JSON.parse(body);
    try {
      return Response.json(this.#reply(decodeURIComponent(loop), `${method} ${path}`, sent));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      const { status, code, message } = error;
      return Response.json({ error: { code, message, target: null } }, { status });
    }
  }

  #reply(loop, route, sent) {
    if (route === "POST /rank") return this.#decide(loop, sent);
    if (route === "POST /rank/batch") {
      return { results: sent.requests.map((request) => this.#decide(loop, request)) };
    }
    if (route === "POST /rank/slots") return this.#fill(loop, sent);
    if (route === "POST /recommend") return this.#recommend(loop, sent);
    if (route === "POST /events/rewards") return this.#store(loop, sent.rewards);
    const message = `the fake service has decisions and rewards only, not ${route}`;
    throw new Refusal(501, "not_in_fake", message);
  }

  #decide(loop, request, more = {}) {
    const { event_id: eventId, user = null, context = {}, exclude = [] } = request;
    const actions = request.actions.filter(({ id }) => !exclude.includes(id));
    const action = this.#chosen({ user, context, actions: actions.map(({ id }) => id), ...more });
    this.decisions.push({ loop, eventId, user, context, action, ...more });
    const ranking = actions.map(({ id }) => ({ id, score: 0, probability: Number(id === action) }));
    return { event_id: eventId, action, probability: 1, ranking, model_version: 1 };
  }

  #chosen(request) {
    const { choose } = this;
    const choice = typeof choose === "function" ? choose(request) : choose;
    if (choice === null || choice === undefined) return request.actions[0];
    const action = identifier("choose", choice);
    if (request.actions.includes(action)) return action;
    const rule = `choose must be one of the actions ${request.actions.join(", ")}`;
    throw new Refusal(422, "not_offered", `${rule}, got ${action}`);
  }

  #fill(loop, { event_id: page, slots, ...request }) {
    const taken = [];
    const filled = slots.map(({ id: slot, exclude = [] }) => {
      const place = { ...request, event_id: `${page}~${slot}`, exclude: [...exclude, ...taken] };
      const { model_version: _, ...decision } = this.#decide(loop, place, { slot });
      taken.push(decision.action);
      return { id: slot, ...decision };
    });
    return { event_id: page, model_version: 1, slots: filled };
  }

  #recommend(loop, { event_id: page, n, user = null, context = {}, exclude = [] }) {
    const left = Object.keys(this.catalogue).filter((id) => !exclude.includes(id));
    const items = [];
    while (items.length < n && left.length > 0) {
      const id = this.#chosen({ user, context, actions: left });
      const eventId = `${page}~${items.length + 1}`;
      left.splice(left.indexOf(id), 1);
      this.decisions.push({ loop, eventId, user, context, action: id });
      items.push({ id, event_id: eventId, score: 0, probability: 1 });
    }
    return { event_id: page, model_version: 1, items };
  }

  #store(loop, rewards) {
    for (const { event_id: eventId, activate = false, ...reward } of rewards) {
      if (activate) continue;
      if (!this.#rewards.some(({ id }) => id === reward.id)) {
        this.#rewards.push({ loop, eventId, ...reward });
      }
    }
    return { results: rewards.map(({ event_id: id }) => ({ event_id: id })) };
  }
}

class Refusal extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}
