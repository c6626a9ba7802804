"""Take the pictures of the dashboard anew, of a demo that has run for a while.

    fedres serve --demo
    python docs/screenshots.py http://127.0.0.1:8000
    fedres serve --port 8001 --store sqlite:///cafe.db
    python docs/screenshots.py http://127.0.0.1:8001 tutorial  # plays the visitors of the tutorial first

Needs the extra `dev` and Chromium. The page of a user is that of the reader with the newest decision.
"""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

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


def picture_demo(browser: Browser, url: str) -> None:
    demo = browser.new_context(viewport={"width": 1000, "height": 900}).new_page()
    demo.goto(f"{url}/demo")
    demo.locator("#compared li").first.wait_for()
    expect(demo.locator("#lift")).not_to_have_text("…")
    demo.get_by_role("button", name="Read").first.click()
    demo.get_by_text("1 articles read").wait_for()
    demo.screenshot(path=HERE / "demo.png")


def tutorial(url: str) -> None:
    """Let the tutorial's visitors come by, and take the picture of their loop."""
    rng = random.Random(1)
    with Client(url) as client:
        for _ in range(400):
            user, time = rng.choice(["anna", "ben", "cleo", "dora"]), rng.choice(["morning", "evening"])
            decision = client.rank(user=user, context={"time": time}, actions=["coffee", "tea", "soup"], deadline=30)
            wanted = "tea" if user == "ben" else {"morning": "coffee", "evening": "soup"}[time]
            decision.reward(float(decision.action == wanted))
            client.flush()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = opened(browser, f"{url}/#/loops/default", "Loop default", DESK)
        page.get_by_role("heading", name="Reward over time").wait_for(timeout=120_000)
        page.screenshot(path=HERE / "dashboard.png")
        browser.close()
    shrink(HERE / "dashboard.png")


def shrink(picture: Path) -> None:
    """Write a picture in 256 colors, which is half the size."""
    with Image.open(picture) as taken:
        taken.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(picture, optimize=True)


def main(url: str, loop: str = "demo") -> None:
    if loop == "tutorial":
        return tutorial(url)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = opened(browser, f"{url}/#/loops/{loop}", f"Loop {loop}", DESK)
        page.screenshot(path=HERE / "dashboard-loop.png")
        page.get_by_role("button", name="Estimate other settings").click()
        page.get_by_role("button", name="Apply…").first.wait_for(timeout=120_000)
        page.locator("section", has_text="explored differently").screenshot(path=HERE / "dashboard-what-if.png")
        page.set_viewport_size({"width": 1000, "height": page.evaluate("document.documentElement.scrollHeight")})
        first, last = (page.locator("h2", has_text=name).locator("..") for name in ("Drift", "Features of the newest"))
        top, bottom = first.bounding_box(), last.bounding_box()
        assert top is not None
        assert bottom is not None
        height = bottom["y"] + bottom["height"] - top["y"] + 32
        page.screenshot(
            path=HERE / "dashboard-more.png", clip={"x": 0, "y": top["y"] - 16, "width": 1000, "height": height}
        )
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
