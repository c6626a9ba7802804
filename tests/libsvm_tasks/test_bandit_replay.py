"""Bandits on a dataset: the schemes side by side."""

import json

import numpy as np
import pytest

from bandits.evaluation import read_events
from libsvm_tasks.bandit_log import write_log
from libsvm_tasks.bandit_replay import Setup, make_scheme, run

SCHEMES = ("independent", "central", "fedres")


def rewards(setup, policy="epsilon-greedy", **options):
    result = run(setup, [make_scheme(scheme, policy, options) for scheme in SCHEMES], jobs=1)
    return {row.scheme.scheme: row.reward for row in result.results}


@pytest.mark.slow
def test_fedres_is_ahead_of_both_baselines_where_clients_differ_in_part():
    got = rewards(Setup("digits", clients=50, rounds=1500, rollouts=2, task="permuted"))
    assert (got["fedres"] - got["independent"]).min() > 0.03
    assert (got["fedres"] - got["central"]).min() > 0.03


@pytest.mark.slow
@pytest.mark.parametrize("features", ["half", "all"])
def test_fedres_is_close_to_central_where_all_clients_have_the_same_task(features):
    got = rewards(Setup("digits", 50, 1500, 2, "same", features))
    assert (got["fedres"] - got["central"]).mean() > -0.03
    assert (got["fedres"] - got["independent"]).min() > 0.1


def one_pass(policy, **options):
    setup = Setup("digits", clients=1, rounds=1797, rollouts=5)
    return run(setup, [make_scheme("independent", policy, options)], jobs=1).results[0].reward


def test_linucb_earns_on_digits_what_the_best_peers_do():
    assert one_pass("linucb").mean() > 0.80


@pytest.mark.parametrize("policy", ["epsilon-greedy", "squarecb"])
def test_first_order_policies_earn_more_on_digits_than_vw_at_its_defaults(policy):
    assert one_pass(policy).mean() > 0.66  # VW: .54 at best; a tuned AdaGrad: .74


def test_vw_itself_and_its_twin_decide_alike():
    setup = Setup("digits", clients=3, rounds=12, rollouts=1)
    linear, vw = (
        run(setup, [make_scheme("fedres", "epsilon-greedy", {}, local_learner=name)], jobs=1).results[0]
        for name in ("linear", "vw")
    )
    assert np.array_equal(linear.reward_curve, vw.reward_curve)


def test_results_do_not_depend_on_jobs_and_an_interrupted_run_goes_on(tmp_path):
    setup = Setup("digits", clients=2, rounds=60, rollouts=3)
    schemes = [make_scheme("fedres", "squarecb", {})]
    journal = tmp_path / "journal.jsonl"
    alone = run(setup, schemes, jobs=1, journal=journal)
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:2]) + "\n" + lines[2][:40])  # cut off in the middle of a line
    assert len(lines) == 3
    again = run(setup, schemes, jobs=2, journal=journal)
    assert np.array_equal(alone.results[0].reward_curve, again.results[0].reward_curve)


def test_the_json_has_what_readers_were_promised():
    result = run(Setup("digits", 2, 100, 2), [make_scheme(s, "epsilon-greedy", {}) for s in SCHEMES], jobs=1)
    content = json.loads(json.dumps(result.to_json()))
    head = {"dataset", "clients", "samples_per_client", "rounds", "rollouts", "seed", "results"}
    assert head <= content.keys()
    row = {"scheme", "policy", "global_learner", "local_learner", "delay", "reward_mean", "reward_se", "regret_mean"}
    for entry in content["results"]:
        assert row | {"seconds"} <= entry.keys()
        assert entry["reward_mean"] == pytest.approx(1 - entry["regret_mean"])
        assert (entry["model"], entry["global_learner"]) == ("adagrad", "fedres-adagrad")


def test_the_json_names_learners_only_of_the_model_that_has_them():
    result = run(
        Setup("digits", 2, 20, 1, shared_features="all"), [make_scheme("fedres", "optimistic-squarecb", {})], jobs=1
    )
    [entry] = result.to_json()["results"]
    assert (entry["model"], entry["global_learner"], entry["local_learner"]) == ("residual-kalman", None, None)


def test_a_written_log_reads_back_with_the_probabilities_of_the_replay(tmp_path):
    setup = Setup("digits", 2, 40, 1)
    scheme, stream = make_scheme("fedres", "epsilon-greedy", {"epsilon": 0.5}), setup.stream(0)
    outcome = scheme.play(stream, 0)
    write_log(tmp_path / "log.jsonl", stream, outcome)
    events = list(read_events(tmp_path / "log.jsonl"))
    assert [event.probability for event in events] == outcome.probability.ravel().tolist()
    assert [event.reward for event in events] == outcome.reward.ravel().tolist()
    assert [event.chosen for event in events] == outcome.action.ravel().tolist()
