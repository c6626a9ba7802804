"""The TypeScript client against a real service, by Node's own test runner; and that its types are not stale."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
import safetensors.numpy
from needs import needs_node, needs_program, npm_folder
from proxies import DROP, MUTE, PASS, REPEAT, TWICE, FaultyProxy
from waiting import LIMIT

from fedres.decisions.kalman_document import read_document, read_metadata, write_document
from fedres.decisions.kalman_kernels import predict
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of, fixed, request_of

FOLDER = Path(__file__).parents[2] / "clients" / "typescript"


@needs_node
def test_the_client_keeps_its_word_in_node(live):
    live.make_loop("typescript")
    rng = random.Random(5)
    fault = lambda request: rng.choices([PASS, DROP, MUTE, TWICE, REPEAT], [6, 1, 1, 1, 1])[0]  # noqa: E731
    with FaultyProxy(live.address, fault) as proxy:
        env = {**os.environ, "FEDRES_URL": live.url, "FEDRES_FAULTY_URL": proxy.url, "FEDRES_LOOP": "typescript"}
        command = ["node", "--test", "--test-reporter", "tap"]
        done = subprocess.run(command, cwd=FOLDER, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = re.findall(r"decided (\[\[.*\]\])", done.stdout)
    entries = live.engine.logged("typescript")
    assert sorted(entry.event for entry in entries if entry.kind == "rank") == sorted(
        name for name, _ in json.loads(line)
    )
    assert len({(entry.event, entry.example) for entry in entries if entry.kind == "reward"}) == 40


PREDICT = """
import { readDocument } from "./kalman.js";
const { told, arrays, hashes, starts } = JSON.parse(process.argv[1]);
const typed = { float64: Float64Array, float32: Float32Array, uint32: Uint32Array, int32: Int32Array };
const { shared } = readDocument(told, (name) => typed[arrays[name][0]].from(arrays[name][1]));
const request = { hashes, values: hashes.map(() => 1), fields: hashes.map(() => 9) };
console.log(JSON.stringify(shared.predict(request, starts[0], starts)));
"""


@needs_node
def test_a_shared_model_whose_blocks_made_room_predicts_as_in_python():
    model, rng = ResidualKalman(max_blocks=6, choice_events=0), np.random.default_rng(25)
    names = 100 + rng.integers(20, size=400)
    requests = [request_of(([5, 6 + k % 3], [1.0, 1.0]), [([name], [1.0], [9])]) for k, name in enumerate(names)]
    model.learn(events_of([(now, 0, float(name % 2), -1) for now, name in zip(requests, names, strict=True)]))
    payload = write_document(model.shared, 1, "1-x", 400)
    assert read_document(payload).shared.block_keys.size == 6
    request = request_of(([5, 7], [1.0, 1.0]), [([name], [1.0], [9]) for name in range(100, 125)])
    arrays = {name: (str(a.dtype), a.ravel().tolist()) for name, a in safetensors.numpy.load(payload).items()}
    text = {"told": read_metadata(payload), "arrays": arrays}
    text |= {"hashes": request.hashes.tolist(), "starts": request.starts.tolist()}
    command = ["node", "--input-type=module", "-e", PREDICT, json.dumps(text)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=LIMIT, check=True)
    rows, parts = json.loads(done.stdout), np.empty((25, 3))
    predict(read_document(payload).shared, NO_MODEL, False, fixed(request), parts)
    assert [row["mean"] for row in rows] == pytest.approx(parts[:, 0].tolist(), abs=1e-9)
    assert [row["variance"] for row in rows] == pytest.approx(parts[:, 2].tolist(), abs=1e-9)
    assert parts[:, 0] == pytest.approx(model.predict(request).shared, abs=1e-5)


@needs_node
def test_the_examples_of_its_readme_run(live):
    examples = re.findall(r"```js\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) == 3
    live.make_loop("readme", model="residual-kalman")  # as the loop default of a new store
    for example in examples:
        code = example.replace("http://127.0.0.1:8000", live.url).replace('"browser-7"', '"browser-7", loop: "readme"')
        command = ["node", "--input-type=module", "--eval", code]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stderr
        device = r"\{ sent: 1, dropped: 0, version: \d+, trouble: null \}"
        assert re.match(rf"(tea|juice) false|juice 1|{device}", done.stdout)


@needs_node
def test_the_examples_of_its_guide_run(live):
    page = FOLDER.parents[1] / "docs" / "guides" / "typescript-client.md"
    examples = re.findall(r"```js\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) == 5
    for example in examples:
        command = ["node", "--input-type=module", "--eval", example.replace("http://127.0.0.1:8000", live.url)]
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("shows ")


def test_its_types_are_those_of_the_service():
    command = [sys.executable, str(FOLDER / "generate_types.py"), "--check"]
    assert forked.run(command).returncode == 0, "run generate_types.py"


STRICT = ("--strict", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess", "--noEmit")
TARGET = ("--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom,dom.iterable", "--skipDefaultLibCheck")
COMMON_JS = ("--target", "es2022", "--module", "nodenext", "--lib", "esnext,dom", "--skipDefaultLibCheck")


@pytest.fixture(scope="module")
def tsc():
    """Return the compiler of TypeScript, in a folder where the client can be imported."""
    return npm_folder("typescript", "typescript@5.9.3") / "node_modules" / ".bin" / "tsc"


@needs_node
def test_what_callers_write_compiles_with_all_strict_checks(tsc, tmp_path):
    """The programs of usage.ts and required.cts, and the handler of the guide for Next.js as a route.ts."""
    guide = (FOLDER.parents[1] / "docs" / "guides" / "integrate.md").read_text(encoding="utf-8")
    [handler] = re.findall(r"```js\n(.*?)```", guide, flags=re.DOTALL)
    declared = "declare const process: { env: { [name: string]: string | undefined } };\n"
    (tmp_path / "route.ts").write_text(declared + handler.replace("(request)", "(request: Request)"))
    shutil.copy(Path(__file__).with_name("usage.ts"), tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "fedres").symlink_to(FOLDER)
    shutil.copy(Path(__file__).with_name("required.cts"), tmp_path)
    for target in ([*TARGET, "route.ts", "usage.ts"], [*COMMON_JS, "required.cts"]):
        command = ["node", str(tsc), *STRICT, *target]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert done.returncode == 0, done.stdout


@needs_program("npm")
def test_the_package_has_its_license_and_no_tests(tmp_path):
    command = ["npm", "pack", "--dry-run", "--json", str(FOLDER)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=True)
    files = {file["path"] for file in json.loads(done.stdout)[0]["files"]}
    assert {"LICENSE", "README.md", "fedres.js", "inputs.js", "fedres.d.ts", "testing.js", "testing.d.ts"} <= files
    assert not [file for file in files if file.startswith(("test/", "run_tests"))]
    assert (FOLDER / "LICENSE").read_text() == (FOLDER.parents[1] / "LICENSE").read_text()


@needs_node
def test_npm_test_without_a_service_says_in_one_line_what_it_needs(tmp_path):
    shutil.copy(FOLDER / "run_tests.mjs", tmp_path)
    env = {name: value for name, value in os.environ.items() if name != "FEDRES_URL"} | {"PATH": str(tmp_path)}
    command = [shutil.which("node"), "run_tests.mjs"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "set FEDRES_URL" in done.stderr
