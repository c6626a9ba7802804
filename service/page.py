"""The page at ``/``: where things are, and the reward of a loop as it goes, from the service's own routes.

``/v1/events`` is read once for what was before, ``/v1/status`` every second from then on. A loop NAME is drawn together
with NAME-uniform and NAME-best where there are such loops, as ``fedres serve --demo`` makes them.
"""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>fedres</title>
<style>
  :root { color-scheme: light dark; --policy: #2563eb; --uniform: #888; --best: #16a34a; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
  svg { width: 100%; height: auto; display: block; }
  svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
  pre { background: #8882; padding: 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
  .key { display: inline-block; width: 1.5rem; height: 3px; vertical-align: middle; margin: 0 .3rem 0 1rem; }
</style>
<h1>fedres</h1>
<p><a href="/docs">API</a> · <a href="/openapi.json">OpenAPI document</a> · <a href="/metrics">metrics</a></p>
<form>
  <label>Loop <select id="loop"></select></label>
  <label>Key, if the service has any: <input id="key" type="password" autocomplete="off"></label>
</form>
<p id="legend"></p>
<svg id="curve" viewBox="0 0 720 320" role="img" aria-label="mean reward by decisions"></svg>
<p id="said">…</p>
<p id="lift"></p>
<div id="first" hidden>
<p>Nothing to draw yet. A first decision and its reward:</p>
<pre id="example"></pre>
</div>
<script>
  const LAST = 200, MOST = 20000, seen = {}, lifts = {}, $ = id => document.getElementById(id);
  const ROOT = location.pathname.replace(/[/]$/, "");  // where a proxy offers the service
  document.forms[0].onsubmit = () => false;
  $("example").textContent =
    `curl -s ${location.origin}${ROOT}/v1/rank -H 'Content-Type: application/json' \\\\
  -d '{"event_id": "first", "actions": [{"id": "tea", "features": {}}, {"id": "juice", "features": {}}]}'` +
    `\\n\\ncurl ${location.origin}${ROOT}/v1/events/first/reward -H 'Content-Type: application/json' -d '{"value": 1}'`;

  async function ask(path) {
    const headers = $("key").value ? { Authorization: "Bearer " + $("key").value } : {};
    const answer = await fetch(ROOT + path, { headers });
    if (!answer.ok) throw Error((await answer.json()).error.message);
    return answer;
  }

  // What a loop's newest events earned, as points [events, sum of rewards] that end at the sums of its status.
  async function before(name, gauges, position) {
    const path = `/v1/loops/${encodeURIComponent(name)}/events?after=${Math.max(0, position - MOST)}`;
    const lines = (await (await ask(path)).text()).split("\\n").filter(Boolean).map(JSON.parse);
    const rewards = lines.filter(line => line.arm != "control" && line.reward !== null).map(line => line.reward);
    let n = gauges.learned_events - rewards.length, sum = gauges.reward_sum - rewards.reduce((a, b) => a + b, 0);
    if (n < 0) n = sum = 0;
    return [[n, sum], ...rewards.map(reward => [++n, sum += reward])];
  }

  // Means over the last LAST events, at most 300 of them.
  function means(points) {
    const step = Math.max(1, Math.floor(points.length / 300)), out = [];
    let from = 0;
    points.forEach(([n, sum], k) => {
      while (points[from + 1] && points[from + 1][0] <= n - LAST) from++;
      const [n0, sum0] = points[from];
      if (n - n0 >= 10 && (k % step == 0 || k == points.length - 1)) out.push([n, (sum - sum0) / (n - n0)]);
    });
    return out;
  }

  function draw(lines) {
    const all = lines.flatMap(line => line.points);
    const [xs, ys] = [all.map(p => p[0]), all.map(p => p[1])];
    const [left, right] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1)];
    let [low, high] = [Math.min(0, ...ys), Math.max(...ys, 0.01)];
    if (high > 0.5 && high <= 1) high = 1;
    const x = v => 45 + 665 * (v - left) / (right - left), y = v => 290 - 275 * (v - low) / (high - low);
    const grid = [0, 1, 2, 3, 4].map(k => low + (high - low) * k / 4).map(v =>
      `<line x1="45" x2="710" y1="${y(v)}" y2="${y(v)}" stroke="#8884"/>` +
      `<text x="38" y="${y(v) + 4}" text-anchor="end">${v.toFixed(2)}</text>`);
    const ticks = [0, 1, 2].map(k => left + (right - left) * k / 2).map((v, k) =>
      `<text x="${x(v)}" y="310" text-anchor="${["start", "middle", "end"][k]}">` +
      `${Math.round(v).toLocaleString("en")}${k == 1 ? " decisions with a reward" : ""}</text>`);
    const curves = lines.filter(line => line.points.length).map(line =>
      `<polyline fill="none" stroke="var(--${line.colour})" stroke-width="2"` +
      `${line.dashed ? ' stroke-dasharray="6 4"' : ""}` +
      ` points="${line.points.map(p => x(p[0]).toFixed(1) + "," + y(p[1]).toFixed(1)).join(" ")}"/>`);
    $("curve").innerHTML = grid.join("") + ticks.join("") + curves.join("");
    $("legend").innerHTML = lines.map(line =>
      `<span class="key" style="background: var(--${line.colour})"></span>` +
      `${line.label} ${line.value.toFixed(2)}`).join("");
  }

  function show(loops, name) {
    const gauges = loops[name], policy = means(seen[name]);
    const nothing = policy.length == 0, pending = gauges.waiting_events;
    const provisional = pending > (gauges.learned_events + pending) / 20;
    $("first").hidden = gauges.learned_events > 0;
    $("curve").style.display = $("legend").style.display = nothing ? "none" : "";
    $("said").textContent = `Decisions: ${gauges.ranks.toLocaleString("en")}, of these waiting for their reward: ` +
      `${pending.toLocaleString("en")}. Model version: ${gauges.model_version.toLocaleString("en")}.` +
      (provisional ? ` The figures are provisional: events count once they are rewarded or their wait time is over. ` +
        `If no reward follows, the mean of all is ${(gauges.provisional_reward ?? 0).toFixed(2)}.` : "");
    if (nothing) return;
    const span = [policy[0][0], policy.at(-1)[0]];
    const flat = (label, colour, value) =>
      ({ label, colour, value, dashed: true, points: span.map(n => [n, value]) });
    const label = `policy, last ${LAST}${provisional ? " (provisional)" : ""}`;
    const lines = [{ label, colour: "policy", value: policy.at(-1)[1], points: policy }];
    const [uniform, best] = [loops[name + "-uniform"], loops[name + "-best"]];
    if (uniform && uniform.learned_events) lines.push(flat("uniform", "uniform", uniform.policy_reward));
    else if (gauges.baseline_reward !== null)
      lines.push(flat("first action, estimated", "uniform", gauges.baseline_reward));
    if (best && best.learned_events) lines.push(flat("best possible", "best", best.policy_reward));
    draw(lines);
  }

  function choose(names) {
    const shown = names.filter(name => !/-(uniform|best)$/.test(name) || !names.includes(name.replace(/-[a-z]+$/, "")));
    const select = $("loop");
    if ([...select.options].map(option => option.value).join() != shown.join()) {
      const old = select.value || (shown.includes("demo") ? "demo" : "default");
      select.replaceChildren(...shown.map(name => new Option(name)));
      select.value = shown.includes(old) ? old : shown[0];
    }
    return select.value;
  }

  // What the control group shows, asked twice a minute: the answer takes a look at the whole log.
  async function lift(name, gauges) {
    if (!gauges.control_events) return "";
    if (!lifts[name] || lifts[name].until < Date.now()) {
      const answer = await ask(`/v1/loops/${encodeURIComponent(name)}/lift`).catch(() => null);
      lifts[name] = { until: Date.now() + 30000, text: answer ? (await answer.json()).sentence : "" };
    }
    return lifts[name].text;
  }

  async function look() {
    try {
      const status = await (await ask("/v1/status")).json(), name = choose(Object.keys(status.loops));
      const { learned_events: n, reward_sum: sum } = status.loops[name];
      if (!seen[name] || n < seen[name].at(-1)[0]) seen[name] = await before(name, status.loops[name], status.position);
      else if (n > seen[name].at(-1)[0]) seen[name].push([n, sum]);
      show(status.loops, name);
      $("lift").textContent = await lift(name, status.loops[name]);
    } catch (error) {
      $("said").textContent = error.message;
    }
    setTimeout(look, 1000);
  }
  look();
</script>
</html>
"""
