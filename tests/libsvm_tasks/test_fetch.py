from __future__ import annotations

import bz2
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from libsvm_tasks.catalogue import CATALOGUE, DatasetEntry
from libsvm_tasks.fetch import BLOCK, fetch
from libsvm_tasks.load import load

TRAIN = b"".join(b"%d 1:1 2:%d\n" % (i % 3, i + 1) for i in range(9000))
TEST = b"".join(b"%d 1:-1 3:%d\n" % (i % 3, i + 1) for i in range(30))
ROWS = 9030


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.files``: path -> (bytes, the length it claims, or None for none)."""

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.wfile.write(self.answer())

    def answer(self):
        if self.path not in self.server.files:
            self.send_error(404)
            return b""
        body, length = self.server.files[self.path]
        self.send_response(200)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        return body

    def log_message(self, *_):
        """Keep the test's output clean."""


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files = {}
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def serve(server, monkeypatch):
    """Return a function that serves the two parts of a dataset called tiny, and puts it into the catalogue."""
    monkeypatch.setenv("no_proxy", "*")

    def start(train=TRAIN, test=TEST, *, suffix="", rows=ROWS, features=3, classes=3, claimed="true"):
        lengths = {"true": len(test), "more": len(test) + 100, "none": None}
        server.files["/tiny" + suffix] = train, len(train)
        server.files["/tiny.t" + suffix] = test, lengths[claimed]
        url = f"http://127.0.0.1:{server.server_port}/tiny"
        enlist(monkeypatch, url + suffix, f"{url}.t{suffix}", rows, features, classes)

    return start


def enlist(monkeypatch, url, test_url=None, rows=ROWS, features=3, classes=3):
    entry = DatasetEntry("tiny", rows, features, classes, "classification", "made for this test", url, test_url)
    monkeypatch.setitem(CATALOGUE, "tiny", entry)


def refused(folder, *mentioned):
    """Check that a fetch fails in one line that mentions all this, and leaves nothing behind."""
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=r"\S") as caught:
        fetch("tiny", folder)
    assert "\n" not in str(caught.value)
    for text in mentioned:
        assert text in str(caught.value)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(("suffix", "compress"), [("", bytes), (".bz2", bz2.compress)])
def test_a_fetched_file_holds_both_parts_and_loads_by_name(serve, tmp_path, monkeypatch, suffix, compress):
    serve(compress(TRAIN), compress(TEST), suffix=suffix)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDRES_DATA", raising=False)
    path = fetch("tiny")
    assert path == tmp_path / "fedres" / f"tiny.svm{suffix}"
    assert list(path.parent.iterdir()) == [path]
    data = load("tiny")
    assert (data.features.shape, data.n_classes) == ((ROWS, 3), 3)
    np.testing.assert_array_equal(data.features[[0, -1]], [[1, 1, 0], [-1, 0, 30]])


def test_progress_rises_to_the_total_of_both_parts(serve, tmp_path):
    serve()
    seen = []
    fetch("tiny", tmp_path, progress=lambda done, total: seen.append((done, total)))
    done = [bytes_so_far for bytes_so_far, _ in seen]
    assert len(done) >= len(TRAIN) // BLOCK + 2 > 2
    assert done == sorted(set(done))
    assert seen[-1] == (len(TRAIN) + len(TEST), len(TRAIN) + len(TEST))
    assert {total for _, total in seen} == {len(TRAIN) + len(TEST)}


def test_a_server_that_tells_no_length_is_trusted_once_the_shape_is_right(serve, tmp_path):
    serve(claimed="none")
    totals = set()
    assert fetch("tiny", str(tmp_path), progress=lambda _, total: totals.add(total)).stat().st_size == len(TRAIN + TEST)
    assert totals == {None}


def test_a_new_copy_takes_the_place_of_an_old_one(serve, tmp_path):
    serve()
    (tmp_path / "tiny.svm").write_bytes(b"old")
    assert fetch("tiny", tmp_path).read_bytes() == TRAIN + TEST


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"rows": ROWS + 1}, "it has 9,030 rows, not 9,031"),
        ({"features": 4}, "it has 3 features, not 4"),
        ({"features": 2}, "line 9001: index must be from 1 to 2, got 3"),
        ({"classes": 4}, "it has 3 classes, not 4"),
        ({"train": b"<html>sign in</html>"}, "line 1: label must be a number, got '<html>sign'"),
        ({"train": b"<html>sign in</html>", "suffix": ".bz2"}, "cannot be read: Invalid data stream"),
    ],
)
def test_a_download_unlike_the_catalogue_is_not_kept(serve, tmp_path, wrong, what):
    serve(**wrong)
    (tmp_path / "tiny.svm").write_bytes(b"old")
    refused(tmp_path, "is not the tiny of the catalogue", what)


def test_a_transfer_that_ends_early_leaves_no_file(serve, tmp_path):
    serve(claimed="more")
    refused(tmp_path, f"the connection ended after {len(TEST):,} of {len(TEST) + 100:,} bytes")


def test_a_missing_page_is_named_with_its_status(serve, server, tmp_path):
    serve()
    del server.files["/tiny.t"]
    refused(tmp_path, f"http://127.0.0.1:{server.server_port}/tiny.t answered 404 Not Found")


def test_without_a_network_one_line_says_where_to_put_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/tiny.bz2"
        enlist(monkeypatch, url)
        refused(tmp_path, "refused", "no network", url, str(tmp_path / "tiny.svm.bz2"))


@pytest.mark.parametrize("reached", [1, len(TRAIN) + len(TEST)])
def test_an_interrupted_fetch_leaves_no_file(serve, tmp_path, reached):
    def interrupt(done, _):
        if done >= reached:
            raise KeyboardInterrupt

    serve()
    with pytest.raises(KeyboardInterrupt):
        fetch("tiny", tmp_path, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(serve, tmp_path):
    serve()
    (tmp_path / "taken").write_bytes(b"a file")
    with pytest.raises(ValueError, match=r"taken.tiny\.svm cannot be written: "):
        fetch("tiny", tmp_path / "taken")


@pytest.mark.parametrize("name", ["occupancy", "airquality", "appliances"])
def test_a_dataset_outside_the_collection_says_how_to_make_it_and_where_it_goes(tmp_path, name):
    with pytest.raises(ValueError, match="is not in the LIBSVM collection") as caught:
        fetch(name, tmp_path)
    assert CATALOGUE[name].recipe in str(caught.value)
    assert str(tmp_path / f"{name}.svm") in str(caught.value)


def test_digits_and_unknown_names_are_not_fetched(tmp_path):
    with pytest.raises(ValueError, match="digits ships inside scikit-learn"):
        fetch("digits", tmp_path)
    with pytest.raises(ValueError, match=r"dataset must be one of airquality, .*, got 'lettr'"):
        fetch("lettr", tmp_path)
