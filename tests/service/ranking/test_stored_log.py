"""A scripted log is stored as it was before: decisions, draws, examples and bodies."""

from stored_log import FILE, script


def test_the_scripted_log_is_stored_as_before():
    stored, _ = script()
    assert stored == FILE.read_text().splitlines()
