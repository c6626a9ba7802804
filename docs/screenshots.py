"""Take the pictures of the dashboard anew, of a demo that has run for a while.

    fedres serve --demo
    python docs/screenshots.py http://127.0.0.1:8000
    fedres serve --port 8001 --store sqlite:///cafe.db
    python docs/screenshots.py http://127.0.0.1:8001 tutorial  # plays the visitors of the tutorial first
    python docs/screenshots.py http://127.0.0.1:8001 loops 50 folder  # 50 loops, wide and narrow, light and dark

Needs the extra `dev` and Chromium. The page of a user is that of the reader with the newest decision.
"""

from __future__ import annotations

import random
import shutil
import sys
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fedres.client import Client

HERE = Path(__file__).parent / "images"
DESK, PHONE = {"width": 1000, "height": 1330}, {"width": 360, "height": 740}


def opened(browser: Browser, url: str, heading: str, size: dict[str, int], theme: str = "light") -> Page:
    page = browser.new_context(viewport=size, color_scheme=theme).new_page()
    page.goto(url)
    page.get_by_role("heading", level=1, name=heading).wait_for(timeout=120_000)
    expect(page.get_by_text("The report is being computed")).to_have_count(0, timeout=120_000)
    return page


def picture_loop(browser: Browser, url: str, loop: str, theme: str) -> None:
    """Take the parts of a loop's page that the guide is about, each cropped to its sections."""
    ending = "" if theme == "light" else "-dark"
    page = opened(browser, f"{url}/#/loops/{loop}", f"Loop {loop}", DESK, theme)
    page.get_by_role("button", name="Estimate other settings").click()
    page.get_by_text("Less exploration looks better").wait_for(timeout=120_000)
    page.set_viewport_size({"width": 1000, "height": page.evaluate("document.documentElement.scrollHeight")})
    parts = {
        "loop": ("Does it earn more?", "Does it earn more?"),
        "what-if": ("What if it explored", "What if it explored"),
        "decides": ("What it decides", "What it decides"),
        "more": ("Drift", "How personal"),
    }
    for name, (first, last) in parts.items():
        top = page.locator("h2", has_text=first).first.locator("..").bounding_box()
        bottom = page.locator("h2", has_text=last).first.locator("..").bounding_box()
        assert top is not None
        assert bottom is not None
        height = max(top["y"] + top["height"], bottom["y"] + bottom["height"]) - top["y"] + 32
        clip = {"x": 0, "y": top["y"] - 16, "width": 1000, "height": height}
        page.screenshot(path=HERE / f"dashboard-{name}{ending}.png", clip=clip)
    page.context.close()


def picture_demo(browser: Browser, url: str) -> None:
    demo = browser.new_context(viewport={"width": 1000, "height": 900}).new_page()
    demo.goto(f"{url}/demo")
    demo.locator("#compared li").first.wait_for()
    expect(demo.locator("#lift")).not_to_have_text("…")
    demo.get_by_role("button", name="Read").first.click()
    demo.get_by_text("1 article read").wait_for()
    demo.screenshot(path=HERE / "demo.png")


def visits(client: Client, rng: random.Random, n: int) -> None:
    """Let the tutorial's visitors come by."""
    for _ in range(n):
        user, time = rng.choice(["anna", "ben", "cleo", "dora"]), rng.choice(["morning", "evening"])
        decision = client.rank(user=user, context={"time": time}, actions=["coffee", "tea", "soup"], timeout=30)
        wanted = "tea" if user == "ben" else {"morning": "coffee", "evening": "soup"}[time]
        decision.reward(float(decision.action == wanted))
        client.flush()


def loops(url: str, n: int, folder: Path) -> None:
    """Take pictures of the first page with ``n`` loops, and of the last loop and its settings."""
    names = ["default", *(f"loop-{k}" for k in range(1, n))]
    for name in names:
        with Client(url, loop=name) as client:
            if name != "default":
                client.create_loop(name, {"control": {"share": 0.3}})
            visits(client, random.Random(name), 400 // n + 40)
    pages = {"loops": ("", "Loops"), "loop": (f"#/loops/{names[-1]}", f"Loop {names[-1]}")}
    pages["settings"] = f"#/loops/{names[-1]}/settings", f"Settings of {names[-1]}"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for (what, (path, heading)), width, theme in product(pages.items(), (1280, 400), ("light", "dark")):
            page = opened(browser, f"{url}/{path}", heading, {"width": width, "height": 900}, theme)
            if what == "loops":
                expect(page.get_by_text("are being computed")).to_have_count(0, timeout=120_000)
            page.screenshot(path=folder / f"{n}-{what}-{width}-{theme}.png", full_page=True)
            page.context.close()
        browser.close()


def tutorial(url: str) -> None:
    """Let the tutorial's visitors come by, and take the picture of their loop."""
    with Client(url) as client:
        visits(client, random.Random(1), 400)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = opened(browser, f"{url}/#/loops/default", "Loop default", DESK)
        page.get_by_role("heading", name="Reward over time").wait_for(timeout=120_000)
        page.screenshot(path=HERE / "dashboard.png")
        browser.close()
    shrink(HERE / "dashboard.png")


def shrink(picture: Path) -> None:
    """Write a picture in its 256 most frequent colors, which is half the size; areas keep their colors exactly."""
    with Image.open(picture) as taken:
        pixels = np.asarray(taken.convert("RGB")).astype(int)
    colors, which, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    frequent = colors[np.argsort(-counts)[:256]]
    nearest = ((colors[:, None] - frequent) ** 2).sum(axis=2).argmin(axis=1)
    made = Image.fromarray(nearest[which].reshape(pixels.shape[:2]).astype(np.uint8), "P")
    made.putpalette(frequent.ravel().tolist())
    made.save(picture, optimize=True)


def main(url: str, loop: str = "demo", *more: str) -> None:
    if loop == "tutorial":
        return tutorial(url)
    if loop == "loops":
        return loops(url, int(more[0]), Path(more[1]))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for theme in ("light", "dark"):
            picture_loop(browser, url, loop, theme)
        page = opened(browser, f"{url}/#/loops/{loop}", f"Loop {loop}", DESK)
        user = page.request.get(f"{url}/v1/loops/{loop}/events?limit=1").json()["user"]
        opened(browser, f"{url}/#/loops/{loop}/users/{user}", f"User {user}", PHONE, "dark").screenshot(
            path=HERE / "dashboard-user.png"
        )
        picture_demo(browser, url)
        browser.close()
    for picture in [*HERE.glob("dashboard-*.png"), HERE / "demo.png"]:
        shrink(picture)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
