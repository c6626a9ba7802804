"""Which model devices get: all of it, or what changed since the one they have."""

import asyncio
import zlib

import numpy as np
from device_uploads import hosted, residual, some_residuals
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import running
from playing import weights
from safetensors import safe_open
from safetensors.numpy import load

from service.learn.weight_history import WeightHistory


def weights_of(model):
    return load(model)["weights"]


def facts(folder, model):
    """Return the metadata of a model."""
    (folder / "model").write_bytes(model)
    with safe_open(folder / "model", "numpy") as file:
        return file.metadata()


def patched(weights, delta):
    """Return weights as a device has them after a delta, or after a whole model."""
    parts = load(delta)
    if "weights" in parts:
        return parts["weights"]
    changed = weights.copy()
    changed[parts["indices"]] = parts["values"]
    return changed


def test_a_delta_on_any_older_version_gives_the_new_weights_to_the_bit(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            rng, weights_at = np.random.default_rng(0), {0: np.zeros(2**18 + 1, np.float32)}
            for k in range(8):
                version, model, _ = await engine.federated_model("default")
                weights_at[version] = weights_of(model)
                for since, old in weights_at.items():
                    delta = (await engine.federated_model("default", since))[1]
                    assert patched(old, delta).tobytes() == weights_at[version].tobytes()
                    assert len(delta) < 10_000
                await engine.residuals("default", "phone", some_residuals(rng, version, 3, 10 * k + 1))
                await hosted(engine, "default", rng, k % 3)
                await engine.settle()
            assert len(weights_at) == 9

    asyncio.run(story())


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_a_history_knows_all_that_changed_since_each_version(seed, n):
    rng, published = np.random.default_rng(seed), [(1, np.zeros(20, np.float32))]
    history = WeightHistory(*published[0])
    for version in range(2, n + 2):
        weights = published[-1][1].copy()
        weights[rng.integers(20, size=3)] = rng.choice(np.array([0.0, -0.0, 1.0, np.nan], np.float32), size=3)
        published.append((10 * version, weights))
        history.add(*published[-1])
    for version, weights in published:
        changed = history.since(version)
        patch = weights.copy()
        patch[changed] = published[-1][1][changed]
        assert patch.tobytes() == published[-1][1].tobytes()
    assert history.start == 1
    assert history.since(published[-1][0]).size == 0


def test_the_whole_model_is_sent_where_changes_are_not_known(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            await engine.federated_model("default")
            await engine.residuals("default", "phone", [residual()])
            await engine.settle()
            version, whole, tag = await engine.federated_model("default")
            delta = (await engine.federated_model("default", 1)).body
            assert facts(tmp_path, whole) == {
                "version": "2", "bits": "18", "low": "0.0", "high": "1.0", "newest": "0",
                "crc32": str(zlib.crc32(load(whole)["weights"])),
            }  # fmt: skip
            assert facts(tmp_path, delta)["crc32"] == facts(tmp_path, whole)["crc32"]
            assert facts(tmp_path, delta)["since"] == "1"
            assert load((await engine.federated_model("default", version))[1])["indices"].size == 0
            assert (await engine.federated_model("default", 99))[1] == whole
        async with running(tmp_path, model="adagrad") as engine:
            assert (await engine.federated_model("default", 1)) == (version, whole, tag)
            assert load((await engine.federated_model("default", version))[1])["indices"].size == 0
            await engine.residuals("default", "phone", [residual(2)])
            await engine.settle()
            assert "indices" in load((await engine.federated_model("default", version))[1])

    asyncio.run(story())


def test_a_model_that_mostly_changed_is_sent_whole(tmp_path):
    async def story():
        async with running(tmp_path, model="adagrad") as engine:
            await engine.create_loop("small", {"model": "adagrad", "bits": 3})
            await engine.federated_model("small")
            sent = some_residuals(np.random.default_rng(0), engine.view("small").version, 20, 1)
            await engine.residuals("small", "phone", sent)
            await engine.settle()
            assert np.count_nonzero(weights(engine, "small")) > 4
            assert "weights" in load((await engine.federated_model("small", 0))[1])

    asyncio.run(story())
