"""Streams of decisions that are played through a service over HTTP."""

import pytest
from live import run_service

from libsvm_tasks.decisions import suite
from libsvm_tasks.decisions.http_player import HttpPlayer, json_actions


@pytest.mark.parametrize("stream", ["news", "raw", "words", "coupons"])
def test_a_stream_is_decided_and_learned_by_a_loop_of_its_own_that_is_gone_afterwards(tmp_path, stream):
    with run_service(tmp_path) as live:
        player = HttpPlayer(live.url)
        figure = suite.play(suite.STREAMS[stream], player, seed=11, events=60)
        live.run(live.engine.settle)
        [name] = [name for name in live.engine.loops() if name.startswith("played-")]
        sums = live.engine.view(name).statistics
        assert (sums.ranks, sums.rewarded) == (60, 59)  # the last reward arrives after the last round
        assert live.engine.context.loop(name).n_learned == 59
        player.close()
        assert live.engine.loops() == ["default"]
    assert -1 < figure < 1


def test_actions_with_one_id_are_told_apart_by_their_place():
    assert json_actions([{"_id=a": 1.0, "price": 2.0}, {"_id=a": 1.0}]) == [
        {"id": "0", "features": {"kind": "a", "price": 2.0}},
        {"id": "1", "features": {"kind": "a"}},
    ]
