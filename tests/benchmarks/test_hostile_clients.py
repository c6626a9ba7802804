"""The benchmark of hostile clients does what the service does, and runs."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from fedres.scoring.features import Preparer
from fedres.scoring.federated import FederatedModel
from fedres.scoring.model import SharedModel, expand
from service.log.records import RESIDUAL, UPDATE, Entry, UpdateBody
from service.models.adagrad import AdagradShared, DenseShared
from service.models.guard import Defences, Guard
from service.models.loop_metadata import Clients, LoopMetadata
from service.plugins.devices.uploads import Residual, residual_records
from service.rank.requests import Action
from service.settings import Settings

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "hostile_clients.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("hostile_clients", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


def test_an_upload_is_learned_bit_for_bit_as_the_learner_of_the_service_does(bench):
    settings = Settings(model="adagrad", reward_range=(-1.0, 1.0), crosses=False, defences=Defences())
    head, real = LoopMetadata("loop", 1, settings, 1, 1), SharedModel()
    copy, guard, preparer, rng = SharedModel(), Guard(), Preparer(crosses=False), np.random.default_rng(0)
    loop = SimpleNamespace(view=SimpleNamespace(name="loop", created_at=1, version=1, settings=settings), catalogue={})
    for seq in range(1, 401):
        client = int(rng.integers(12))
        x = (rng.normal(size=5) * 10 ** rng.uniform(-1, 3 if client < 2 else 0)).astype(np.float32)
        label, local = float(rng.choice([-1.0, 1.0])), float(rng.normal() * (1e6 if client < 2 else 0.5))
        context = json.dumps({"x": x.tolist()}).encode()
        sent = Residual(seq, 1, msgspec.Raw(context), Action("own", msgspec.Raw(b"{}")), local, label)
        [record] = residual_records(loop, str(client), [sent], preparer)
        AdagradShared(real).learn_upload(Entry("loop", seq, seq, RESIDUAL, *record[2:]), head)
        keys, values = expand(Preparer(crosses=False).prepare(context, [("own", b"{}")]), 0)
        bench.learn_residual(bench.Upload(client, values, label, local), keys, copy, guard, Defences())
    assert copy.to_bytes() == real.to_bytes()
    assert guard == head.guard
    assert np.count_nonzero(real.weights) > 5


@pytest.mark.parametrize("how", ["mean", "median"])
def test_a_gradient_is_taken_in_bit_for_bit_as_the_learner_of_the_service_does(bench, how):
    defences, size = Defences(combine=how), {"n_clients": 12, "step_size": 0.1}
    settings = Settings(model="adagrad", global_learner="fedogd", bits=3, hyperparameters=size, defences=defences)
    clients = Clients({str(i): i for i in range(12)}, 12)
    head = LoopMetadata("loop", 1, settings, 1, 1, clients=clients)
    real, copy = FederatedModel("fedogd", 3, size), FederatedModel("fedogd", 3, size)
    guard, rng = Guard(), np.random.default_rng(0)
    for seq in range(1, 200):
        client = int(rng.integers(12))
        gradient = rng.normal(size=9).astype("<f4") * (1e6 if client < 2 else 1)
        body = msgspec.msgpack.encode(UpdateBody(client, seq, 0, "gradient", gradient.astype("<f4").tobytes()))
        entry = Entry("loop", seq, seq, UPDATE, f"{client}/{seq}", str(client), None, body)
        DenseShared(real).learn_upload(entry, head)
        bench.learn_gradient(client, gradient, seq, copy, guard, defences, 12)
    assert copy.to_bytes() == real.to_bytes()
    assert guard == head.guard
    assert 0 < np.abs(real.weights).max() < 100


@pytest.mark.parametrize("uploads", ["residuals", "gradients"])
def test_the_defences_hold_against_an_attack_that_ruins_an_undefended_model(bench, uploads):
    attack, how = ("drift, flood" if uploads == "residuals" else "reverse, flood"), "default"
    size = {"uploads": uploads, "clients": 20, "rounds": 40}
    clean = bench.play(bench.Case("digits", 0, **size))
    lost = {}
    for defences in ("none", how):
        case = bench.Case("digits", 0, attack=attack, hostile=4, defences=defences, **size)
        lost[defences] = (clean - bench.play(case))[bench.Fleet(case).honest].mean()
    assert lost["none"] > lost[how] + 0.1


def test_the_quick_run_prints_a_table_and_writes_every_figure(bench, tmp_path, monkeypatch, capsys):
    out = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, "digits", "--quick", "--seeds", "1", "--json", str(out)])
    bench.main()
    assert "worst" in capsys.readouterr().out
    figures = json.loads(out.read_text())
    assert len(figures) == 2 * (3 + 2) + 4 * (3 + 2)
    clean = [x for x in figures if x["attack"] == "nobody" and x["defences"] == "none"]
    assert all(x["lost"] == 0 for x in clean)
    assert all(x["accuracy"] > 0.6 for x in clean if x["fleet"] == "alike")
