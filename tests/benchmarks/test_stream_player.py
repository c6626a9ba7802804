"""The player of streams, by its public interface."""

import numpy as np
from stream_player import Player


def test_a_player_learns_what_a_context_asks_for_though_rewards_are_late():
    player = Player(seed=1)
    rng = np.random.default_rng(0)
    waiting = []
    hits = []
    for t in range(500):
        weather = ["cold", "hot"][t % 2]
        actions = [{"id": "tea", "features": {"hot": True}}, {"id": "juice", "features": {}}, {"id": "soda"}]
        order = rng.permutation(3)
        index, token = player.decide(
            f"u{t % 5}" if t % 3 else None, {"now": {"weather": weather}}, [actions[k] for k in order]
        )
        right = float((order[index] == 0) == (weather == "cold"))
        hits.append(right)
        waiting.append((token, right))
        if t >= 20:
            player.learn(*waiting.pop(0))
    assert np.mean(hits[300:]) > 0.9


def test_equal_seeds_decide_equally():
    def played():
        player = Player(seed=3)
        chosen = []
        for t in range(60):
            index, token = player.decide("anna", {"hour": t % 24}, [{"id": str(k)} for k in range(4)])
            chosen.append(index)
            player.learn(token, float(index == t % 4))
        return chosen

    assert played() == played()
