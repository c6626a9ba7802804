"""The benchmark measures what it says."""

import asyncio

import pytest
from service.engine import Engine

from service import bench
from service.load_generator import USER, Load, generate, rank_bodies


def test_every_server_answers_the_load_and_is_compared_with_the_bare_one(monkeypatch):
    monkeypatch.setattr(bench, "WARM_UP", 0.3)
    monkeypatch.setitem(bench.N_LISTS, "rank-new-lists", 200)
    rows = bench.measure_speed(rounds=1, seconds=0.3)
    assert [row["what"] for row in rows] == ["bare", "fastapi", "rank", "rank-new-lists"]
    assert rows[0]["throughput_ratio"] == rows[0]["p99_ratio"] == 1
    for row in rows:
        assert row["throughput_ratio"] == row["per_second"] / rows[0]["per_second"]
        assert 0 < row["p50"] <= row["p99"]
        assert 0 < row["cpu_share"] <= 1.1
        assert row["server_cpu"] > 0
    rows[-1]["personal_model"] = bench.measure_memory(n_models=10)
    assert bench.table(rows).row_count == 4


def test_a_refusal_ends_the_load_with_its_reason(tmp_path):
    with (
        bench.serving("rank", tmp_path / "s.db") as served,
        pytest.raises(RuntimeError, match="unknown_loop"),
    ):
        generate(Load(served.port, "/v1/loops/none/rank", rank_bodies(1), 1, 1, 30.0))


def test_bodies_have_4_kb_and_ten_actions_with_twenty_features():
    for body in rank_bodies(5):
        assert 3_900 < len(body) < 4_400
        assert body.count(b'"id"') == 10
        assert body.count(b'"feature') == 10 * 20 + 9 + 10  # names, and "features" of each action
        assert body.count(b'"moment":0.000000') == 1


def test_models_put_into_a_store_are_served_and_take_the_bytes_measured(tmp_path):
    bench.fill(tmp_path / "s.db", n_users=120, n_features=50)

    async def look():
        engine = Engine.open(tmp_path / "s.db")
        try:
            return engine.user_model("default", USER % 119), engine.status()["rebuilt"]
        finally:
            await engine.close()

    model, rebuilt = asyncio.run(look())
    assert (len(model["weights"]), rebuilt) == (50, 0)
    sizes = bench.measure_memory(n_features=100, n_models=50)
    assert sizes["file"] == 20 + 12 * 100
    assert 1_500 < sizes["memory"] <= 2_048
