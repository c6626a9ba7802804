"""The guide to traffic has the sample sizes that the benchmark prints."""

from pathlib import Path

from lift_coverage import sizes

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "how-much-traffic.md"


def test_the_guide_has_the_sample_sizes_that_are_computed():
    text = GUIDE.read_text(encoding="utf-8")
    assert all(f"| {' | '.join(cells)} |\n" in text for cells in sizes())
