"""A few real devices with slow, lossy links, killed now and then, do as the simulation with the same delays does."""

import pytest


def test_devices_over_http_do_as_the_simulation(run_benchmark):
    size = ["--devices", "2", "--rounds", "24", "--kills", "1", "--latency", "0.15", "--loss", "0.2", "--runs", "1"]
    size += ["--round-seconds", "0.05"]
    figures = run_benchmark("device_fleet", *size)
    assert abs(figures["real - simulated"]["mean"]) < 0.01  # of 200 test rows one, where rounding decides
    assert figures["local predictions differ by"] < 1e-3
    assert figures["delay in rounds"]["max"] > 0
    assert figures["killed"] == 1


@pytest.mark.long
def test_devices_with_the_default_model_upload_in_bursts_and_every_round_arrives(run_benchmark):
    size = ["--devices", "2", "--rounds", "20", "--kills", "0", "--latency", "0.1", "--loss", "0.2", "--runs", "1"]
    size += ["--round-seconds", "0.05", "--learner", "residual-kalman", "--burst", "6"]
    figures = run_benchmark("device_fleet", *size)
    assert figures["real"]["mean"] > 0.7  # the benchmark itself asserts that each round was uploaded once
