import math
import subprocess
import sys

import numpy as np
import pytest
from vowpalwabbit import Workspace

from fedres.local_learners import vw
from fedres.local_learners.vw import VWLearner

X = [1.0, 2.0]


def random_examples(seed, dim=8, n=100):
    rng = np.random.default_rng(seed)
    return list(zip(rng.normal(size=(n, dim)), rng.choice([-1.0, 1.0], n), rng.normal(size=n), strict=True))


def teach(learner, examples):
    for x, label, offset in examples:
        learner.learn(x, label, offset)


def plain_vw(examples):
    """Yield what a workspace without any of our settings predicts before it learns each example."""
    exactly = lambda number: float(np.float32(number)).hex()  # noqa: E731
    with Workspace("--adaptive --quiet") as workspace:
        for x, label, offset in examples:
            example = workspace.example({"x": list(enumerate(x.tolist()))})
            example.set_label_string(f"{exactly(label)} 1 {exactly(offset)}")
            workspace.learn(example)
            yield example.get_simplelabel_prediction()
            workspace.finish_example(example)


@pytest.mark.parametrize("bits", [10, 18])
def test_predictions_are_those_of_a_plain_workspace(bits):
    examples = random_examples(0, n=1000)
    with VWLearner(bits=bits) as learner:
        for (x, label, offset), expected in zip(examples, plain_vw(examples), strict=True):
            learner.see(label)  # the plain workspace has, when it predicts
            assert learner.predict(x, offset) == expected
            learner.learn(x, label, offset)


def test_predicting_and_scoring_do_not_learn():
    with VWLearner() as learner:
        teach(learner, random_examples(1))
        before = learner.get_state()
        learner.predict(np.ones(8), 0.5)
        learner.score(np.ones(8))
        assert learner.get_state() == before


def test_only_the_joint_prediction_is_clamped():
    with VWLearner() as learner:
        learner.learn([2.0], label=1.0)
        assert learner.score([2.0]) == 30.0
        assert learner.predict([2.0]) == 1.0
        assert learner.predict([2.0], offset=-29.5) == 0.5


def test_a_correction_leaves_the_range_of_predictions_alone_and_seeing_a_label_widens_it():
    with VWLearner() as learner:
        learner.correct([1.0], slope=-7.0)
        assert learner.label_range == (0.0, 0.0)
        assert learner.predict([1.0]) == 0.0
        learner.see(3.0)
        assert learner.predict([1.0]) == 3.0


@pytest.mark.parametrize("arguments", ["", "--l1 1e-3", "--l2 1e-3", "--power_t 0.4", "--l1=1e-4 --l2=1e-4"])
def test_a_correction_with_the_slope_of_now_is_what_learning_does(arguments):
    with VWLearner(0.3, arguments) as learner, VWLearner(0.3, arguments) as corrected:
        for x, label, offset in random_examples(7):
            learner.see(label)
            slope = 2 * (learner.predict(x, offset) - label)
            learner.learn(x, label, offset)
            corrected.correct(x, slope)
            assert corrected.score(x) == learner.score(x)


@pytest.mark.parametrize("corrected", [False, True])
def test_a_learner_that_was_saved_and_loaded_is_as_if_it_had_never_stopped(tmp_path, corrected):
    examples = random_examples(2, n=200)
    with VWLearner(0.3, "--l2 1e-4") as learner:
        teach(learner, examples[:100])
        if corrected:
            learner.correct(examples[0][0], slope=3.0)
        learner.save(tmp_path / "model")
        with VWLearner.load(tmp_path / "model") as loaded:
            for x, label, offset in examples[100:]:
                assert loaded.predict(x, offset) == learner.predict(x, offset)
                learner.learn(x, label, offset)
                loaded.learn(x, label, offset)
            assert loaded.get_state() == learner.get_state()
            assert loaded.label_range == learner.label_range == (-1.0, 1.0)


def test_a_state_set_replaces_what_was_learned():
    with VWLearner() as learner, VWLearner() as other:
        teach(learner, random_examples(3))
        teach(other, random_examples(4))
        other.set_state(learner.get_state())
        assert other.get_state() == learner.get_state()
        assert other.score(np.ones(8)) == learner.score(np.ones(8))


def test_saving_over_a_file_replaces_it_and_leaves_nothing_else(tmp_path):
    with VWLearner() as learner:
        learner.save(tmp_path / "model")
        learner.learn(X, 1.0)
        learner.save(tmp_path / "model")
        assert (tmp_path / "model").read_bytes() == learner.get_state()
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_a_failed_save_leaves_no_part_of_a_file(tmp_path):
    (tmp_path / "model").mkdir()
    with VWLearner() as learner, pytest.raises(OSError, match="model"):
        learner.save(tmp_path / "model")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_a_damaged_state_is_refused_and_the_learner_goes_on():
    with VWLearner() as learner:
        teach(learner, random_examples(5))
        good = learner.get_state()
        for at in range(0, len(good), 3):
            bad = bytearray(good)
            bad[at] ^= 1
            for state in (bytes(bad), good[:at]):
                with pytest.raises(ValueError, match="state must"):
                    learner.set_state(state)
        assert learner.get_state() == good


def test_a_state_of_other_bits_or_arguments_is_refused():
    with VWLearner(bits=10) as learner, VWLearner(bits=10, arguments="--l2 0.1") as regularised:
        with VWLearner(bits=12) as other, pytest.raises(ValueError, match="state must have bits 12"):
            other.set_state(learner.get_state())
        with pytest.raises(ValueError, match=r"arguments '--l2 0\.1'"):
            regularised.set_state(learner.get_state())


REFUSED = [
    ([1.0, math.nan], "features must be finite in 32 bits, got nan"),
    ([1.0, 1e39], r"features must be finite in 32 bits, got 1e\+39"),
    ([[1.0]], "features must have one dimension"),
    (([1023], [1.0]), r"indices must be in \[0, 1023\), got 1023"),
    (([-1], [1.0]), r"indices must be in \[0, 1023\), got -1"),
    (([348], [1.0]), "indices must leave out 348"),
    (np.ones(349), "indices must leave out 348"),
]


@pytest.mark.parametrize(("features", "message"), REFUSED)
def test_features_outside_the_rules_are_refused_and_nothing_changes(features, message):
    with VWLearner(bits=10) as learner:
        teach(learner, random_examples(6))
        before = learner.get_state()
        for call in (
            learner.score,
            learner.predict,
            lambda x: learner.learn(x, 9.0),
            lambda x: learner.correct(x, 1.0),
        ):
            with pytest.raises(ValueError, match=message):
                call(features)
        assert learner.get_state() == before


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e39])
def test_labels_offsets_and_slopes_that_are_not_finite_are_refused_and_nothing_changes(wrong):
    with VWLearner() as learner:
        before = learner.get_state()
        for name, call in {
            "label": lambda: learner.learn(X, wrong),
            "offset": lambda: learner.learn(X, 9.0, wrong),
            "slope": lambda: learner.correct(X, wrong),
        }.items():
            with pytest.raises(ValueError, match=f"{name} must be finite in 32 bits, got"):
                call()
        with pytest.raises(ValueError, match="offset must be finite"):
            learner.predict(X, wrong)
        with pytest.raises(ValueError, match="label must be finite"):
            learner.see(wrong)
        assert learner.get_state() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
        ({"bits": 31}, "bits must be at most 30, got 31"),
        ({"bits": 1}, "bits must be an integer of at least 2, got 1"),
        ({"arguments": "--l2 much"}, "arguments must be understood by VW"),
        ({"arguments": "--loss_function logistic"}, "arguments must be among --l1, --l2, --power_t, got"),
        ({"arguments": "-b 10"}, "arguments must be among"),
    ],
)
def test_settings_outside_the_rules_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        VWLearner(**settings)


def test_a_closed_learner_says_so():
    learner = VWLearner()
    learner.close()
    learner.close()
    for call in (
        lambda: learner.score(X),
        lambda: learner.predict(X),
        lambda: learner.learn(X, 1.0),
        lambda: learner.correct(X, 1.0),
        lambda: learner.see(1.0),
        learner.get_state,
        lambda: learner.set_state(b""),
    ):
        with pytest.raises(RuntimeError, match="this VWLearner is closed"):
            call()


WORK = """
import resource
from fedres.local_learners.vw import VWLearner

def work(times):
    with VWLearner() as learner:
        for _ in range(times):
            learner.learn([1.0, 2.0], 1.0)
            learner.correct([1.0, 2.0], 0.5)
            learner.predict([1.0, 2.0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = max(work(10) for _ in range(10))
print(max(work(10_000), *(work(10) for _ in range(200))) / before)
"""


def test_examples_and_workspaces_are_freed():
    """In a process of its own, whose peak no other test has raised; 200 workspaces take 150 MB."""
    growth = subprocess.run([sys.executable, "-c", WORK], capture_output=True, check=True, text=True).stdout
    assert float(growth) < 1.1


@pytest.mark.parametrize(
    ("machine", "flags", "lacks"),
    [
        ("x86_64", "flags\t\t: fpu sse2 avx avx2 bmi2", False),
        ("x86_64", "flags\t\t: fpu sse2 avx", True),
        ("AMD64", "flags\t\t: fpu sse2 avx", True),
        ("aarch64", "Features\t: fp asimd", False),
        ("x86_64", "model name: unknown", False),
    ],
)
def test_an_x86_processor_without_avx2_is_told_before_vw_is_imported(tmp_path, monkeypatch, machine, flags, lacks):
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\n{flags}\n")
    assert vw.lacks_avx2(machine, info) is lacks
    assert not vw.lacks_avx2(machine, tmp_path / "missing")
    monkeypatch.setattr(vw, "CPU_INFO", info)
    monkeypatch.setattr(vw.platform, "machine", lambda: machine)
    if lacks:
        with pytest.raises(ImportError, match="needs a processor with AVX2"):
            VWLearner()
    else:
        VWLearner().close()
