"""Problems to replay."""

import numpy as np
import pytest

from bandits.streams import CHUNK, Layout, Multiclass, Realizable

SMALL = Realizable(n_rounds=300, n_clients=30, n_actions=4, shared_dim=3, private_dim=2, seed=5)


def joined(stream):
    return [np.concatenate(part) for part in zip(*stream, strict=True)]


def test_a_stream_read_twice_gives_the_same_rounds():
    for one, two in zip(joined(SMALL), joined(SMALL), strict=True):
        assert one.tolist() == two.tolist()


def test_chunks_are_small_and_complete():
    sizes = [len(chunk.rewards) for chunk in SMALL]
    assert sum(sizes) == 300
    assert max(sizes) * 30 <= CHUNK
    assert [len(c.rewards) for c in Realizable(n_rounds=2, n_clients=CHUNK + 1, n_actions=2)] == [1, 1]


def test_expected_rewards_are_the_models_and_rewards_follow_them():
    shared, private, rewards, expected = joined(SMALL)
    w, own = SMALL.weights()
    assert np.linalg.norm(w) == pytest.approx(0.3)
    assert np.linalg.norm(own, axis=1) == pytest.approx(np.full(30, 0.2))
    assert expected == pytest.approx(0.5 + shared[..., :-1] @ w + np.einsum("rpkd,pd->rpk", private[..., 3:], own))
    assert set(np.unique(rewards)) == {0, 1}
    assert 0 <= expected.min() < expected.max() <= 1
    z = (rewards - expected).sum() / np.sqrt((expected * (1 - expected)).sum())
    assert abs(z) < 4.5


def test_personal_models_see_the_shared_features_too():
    shared, private, _, _ = joined(SMALL)
    assert private[..., :3].tolist() == shared[..., :-1].tolist()
    assert (shared[..., -1] == 1).all()
    assert np.linalg.norm(shared[..., :-1], axis=-1) == pytest.approx(np.ones(shared.shape[:-1]))
    assert (SMALL.shared.width, SMALL.private.width) == (shared.shape[-1], private.shape[-1])


def test_seeds_make_other_problems():
    other = Realizable(n_rounds=300, n_clients=30, n_actions=4, shared_dim=3, private_dim=2, seed=6)
    assert joined(SMALL)[0].tolist() != joined(other)[0].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_rounds": 0}, "n_rounds must be an integer of at least 1, got 0"),
        ({"n_clients": 1.5}, "n_clients must be an integer of at least 1, got 1.5"),
        ({"shared_norm": 0.4}, r"add up to at most 0.5, got \(0.4, 0.2\)"),
        ({"personal_norm": float("nan")}, "must be at least 0"),
        ({"personal_norm": -0.1}, "must be at least 0"),
    ],
)
def test_impossible_problems_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        Realizable(**{"n_rounds": 1, "n_clients": 1, **options})


def test_the_right_class_under_a_clients_own_name_earns_one():
    features, label = np.arange(12.0).reshape(4, 3), np.array([0, 1, 2, 1])
    table = np.array([[0, 1], [2, 3]])
    names = np.array([[0, 1, 2], [2, 0, 1]])
    stream = Multiclass(features, label, table, names, np.array([0, 2]), np.array([1]))
    (chunk,) = stream
    assert chunk.rewards.tolist() == [[[1, 0, 0], [1, 0, 0]], [[0, 0, 1], [1, 0, 0]]]
    assert chunk.shared[:, :, 0].tolist() == [[[0, 2, 1], [3, 5, 1]], [[6, 8, 1], [9, 11, 1]]]
    assert chunk.private[:, :, 0].tolist() == [[[1, 1], [4, 1]], [[7, 1], [10, 1]]]
    assert (stream.n_rounds, stream.n_clients, stream.n_actions) == (2, 2, 3)
    assert stream.shared.dim(3) == 9


def test_a_layout_makes_actions_that_share_weights_or_have_their_own():
    together, apart = Layout(2, 0).actions(3, np.ones((3, 2))), Layout(2, 2).actions(3, np.ones((1, 2)))
    assert (together.dim, apart.dim) == (2, 6)
    assert apart.take(2).shift == 4
