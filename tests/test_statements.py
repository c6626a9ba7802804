"""Statements of the pages that the code, the claims or other pages can contradict."""

import csv
import re
from pathlib import Path

import pytest
from planting import BUGS

from service.settings import FIXED

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    page
    for page in sorted(
        {*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *DOCS.glob("*.txt"), *ROOT.glob("clients/*/README.md")}
    )
    if "_build" not in page.parts
]


def text_of(name):
    """Return a page on one line."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_installs_a_package_that_is_on_no_index(page):
    text = page.read_text(encoding="utf-8")
    for command in re.findall(r"(?:pip|npm|uv pip|pipx) (?:install|add) [^`\n)]*", text):
        words = [word.strip("'\"") for word in command.split()[2:] if not word.startswith("-")]
        for word in words:
            assert not re.match(r"fedres(\[|==|$)", word), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_first_start_is_said_to_take_as_long_as_it_takes(page):
    """It compiles for one to several minutes, by how fast and how busy the machine is."""
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert not re.search(r"compiles for about a minute|about a minute\)|first start only, about", text)


def test_the_number_of_planted_bugs_is_that_of_the_simulation():
    assert f"| {len(BUGS)} bugs | all found |" in text_of("docs/benchmarks/reliability.md")
    assert len(BUGS) == 8
    assert "eight planted bugs" in text_of("CONTRIBUTING.md")


def test_a_page_that_cites_a_measurement_has_its_figure():
    measured = text_of("docs/benchmarks/reliability.md")
    [times] = re.findall(r"another's p99, up to (\d+) times", text_of("docs/operate/security.md"))
    assert f"events of large items {times} times" in measured
    [decisions] = re.findall(r"was shown within (\d+) decisions", text_of("docs/how-it-works/recommendations.md"))
    assert re.search(rf"\b{decisions}\b", text_of("docs/research/decision-model.md"))


def test_losses_to_delay_are_those_of_the_claims():
    with (DOCS / "results" / "claims.csv").open(encoding="utf-8") as file:
        claims = [claim for claim in csv.DictReader(file) if claim["measured"].startswith("accuracy at delay 200")]
    ours = [claim for claim in claims if claim["source"].startswith("ours")]
    aligned = [claim for claim in claims if claim not in ours and "Central" not in claim["measured"]]
    losses = [float(loss) for claim in aligned for loss in re.findall(r"-(0\.\d+) ±", claim["measured"])]
    shown = f"{min(losses):.2f} to {max(losses):.2f}"
    assert shown in text_of("docs/results/README.md")
    assert shown in text_of("docs/federated/fedres.md")


def test_what_cannot_be_changed_is_named_where_users_ask():
    answer = text_of("docs/start/faq.md").partition("Can I change settings later?")[2]
    for name in (*FIXED, "reward_range"):
        assert f"`{name}`" in answer, name
        assert f"`{name}`" in text_of("docs/reference/api.md"), name


def test_pages_that_say_that_numbers_need_no_scaling_name_the_model():
    for page in PAGES:
        for sentence in re.split(r"(?<=[.|])\s", " ".join(page.read_text(encoding="utf-8").split())):
            if re.search(r"need(s)? no scaling|needs no tuning and no scaling", sentence) and "|" not in sentence:
                assert "residual-kalman" in sentence or "fedres" in page.name.lower(), f"{page.name}: {sentence}"


def test_the_page_that_the_citation_names_lists_the_papers():
    [page] = re.findall(r"\((\S+) lists them\)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    for title in ("Federated Residual Learning", "Online Federated Learning", "FedSEA", "Dynamic Federated Learning"):
        assert title in text_of(page)


def test_the_map_of_the_code_names_every_file_of_the_device_client():
    row = next(
        line for line in (ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines() if "`fedres/client/`" in line
    )
    for name in ("device.py", "kalman_device.py", "adagrad_device.py", "models.py"):
        assert (ROOT / "fedres" / "client" / name).exists()
        assert f"`{name}`" in row
