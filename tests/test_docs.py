"""What all pages have in common: links that lead somewhere, tables that name everything."""

import re
from pathlib import Path

import pytest

from service.metrics import LOOP_FIGURES

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_sections_of_our_pages_lead_to_headings(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link, section in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", text):
        target = page.parent / link if link else page
        if target.exists():  # else the test above says so
            assert section in anchors(target), f"{link}#{section}"


def anchors(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_on_operations_names_every_metric_of_a_loop():
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for metric, grows, _ in LOOP_FIGURES.values():
        assert f"`{metric}{'_total' if grows else ''}`" in text, metric


def test_every_file_that_the_guide_for_contributors_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:fedres|bandits|libsvm_tasks|service|tests|benchmarks|examples|docs)/[\w./]*)`", text):
        assert path.endswith("/yours.py") or (ROOT / path).exists(), path
