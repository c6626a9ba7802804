"""The dashboard in a real browser: every page, both themes, a phone's width, hostile ids, keys of each role."""

from importlib.metadata import version
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import numpy as np
import pytest
from live import run_service
from needs import CHROMIUM, needs_chromium
from playwright.sync_api import expect, sync_playwright
from typer.testing import CliRunner
from waiting import LIMIT

from service.cli import app
from service.demo import Demo

pytestmark = needs_chromium

HOSTILE = "<img src=x onerror=window.pwned=1>"
QUOTES = "\"'><script>window.pwned=1</script>"
PAGES = {
    "Loops": "#/",
    "Operations": "#/operations",
    "Loop default": "#/loops/default",
    "Settings of default": "#/loops/default/settings",
    "Catalogue of default": "#/loops/default/actions",
    "Newest events of default": "#/loops/default/events",
    "History of default": "#/loops/default/history",
    "Event e-7": "#/loops/default/events/e-7",
    "User u1": "#/loops/default/users/u1",
}
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1200, "height": 800}


def fill(http, n=260):
    """Decide and reward ``n`` times; one user, action, feature and experiment have hostile names."""
    rng = np.random.default_rng(0)
    http.patch("/v1/settings", json={"control": {"share": 0.3, "experiment": HOSTILE}}).raise_for_status()
    actions = [{"id": name, "features": {"topic": name, QUOTES: 1}} for name in ("tea", "juice", HOSTILE)]
    requests = [
        {"event_id": f"e-{k}", "user": f"u{k % 40}", "context": {"hour": k % 3, HOSTILE: QUOTES}, "actions": actions}
        for k in range(n)
    ]
    requests[3] |= {"event_id": HOSTILE, "user": QUOTES}
    for start in range(0, n, 100):
        reply = http.post("/v1/rank/batch", json={"requests": requests[start : start + 100]})
        for result in reply.json()["results"]:
            path, value = f"/v1/events/{quote(result['event_id'], safe='')}/reward", int(rng.integers(2))
            http.post(path, json={"value": value, "id": HOSTILE}).raise_for_status()


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    with run_service(tmp_path_factory.mktemp("service")) as running:
        with running.client() as http:
            fill(http)
        yield running


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        expect.set_options(timeout=1_000 * LIMIT)
        yield launched
        launched.close()


@pytest.fixture
def opened(browser):
    """Open a page: ``opened(url, theme, size)``; at the end nothing may have gone wrong or left the origin."""
    contexts, wrong = [], []

    def begin(url, theme="light", size=DESK, expect=()):
        def expected(text):
            return any(one in text for one in expect)

        context = browser.new_context(color_scheme=theme, viewport=size)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1_000 * LIMIT)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console",
            lambda said: (
                said.type == "error" and not any(one in said.text for one in expect) and wrong.append(said.text)
            ),
        )
        page.on("request", lambda request: request.url.startswith((url, "blob:")) or wrong.append(request.url))
        return page

    yield begin
    for context in contexts:
        context.close()
    assert wrong == []


def show(page, url, title, path):
    page.goto(f"{url}/{path}")
    page.get_by_role("heading", level=1, name=title, exact=True).wait_for()
    expect(page.locator("#status")).not_to_have_text("Loading…")


@pytest.mark.parametrize(("theme", "size"), [("light", DESK), ("dark", PHONE)])
def test_every_page_shows_itself_in_both_themes_and_on_a_phone(live, opened, theme, size):
    page = opened(live.url, theme, size)
    for title, path in PAGES.items():
        show(page, live.url, title, path)
        assert page.title() == f"{title} – fedres"
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(n => n < 60)")
        assert dark == (theme == "dark")


def test_the_first_page_shows_the_reward_over_time_and_the_lift_of_each_loop(live, opened):
    page = opened(live.url)
    requests = []
    page.on("request", lambda request: "/v1/" in request.url and requests.append(request.url))
    show(page, live.url, "Loops", "")
    row = page.get_by_role("row", name="default")
    row.get_by_role("img", name="Reward of default over time").wait_for()
    assert len(requests) == 1  # for any number of loops
    with live.client() as http:
        lift = http.get("/v1/lift").json()
    shown = row.locator("[data-part=lift]").inner_text()
    if lift["relative"] is not None and lift["relative"]["high"] < 10:
        assert f"{abs(round(100 * lift['relative']['value']))}%" in shown
    elif lift["absolute"] is not None:
        assert " to " in shown
    else:
        assert lift["missing"] in shown


def test_the_axis_of_rewards_does_not_leave_their_range(live, opened):
    page = opened(live.url)
    show(page, live.url, "Loop default", "#/loops/default")
    chart = page.get_by_role("img", name="mean reward by time")
    marks = [float(text) for text in chart.locator("text[text-anchor=end]").all_text_contents() if ":" not in text]
    with live.client() as http:
        assert http.get("/v1/report").json()["reward_range"] == [0.0, 1.0]
    assert max(marks) <= 1.0


def test_the_page_of_a_loop_shows_lift_values_curves_traffic_funnel_and_features(live, opened):
    page = opened(live.url)
    show(page, live.url, "Loop default", "#/loops/default")
    text = page.locator("main").inner_text()
    with live.client() as http:
        report = http.get("/v1/report").json()
    assert report["lift"]["sentence"] in text
    assert all(feature["name"] in text for feature in report["features"])
    labels = page.get_by_role("img").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    assert [label.split(":")[0] for label in labels] == [
        "mean reward by time",
        "decisions of the policy by time and action",
        "rewards by delay",
    ]
    assert page.locator("path.curve").count() >= 2
    assert page.locator("path.band").count() >= 1
    for row in page.locator("section", has_text="From decision to reward").locator("tbody tr").all()[:7]:
        name, n, _ = row.locator("td").all_inner_texts()
        assert n.replace(",", "") == str(report["funnel"]["waiting" if name == "pending" else name])
    times = page.locator("section", has_text="Reward over time").locator("svg text").all_text_contents()
    assert [time.count(":") for time in times if ":" in time] == [2, 2, 2]  # with seconds: minutes would be the same
    page.get_by_text("As a table").first.click()
    assert page.locator("details[open] tbody tr").count() == len(report["bucket_ends"])


def test_a_user_who_never_was_cannot_be_erased_and_the_version_is_shown(live, opened):
    page = opened(live.url)
    show(page, live.url, "User nobody", "#/loops/default/users/nobody")
    page.get_by_text("The log has nothing of this user in this loop.").wait_for()
    assert page.get_by_role("button", name="Erase…").count() == 0
    show(page, live.url, "Operations", "#/operations")
    assert version("fedres") in page.locator("main").inner_text()


def test_the_page_of_the_api_works_under_its_policy(live, opened):
    page = opened(live.url)
    reply = page.goto(f"{live.url}/docs")
    assert "script-src 'self' 'sha256-" in reply.headers["content-security-policy"]
    operation = page.locator("#operations-default-get_health_healthz_get, [id*=healthz]").first
    operation.wait_for()
    operation.locator("button.opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    operation.locator(".live-responses-table").get_by_text('"ok"').wait_for()


def test_hostile_ids_features_actions_and_loop_names_are_text(live, opened):
    page = opened(live.url, expect=("404",))
    shown = (f"Event {HOSTILE}", "events", HOSTILE), (f"User {QUOTES}", "users", QUOTES)
    for title, kind, name in shown:
        show(page, live.url, title, f"#/loops/default/{kind}/{quote(name, safe='')}")
        for summary in page.locator("summary").all():
            summary.click()
        assert page.locator("main img, main script").count() == 0
    show(page, live.url, "Loop default", "#/loops/default")
    assert HOSTILE in page.locator("main").inner_text()
    page.goto(f"{live.url}/#/loops/{quote(HOSTILE, safe='')}")
    page.locator("main").get_by_text("does not exist").wait_for()
    assert page.evaluate("window.pwned") is None


ATTEMPTS = """async () => {
  const attempts = [
    () => document.body.append(Object.assign(document.createElement("script"), { text: "window.pwned = 1" })),
    () => document.body.insertAdjacentHTML("beforeend", "<img src=/healthz onerror=window.pwned=1>"),
    () => { const image = document.createElement("img"); image.setAttribute("onerror", "window.pwned=1");
            image.src = "data:,"; document.body.append(image); },
  ];
  const outcomes = attempts.map(attempt => { try { attempt(); return "done"; } catch (error) { return error.name; } });
  await new Promise(done => setTimeout(done, 50));
  return [...outcomes.slice(0, 2), window.pwned ?? "nothing"];
}"""


def test_the_policy_of_the_page_lets_no_script_in(live, opened):
    page = opened(live.url, expect=("Content Security Policy", "Trusted", "require-trusted-types-for"))
    show(page, live.url, "Loops", "")
    assert page.evaluate(ATTEMPTS) == ["TypeError", "TypeError", "nothing"]


def test_a_renewed_page_keeps_the_focus_and_recovers_from_an_outage(live, opened):
    page = opened(live.url, expect=("Failed to load resource",))
    page.clock.install()
    show(page, live.url, "Loops", "")
    page.get_by_role("link", name="default", exact=True).last.focus()
    page.route("**/v1/overview?*", lambda route: route.abort())
    page.clock.fast_forward(6_000)
    page.get_by_text("The service cannot be reached").wait_for()
    page.get_by_text("These figures are from").wait_for()
    assert page.get_by_role("button", name="Retry").count() == 1
    assert "stale" in page.locator("main").get_attribute("class")
    assert page.get_by_role("link", name="default", exact=True).count() >= 1  # what was known stays
    page.unroute("**/v1/overview?*")
    with page.expect_response("**/v1/overview?*"):
        page.clock.fast_forward(6_000)
    expect(page.locator("#status")).to_have_text("")  # the page's policy forbids eval
    expect(page.locator("main")).not_to_have_class("stale")
    assert page.evaluate("document.activeElement.textContent") == "default"


def test_a_thousand_loops_and_five_hundred_actions_are_shown_in_part_until_all_are_asked_for(live, opened):
    page = opened(live.url, size=PHONE)
    with live.client() as http:
        overview = http.get("/v1/overview").json()
        actions = [{"id": f"{'long' * 40}-{k}"} for k in range(500)]
        http.post("/v1/rank", json={"event_id": "wide", "actions": actions}).raise_for_status()
    [row] = overview["loops"]

    def many(route):
        query = parse_qs(urlsplit(route.request.url).query)
        rows = [{**row, "loop": f"loop-{k}"} for k in range(1_000) if query.get("has", [""])[0] in f"loop-{k}"]
        shown = rows[: int(query["limit"][0])]
        route.fulfill(json={**overview, "total": 1_000, "matching": len(rows), "loops": shown})

    page.route("**/v1/overview?*", many)
    show(page, live.url, "Loops", "")
    expect(page.locator("tbody tr")).to_have_count(100)
    page.get_by_label("Name has").fill("loop-99")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(11)
    assert "has=loop-99" in page.url
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(11)
    page.get_by_label("Name has").fill("")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Show all 1,000").click()
    expect(page.locator("tbody tr")).to_have_count(1_000)
    show(page, live.url, "Event wide", "#/loops/default/events/wide")
    assert page.get_by_role("button", name="Show all 500").count() >= 1
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_addresses_that_are_broken_or_would_lead_elsewhere_are_refused(live, opened):
    page = opened(live.url)
    for path, said in (
        ("#/loops/%", "There is no such page."),
        ("#/loops/%ff", "There is no such page."),
        ("#/elsewhere", "There is no such page."),
        ("#/loops/default/users/..", "cannot be part of an address"),
    ):
        page.goto(f"{live.url}/{path}")
        page.locator("main").get_by_text(said).wait_for()
        page.goto(f"{live.url}/#/operations")
        page.get_by_role("heading", name="Operations").wait_for()


def test_other_settings_are_valued_and_applied_after_a_confirmation(live, opened):
    page = opened(live.url)
    show(page, live.url, "Loop default", "#/loops/default")
    text = page.locator("main").inner_text()
    assert "From 500 finished events of the policy on" in text
    assert "40 users" in text.partition("How personal")[2] or "41 users" in text.partition("How personal")[2]
    page.get_by_role("button", name="Estimate other settings").click()
    apply = page.get_by_role("button", name="Apply…").first
    apply.wait_for()
    rows = page.locator("section", has_text="explored differently").locator("tbody tr")
    assert "gamma = 300" in rows.nth(0).locator("td").first.inner_text()
    assert rows.nth(1).locator("td").first.inner_text() == "gamma = 75"
    page.get_by_text("Less exploration looks better here than it is in the long run").wait_for()
    apply.click()
    page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    page.get_by_text("The settings are changed.").wait_for()
    with live.client() as http:
        assert http.get("/v1/settings").json()["settings"]["gamma"] == 75.0


def test_an_admin_makes_a_loop_changes_its_settings_and_catalogue_and_starts_a_control_group(tmp_path, opened):
    with run_service(tmp_path) as live, live.client() as http:
        page = opened(live.url, expect=("422",))
        show(page, live.url, "Loops", "")
        page.get_by_text("New loop").click()
        page.get_by_label("Name", exact=True).fill("shop")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Settings of shop").wait_for()
        expect(page.get_by_label("model", exact=True)).to_be_disabled()
        labels = page.locator("label[for^=setting-]").all_inner_texts()
        ignored = http.get("/v1/loops/shop/settings/schema").json()["ignored"]["residual-kalman"]
        expected = http.get("/v1/loops/shop/settings").json()["settings"].keys() - {*ignored}
        assert {label.split(".")[0] for label in labels} == expected  # each has a field
        page.get_by_label("policy", exact=True).select_option(label="squarecb")
        page.get_by_label("wait_time").fill("60")
        page.get_by_role("button", name="Save").click()
        page.get_by_text("Changed: wait_time, policy.").wait_for()
        settings = http.get("/v1/loops/shop/settings").json()["settings"]
        assert (settings["policy"], settings["wait_time"], settings["epsilon"]) == ("squarecb", 60.0, 0.1)
        page.get_by_label("wait_time").fill("a minute")
        page.get_by_role("button", name="Save").click()
        page.get_by_text("wait_time must be JSON").first.wait_for()
        field = page.get_by_label("wait_time")
        assert field.get_attribute("aria-invalid") == "true"
        assert "must be JSON" in page.locator(f"#{field.get_attribute('aria-describedby').split()[0]}").inner_text()
        assert page.evaluate("document.activeElement.id") == "setting-wait_time"
        assert in_view(page, page.locator("#status"))
        page.get_by_label("wait_time").fill("-1")
        page.get_by_role("button", name="Save").click()
        page.get_by_text("wait_time must be in [0.001,").first.wait_for()
        assert field.get_attribute("aria-invalid") == "true"

        page.goto(f"{live.url}/#/loops/shop/actions")
        page.get_by_label("id", exact=True).fill("tea")
        page.get_by_label("features").fill('{"price": 2}')
        page.get_by_role("button", name="Store").click()
        page.get_by_role("cell", name='{"price":2}').wait_for()
        assert http.get("/v1/loops/shop/actions").json() == {"actions": [{"id": "tea", "features": {"price": 2}}]}
        page.get_by_role("button", name="Retire…").click()
        page.get_by_role("dialog").get_by_role("button", name="Retire").click()
        page.get_by_text("Empty.").wait_for()

        page.goto(f"{live.url}/#/loops/shop")
        page.get_by_text("v1/loops/shop/rank").wait_for()  # an empty loop says how to begin
        request = {"event_id": "first", "user": "anna", "actions": [{"id": "tea"}, {"id": "juice"}]}
        http.post("/v1/loops/shop/rank", json=request).raise_for_status()
        live.settle("shop")
        page.goto(f"{live.url}/#/loops/shop/events")
        page.get_by_role("link", name="first").wait_for()
        page.goto(f"{live.url}/#/loops/shop")
        page.get_by_role("button", name="Start a control group…").click()
        page.get_by_role("dialog").get_by_role("button", name="Start").click()
        page.get_by_text("in the control group (first)").wait_for()
        assert http.get("/v1/loops/shop/settings").json()["settings"]["control"]["share"] == 0.1


def test_the_page_of_a_loop_with_recommendations_shows_coverage_new_items_and_rewards_by_place(tmp_path, opened):
    with run_service(tmp_path) as running:
        with running.client() as http:
            put = [{"id": f"film {k}", "features": {"genre": f"g{k % 3}"}} for k in range(40)]
            http.put("/v1/actions", json={"put": put}).raise_for_status()
            for k in range(5):
                page = http.post("/v1/recommend", json={"user": f"u{k}", "n": 3, "event_id": f"p{k}"}).json()
                for place, item in enumerate(page["items"], 1):
                    path = f"/v1/events/{item['event_id']}/reward"
                    http.post(path, json={"value": place / 4}).raise_for_status()
            report = http.get("/v1/report").json()["pages"]
        page = opened(running.url)
        show(page, running.url, "Loop default", "#/loops/default")
        part = page.locator("section", has=page.get_by_role("heading", name="Recommended items"))
        assert [row.inner_text().split() for row in part.locator("tbody tr").all()] == [
            ["1", "5", "0.25"], ["2", "5", "0.5"], ["3", "5", "0.75"]
        ]  # fmt: skip
        assert part.locator("dd").all_inner_texts()[0] == "40"
        assert part.locator("dd").all_inner_texts()[2] == "100%"
        assert 3 <= report["shown"] <= 15


def test_the_page_of_a_loop_shows_its_numbers_before_the_report_is_computed(live, opened):
    page = opened(live.url)
    held = []
    page.route("**/v1/loops/default/report", lambda route: held.append(route))
    page.goto(f"{live.url}/#/loops/default")
    page.get_by_text("The report is being computed").first.wait_for()
    assert page.locator("dd").first.inner_text() != "–"
    held[0].continue_()
    page.get_by_role("heading", name="Does it earn more?").wait_for()


def test_a_policy_that_the_control_group_measures_is_not_estimated_as_well(live, opened):
    page = opened(live.url)
    with live.client() as http:
        report = http.get("/v1/report").json()
    assert report["lift"]["baseline"] in [value["policy"] for value in report["values"]]
    show(page, live.url, "Loop default", "#/loops/default")
    page.get_by_role("heading", name="Does it earn more?").wait_for()
    shown = page.locator("section", has_text="Does it earn more?").locator("tbody tr td:first-child").all_inner_texts()
    assert shown
    assert report["lift"]["baseline"] not in shown


def test_the_keyboard_is_enough_to_look_up_an_event(live, opened):
    page = opened(live.url)
    show(page, live.url, "Loop default", "#/loops/default")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_label("event id").focus()
    page.keyboard.type("e-9")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Event e-9").wait_for()
    page.keyboard.press("Shift+Tab")  # from the page's content back to its head
    assert page.evaluate("document.querySelector('header').contains(document.activeElement)")
    unnamed = "all => all.filter(one => !one.labels?.length && !one.textContent).length"
    assert page.locator("input, button").evaluate_all(unnamed) == 0


def test_a_report_as_a_file_shows_the_same_pictures_without_the_service(live, opened, tmp_path):
    folder, file = live.engine.folder, tmp_path / "report.html"
    words = ["report", "default", "--html", str(file), "--store", f"sqlite:///{folder}/store.db"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    with live.client() as http:
        report = http.get("/v1/report").json()
    assert report["lift"]["sentence"] in done.stdout
    page = opened("file://")
    page.goto(file.as_uri())
    page.get_by_role("heading", level=1, name="Loop default").wait_for()
    assert report["lift"]["sentence"] in page.locator("main").inner_text()
    assert HOSTILE in page.locator("main").inner_text()
    assert page.get_by_role("img").count() == 3
    assert page.locator("form, main img").count() == 0
    assert page.evaluate("window.pwned") is None


def test_a_reader_of_the_demo_sees_the_front_page_follow(tmp_path, opened):
    with run_service(tmp_path) as live:
        missing = opened(live.url, expect=("404",))
        missing.goto(f"{live.url}/demo")
        missing.get_by_text("fedres serve --demo").wait_for()
        missing.close()
        with httpx.Client(base_url=live.url, trust_env=False) as client:
            demo = Demo(client)
            demo.begin()
            for _ in range(200):
                demo.play()
        page = opened(live.url, "dark", PHONE)
        page.goto(f"{live.url}/demo")
        page.locator("#front li").first.wait_for()
        with page.expect_response("**/v1/loops/demo/rank"):
            page.get_by_label("You are").fill(HOSTILE)
            page.keyboard.press("Enter")
        for button in ("Read", "Nothing for me"):
            with page.expect_response("**/v1/loops/demo/rank"):  # the next front page
                page.get_by_role("button", name=button).first.click()
            page.get_by_text("1 article read").wait_for()
        page.locator("#compared li").first.wait_for()
        expect(page.locator("#lift")).not_to_have_text("…")
        assert page.locator("#front li").count() == page.locator("#compared li").count() == 10
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        live.settle("demo")
        with live.client() as http:
            decisions = http.get(f"/v1/loops/demo/users/{quote(HOSTILE, safe='')}/decisions").json()["decisions"]
        assert [one["event"]["reward"] for one in decisions][1:3] == [0.0, 1.0]
        page.close()


def sign_in(page, key):
    page.get_by_label("Key").fill(key)
    page.keyboard.press("Enter")


def in_view(page, part):
    box = part.bounding_box()
    return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= page.viewport_size["height"]


def test_a_key_of_one_loop_goes_to_its_loop(tmp_path, opened):
    with run_service(tmp_path) as live:
        with live.client() as http:
            fill(http, 30)
            http.post("/v1/loops", json={"name": "other"}).raise_for_status()
        key = live.keys.add("read", "default")
        page = opened(live.url, expect=("401", "403"))
        page.goto(live.url)
        sign_in(page, key)
        page.get_by_role("heading", name="Loop default").wait_for()
        page.get_by_text("read, loop default").wait_for()
        page.goto(f"{live.url}/#/loops/other")
        page.get_by_role("link", name="loop default").click()
        page.get_by_role("heading", name="Loop default").wait_for()
        page.close()


def test_a_loop_is_held_and_resumed_on_its_page_and_the_evidence_stays(tmp_path, opened):
    with run_service(tmp_path) as live, live.client() as http:
        fill(http, 120)
        live.settle()
        before = http.get("/v1/lift").json()
        page = opened(live.url)
        show(page, live.url, "Loop default", "#/loops/default")
        page.get_by_role("button", name="Hold…").click()
        dialog = page.get_by_role("dialog")
        assert dialog.get_by_role("button", name="Hold now").is_disabled()
        dialog.get_by_label("Reason").fill("wrong prices")
        dialog.get_by_role("button", name="Hold now").click()
        page.get_by_text("Held: wrong prices").first.wait_for()
        page.get_by_role("button", name="Resume…").wait_for()
        lift = http.get("/v1/lift").json()
        assert (lift["held"]["reason"], lift["control"], lift["began"]) == (
            "wrong prices", before["control"], before["began"]
        )  # fmt: skip
        page.get_by_text("Evidence up to the hold").wait_for()
        assert page.title().startswith("(1)")
        show(page, live.url, "Loops", "")
        assert page.title().startswith("(1)")
        page.locator("section.alarm", has_text="wrong prices").get_by_role("button", name="Resume…").click()
        page.get_by_role("dialog").get_by_role("button", name="Resume now").click()
        page.get_by_text("Resumed: the policy decides.").wait_for()
        assert http.get("/v1/settings").json()["settings"]["control"]["hold"] is None
        assert http.get("/v1/lift").json()["began"] == before["began"]


def test_a_form_that_was_open_when_a_hold_began_neither_ends_it_nor_changes_anything(tmp_path, opened):
    with run_service(tmp_path) as live, live.client() as http:
        fill(http, 30)
        page = opened(live.url, expect=("412",))
        show(page, live.url, "Settings of default", "#/loops/default/settings")
        http.post("/v1/hold", json={"reason": "guardrail broke"}).raise_for_status()
        held = http.get("/v1/settings").json()
        page.get_by_label("gamma").fill("7")
        page.get_by_role("button", name="Save").click()
        page.get_by_text("Not saved: the settings have changed").wait_for()
        assert in_view(page, page.locator("#status"))
        assert http.get("/v1/settings").json() == held


def test_a_change_that_ends_an_experiment_asks_first_and_its_result_stays_listed(tmp_path, opened):
    with run_service(tmp_path) as live, live.client() as http:
        fill(http, 120)
        live.settle()
        before = http.get("/v1/lift").json()
        page = opened(live.url)
        show(page, live.url, "Settings of default", "#/loops/default/settings")
        page.get_by_label("control.share").fill("0.31")
        page.get_by_role("button", name="Save").click()
        dialog = page.get_by_role("dialog", name="End this experiment?")
        dialog.get_by_text(before["sentence"]).wait_for()
        dialog.get_by_role("button", name="Cancel").click()
        assert http.get("/v1/settings").json()["settings"]["control"]["share"] == 0.3
        page.get_by_role("button", name="Save").click()
        dialog.get_by_role("button", name="End it and save").click()
        page.get_by_text("Changed: control.").wait_for()
        assert http.get("/v1/settings").json()["settings"]["control"]["share"] == 0.31
        show(page, live.url, "History of default", "#/loops/default/history")
        rows = page.locator("tbody tr")
        assert rows.count() == 2
        assert before["sentence"] in rows.nth(1).inner_text()


def test_a_loop_whose_report_fails_is_unknown_and_not_taken_for_healthy(live, opened):
    page = opened(live.url)
    with live.client() as http:
        overview = http.get("/v1/overview").json()
    [row] = overview["loops"]
    broken = {**row, "verdict": {"state": "unknown", "sentence": "planted", "next_step": "Wait.", "since": None}}
    route = {**overview, "counts": {"unknown": 1}, "loops": [broken]}
    page.route("**/v1/overview?*", lambda one: one.fulfill(json=route))
    show(page, live.url, "Loops", "")
    assert "unknown" in page.get_by_role("row", name="default").inner_text()


def test_an_unknown_loop_has_a_page_with_a_way_back(live, opened):
    page = opened(live.url, expect=("404",))
    page.goto(f"{live.url}/#/loops/nowhere")
    page.get_by_role("heading", level=1, name="Not found").wait_for()
    page.get_by_role("link", name="Back to all loops").click()
    page.get_by_role("heading", level=1, name="Loops").wait_for()


def test_values_of_a_chart_are_read_with_the_arrow_keys_and_tables_are_sorted(live, opened):
    page = opened(live.url)
    show(page, live.url, "Loop default", "#/loops/default")
    chart = page.get_by_role("group", name="mean reward by time")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    assert "policy" in chart.locator(".reading").inner_text()
    section = page.locator("section", has=page.get_by_role("heading", name="What it decides"))
    section.get_by_role("button", name="events").click()
    assert section.locator("th", has_text="events").get_attribute("aria-sort") == "descending"
    counts = [int(text.replace(",", "")) for text in section.locator("tbody td:nth-child(5)").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    assert len(counts) == 3


def test_characters_that_turn_text_around_are_shown_as_codes(tmp_path, opened):
    with run_service(tmp_path) as live, live.client() as http:
        http.post(
            "/v1/rank", json={"event_id": "e", "user": "exe.\u202egnp", "actions": [{"id": "a"}]}
        ).raise_for_status()
        page = opened(live.url)
        show(page, live.url, "Event e", "#/loops/default/events/e")
        page.get_by_role("link", name="exe.\\u202egnp").wait_for()


def test_keys_show_what_their_role_may_see_and_an_admin_erases_after_a_confirmation(tmp_path, opened):
    with run_service(tmp_path) as live:
        with live.client() as http:
            fill(http, 60)
        keys = {role: live.keys.add(role) for role in ("read", "rank", "admin")}
        page = opened(live.url, expect=("401", "403", "404"))
        page.goto(live.url)
        page.get_by_text("This service needs a key.").wait_for()
        sign_in(page, "fedres_wrong")
        page.get_by_text("This key is not accepted").wait_for()
        sign_in(page, keys["rank"])
        page.get_by_text("a key with the role rank for all loops may not").first.wait_for()
        page.get_by_role("button", name="Sign out").click()
        sign_in(page, keys["read"])
        page.get_by_role("link", name="default", exact=True).first.click()
        page.get_by_role("heading", name="Loop default").wait_for()
        page.get_by_text("read Sign out").wait_for()
        assert page.get_by_role("link", name="Settings").count() == 0
        page.goto(f"{live.url}/#/loops/default/users/u1")
        page.get_by_text("a key with the role read for all loops may not").first.wait_for()
        page.get_by_role("button", name="Sign out").click()
        sign_in(page, keys["admin"])
        page.get_by_role("heading", name="User u1").wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="Export events").click()
        assert Path(download.value.path()).read_text().count('"user":"u1"') == 2
        page.get_by_role("button", name="Erase…").click()
        confirm = page.get_by_role("button", name="Erase for good")
        page.get_by_label("Type the user's id").fill("u2")
        assert confirm.is_disabled()
        page.get_by_label("Type the user's id").fill("u1")
        confirm.click()
        page.get_by_text("The user was erased.").wait_for()
        with live.client(keys["admin"]) as http:
            assert http.get("/v1/users/u1/decisions").json()["decisions"] == []
            assert len(http.get("/v1/users/u2/decisions").json()["decisions"]) == 2
        page.close()
