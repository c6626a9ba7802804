import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading

import joblib
import pytest

from libsvm_tasks import grid


def square(item):
    return {"value": item**2, "process": os.getpid()}


def values(results):
    return [result["value"] for result in results]


def test_results_come_in_order_and_do_not_depend_on_the_number_of_jobs():
    assert grid.run(math.factorial, range(7), jobs=1) == grid.run(math.factorial, range(7), jobs=2)
    assert grid.run(math.factorial, [3, 1, 3]) == [6, 1, 6]


def test_what_the_journal_holds_is_not_run_again(tmp_path):
    journal, ran = tmp_path / "deep" / "journal.jsonl", []

    def work(item):
        ran.append(item)
        return item + 1

    assert grid.run(work, [1, 2, 3], journal=journal) == [2, 3, 4]
    assert grid.run(work, [1, 2, 3, 4], journal=journal) == [2, 3, 4, 5]
    assert ran == [1, 2, 3, 4]


def test_a_piece_that_fails_keeps_what_was_finished_before(tmp_path):
    journal, ran = tmp_path / "journal.jsonl", []

    def work(item):
        ran.append(item)
        if item == 3 and ran.count(3) == 1:
            raise KeyboardInterrupt
        return item

    with pytest.raises(KeyboardInterrupt):
        grid.run(work, [1, 2, 3, 4], journal=journal)
    assert grid.run(work, [1, 2, 3, 4], journal=journal) == [1, 2, 3, 4]
    assert ran == [1, 2, 3, 3, 4]


@pytest.mark.parametrize("tail", ['{"key": "ab', '{"key": 1}', "null", "\x00\x00"])
def test_a_torn_line_is_run_again(tmp_path, tail):
    journal = tmp_path / "journal.jsonl"
    grid.run(square, [1, 2], journal=journal)
    lines = journal.read_text().splitlines()
    journal.write_text(lines[0] + "\n" + tail)
    assert values(grid.run(square, [1, 2], journal=journal)) == [1, 4]
    assert json.loads(journal.read_text().splitlines()[-1])["result"]["value"] == 4


def test_progress_counts_what_was_there_already(tmp_path):
    journal, calls = tmp_path / "journal.jsonl", []
    grid.run(square, [1, 2], journal=journal)
    grid.run(square, [1, 2, 3, 4], journal=journal, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(2, 4), (3, 4), (4, 4)]


def test_a_killed_run_resumes_from_its_finished_pieces(tmp_path):
    """A real process, killed for good once its journal has grown."""
    journal = tmp_path / "journal.jsonl"
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from libsvm_tasks import grid

        def work(item):
            if item == 3:
                print("three", flush=True)
                sys.stdin.read()
            return item

        grid.run(work, range(6), jobs=1, journal=Path(sys.argv[1]))
    """)
    command = [sys.executable, "-c", code, str(journal)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "three\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(grid.read_journal(journal)) == 3

    def work(item):
        return -item

    work.__module__, work.__qualname__ = "__main__", "work"  # the same work by name
    assert grid.run(work, range(6), journal=journal) == [0, 1, 2, -3, -4, -5]


def test_joblibs_own_settings_choose_where_the_pieces_run():
    """So that ``parallel_config("ray")`` or ``"dask"`` sends them to a cluster."""
    with joblib.parallel_config("threading", n_jobs=2):
        names = grid.run(lambda item: [item, threading.current_thread().name], range(6))
    assert [item for item, _ in names] == list(range(6))
    assert all(name != "MainThread" for _, name in names)
