// The dashboard: which page is shown, when it is renewed, and who is signed in.
import { redrawCharts } from "./charts.js";
import { eventPage, newestEventsPage, userPage } from "./events.js";
import { forgetLoop, loopPage, loopParts } from "./loop.js";
import { cataloguePage, historyPage, settingsPage } from "./manage.js";
import { overviewPage } from "./overview.js";
import { $, ROOT, ago, count, el, figures, json, leave, link, note, number, say, seconds, section, storeKey, storedKey, table } from "./parts.js";

const LOADING = "Loading…";
const FIRST_POLL = 5000; // milliseconds; while nothing changes each poll comes twice as late as the one before
const LAST_POLL = 40000;
const FIRST_RETRY = 2000;
const LAST_RETRY = 30000;
let shown = 0; // counts pages, so that late replies of an older one are dropped
let timer = 0;
let pause = FIRST_POLL;
let failures = 0; // in a row
let unchanged = ""; // what the page was made of
let readAt = 0;
let wrong = 0; // what the first page counted last

const PAGES = [
  [/^$/, overviewPage, true],
  [/^operations$/, operations, true],
  [/^loops\/([^/]+)$/, loopPage, true],
  [/^loops\/([^/]+)\/settings$/, settingsPage, false],
  [/^loops\/([^/]+)\/actions$/, cataloguePage, false],
  [/^loops\/([^/]+)\/events$/, newestEventsPage, false],
  [/^loops\/([^/]+)\/history$/, historyPage, false],
  [/^loops\/([^/]+)\/events\/([^/]+)$/, eventPage, false],
  [/^loops\/([^/]+)\/users\/([^/]+)$/, userPage, false],
];

// Operations

const used = (name, n, most) => [name, n === null ? "–" : count(n), count(most), n === null ? "" : el("meter", { min: 0, max: 1, high: 0.8, value: n / most, "aria-label": `${name}: used share` })];

async function operations() {
  const s = await json("v1/status");
  const loops = Object.values(s.loops);
  const most = name => loops.reduce((largest, loop) => Math.max(largest, loop[name] ?? 0), 0);
  const usage = { loops: loops.length, users: most("users"), pending: most("waiting_events"), actions: most("catalogue_actions") };
  const restarts = s.processes.reduce((sum, process) => sum + process.restarts, 0);
  const behind = s.position - s.learned_position;
  const free = s.log.disk_free_bytes === null ? null : s.log.disk_free_bytes / s.log.disk_bytes;
  const problems = [s.trouble, behind > 1000 && `The learner is ${count(behind)} records behind.`,
    free !== null && free < 0.1 && `The disk is ${Math.round(100 - 100 * free)}% full.`, restarts > 0 && `${count(restarts)} restarts of processes.`].filter(Boolean);
  const gigabytes = bytes => bytes === null ? "–" : `${number(bytes / 1e9)} GB`;
  const quotas = Object.entries(s.quotas).map(([name, n]) => used(name, usage[name] ?? null, n)).sort((a, b) => (usage[b[0]] ?? 0) / s.quotas[b[0]] - (usage[a[0]] ?? 0) / s.quotas[a[0]]);
  const parts = [el("h1", {}, "Operations"),
    problems.length ? el("section", { class: "alarm", role: failures ? null : "alert" }, el("strong", {}, "To look at: "), problems.join(" ")) : el("p", { class: "well" }, "All well."),
    section("Log and learner", figures([["version", s.version], ["store", s.store], ["records", count(s.position)], ["learned", count(s.learned_position)],
      ["behind", count(behind)], ["last sign of life of the learner", number(s.staleness_seconds, 2) + " s ago"],
      ["size of the log", gigabytes(s.log.bytes)], ["bytes an event", count(s.log.bytes_per_event)], ["free disk", gigabytes(s.log.disk_free_bytes)],
      ["models in memory", `${number(s.published_bytes / 2 ** 20)} MiB`], ["rebuilt from the log", count(s.rebuilt)]])),
    section("Processes", table(["role", "pid", "up", "restarts"], s.processes.map(p =>
      [p.role, p.pid, seconds(p.uptime_seconds), count(p.restarts)]), [1, 2, 3], "Processes")),
    section("Quotas", table(["quota", "used", "at most", "share"], quotas, [1, 2], "Quotas"), note("Used: of quotas of a loop, by the loop that uses most.")),
    el("p", {}, el("a", { href: ROOT + "metrics" }, "Metrics for Prometheus"))];
  return { parts, wrong: s.trouble ? 1 : 0, unchanged: "" };
}

// Which page

function parsed(hash) {
  try {
    const [path, words = ""] = decodeURI(hash).startsWith("#/") ? hash.slice(2).split("?") : [""];
    return { path, query: Object.fromEntries(new URLSearchParams(words)) };
  } catch { return { path: "?", query: {} }; }
}

async function show(isNew, moved = false) {
  const { path, query } = parsed(location.hash);
  const turn = ++shown;
  clearTimeout(timer);
  leave();
  const [match, page, isLive] = PAGES.map(([form, ...rest]) => [path.match(form), ...rest]).find(([found]) => found) ?? [];
  if (isNew) begin();
  try {
    if (!page) throw Object.assign(Error("There is no such page."), { status: 404 });
    const preview = parts => isNew && turn == shown && replace({ parts, wrong }, true);
    const made = await page(...match.slice(1).map(decodeURIComponent), ...(path ? [] : [query]), preview);
    if (turn == shown) succeed(Array.isArray(made) ? { parts: made, wrong } : made, isNew, moved);
  } catch (error) {
    if (turn != shown || error.name == "AbortError") return;
    fail(error, path, !$("main").querySelector("h1"));
    if (isLive || error.isOutage) poll(turn, Math.min(LAST_RETRY, FIRST_RETRY * 2 ** (failures - 1)));
    return;
  }
  if (isLive) poll(turn, pause);
}

function begin() {
  forgetLoop();
  $("main").replaceChildren();
  say(LOADING);
  pause = FIRST_POLL;
  unchanged = "";
  for (const one of document.querySelectorAll("nav a")) {
    const isHere = one.hash && one.hash == (location.hash.split("?")[0] || "#/");
    if (isHere) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
}

function succeed(made, isNew, moved) {
  const hadFailed = failures > 0;
  failures = 0;
  readAt = Date.now();
  $("main").classList.remove("stale");
  wrong = made.wrong ?? 0;
  const isSame = !isNew && made.unchanged && made.unchanged == unchanged;
  pause = isSame ? Math.min(LAST_POLL, 2 * pause) : FIRST_POLL;
  unchanged = made.unchanged ?? "";
  if (!isSame || hadFailed) replace(made, isNew);
  const status = $("status");
  if (status.textContent == LOADING || hadFailed || (isNew && status.classList.contains("error"))) say(""); // not what an action has just reported
  if (moved) $("main").focus();
}

// A page that could not be read becomes a card with a way out; one that could not be renewed stays,
// dimmed, with its age.
function fail(error, path, isEmpty) {
  failures += 1;
  const retry = el("button", { onclick: () => show(isEmpty) }, "Retry");
  if (!isEmpty) {
    $("main").classList.add("stale");
    say(`${error.message} These figures are from ${ago(readAt)}. `, true, retry);
    return;
  }
  if (error.status == 401) return replace({ parts: signIn(error), wrong }, true), say(error.message + " ", true);
  const isMissing = error.status == 404;
  const title = isMissing ? "Not found" : error.status == 403 ? "Not allowed" : "Not available";
  replace({ parts: [el("h1", {}, title), section(null, el("p", {}, error.message), el("p", {}, el("a", { href: "#/" }, "Back to all loops"), " ", retry), el("div", { id: "own-loop" }))], wrong }, true);
  say(error.message + " ", true);
  if (error.status == 403) offerOwnLoop(path);
}

function poll(turn, milliseconds) {
  timer = setTimeout(() => turn == shown && refresh(turn), milliseconds);
}

// Not while somebody types, marks text, has a dialog open or waits for a reply, and not in a tab that
// nobody sees.
function refresh(turn) {
  const typing = ["INPUT", "TEXTAREA", "SELECT"].includes(document.activeElement?.tagName);
  const busy = document.hidden || document.querySelector("dialog, main button[disabled]") || typing || String(getSelection());
  if (busy) poll(turn, 1000);
  else show(false);
}

const FOCUSABLE = "a, button, input, summary, [tabindex]";

function replace({ parts, wrong: n }, isNew) { // a renewed page keeps what is open, the focus, and how far tables are moved
  const main = $("main");
  const all = what => [...main.querySelectorAll(what)];
  const open = all("details").map(one => one.open);
  const moved = all(".scroll").map(one => one.scrollLeft);
  const at = all(FOCUSABLE).indexOf(document.activeElement);
  main.replaceChildren(...parts.flat(9).filter(Boolean));
  const title = main.querySelector("h1")?.textContent;
  document.title = `${n ? `(${n}) ` : ""}${title ? `${title} – ` : ""}fedres`;
  main.setAttribute("aria-label", title ?? "");
  if (isNew) return;
  all("details").forEach((one, k) => one.open = open[k] ?? one.open);
  all(".scroll").forEach((one, k) => one.scrollLeft = moved[k] ?? 0);
  if (at >= 0) all(FOCUSABLE)[at]?.focus({ preventScroll: true });
}

// Who is signed in

function signIn(error) {
  const field = el("input", { id: "key", type: "password", autocomplete: "off", required: true, size: 40, "aria-invalid": storedKey() ? "true" : null });
  const remember = el("input", { id: "remember", type: "checkbox" });
  const form = el("form", { onsubmit: event => {
    event.preventDefault();
    storeKey(field.value.trim(), remember.checked);
    begun();
  } }, el("p", {}, el("label", { for: "key" }, "Key "), field), el("p", {}, remember, " ", el("label", { for: "remember" }, "Remember it on this computer")),
  el("p", {}, el("button", {}, "Sign in")));
  return [el("h1", {}, "Sign in"), section(null, el("p", {}, storedKey() ? `This key is not accepted: ${error.message}.` : "This service needs a key."),
    form, note("Keys are made with `fedres keys add read` or `fedres keys add admin`."))];
}

async function showRole() {
  const holder = $("role");
  holder.replaceChildren();
  if (!storedKey()) return null;
  const key = await json("v1/key").catch(() => null);
  if (!key) return null;
  const signOut = el("button", { onclick: () => { storeKey(""); begun(); } }, "Sign out");
  holder.replaceChildren(`${key.role}${key.loop ? `, loop ${key.loop}` : ""} `, signOut);
  document.body.classList.toggle("reader", key.role != "admin"); // pages that need an admin key are not offered
  return key;
}

async function begun() { // with another key
  leave();
  const key = await showRole();
  const isStart = !parsed(location.hash).path;
  if (key?.loop && isStart) location.hash = "#/" + ["loops", key.loop].map(encodeURIComponent).join("/");
  else show(true);
}

async function offerOwnLoop(path) {
  const key = await json("v1/key").catch(() => null);
  if (key?.loop && path != `loops/${encodeURIComponent(key.loop)}`) $("own-loop")?.append(el("p", {}, "This key is for ", link(`loop ${key.loop}`, "loops", key.loop), "."));
}

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(redrawCharts, 100);
});

if ($("status")) {
  addEventListener("hashchange", event => show(true, event.isTrusted));
  document.querySelector(".skip").addEventListener("click", event => { event.preventDefault(); $("main").focus(); });
  begun();
} else if ($("report")) { // a file of `fedres report`
  const { loop, report } = JSON.parse($("report").textContent);
  document.title = `Loop ${loop} – fedres`;
  $("main").append(...loopParts(loop, null, report).flat(9).filter(Boolean));
}
