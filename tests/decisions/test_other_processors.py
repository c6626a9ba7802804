"""The same events give the same bits on other processors: code for any of them, and a C library without fused steps."""

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from fedres.decisions.elementary import exp, log
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of, request_of

OTHER = {
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2,-AVX512F",
}


def digest(n=1_000):
    """Return a digest of all that is predicted and learned: numbers, light entries, drift and a choice of a field."""
    rng, model, owns = np.random.default_rng(7), ResidualKalman(max_blocks=16, choice_events=400), {}
    digest_of_all = hashlib.blake2b(digest_size=16)
    for k in range(n):
        names = rng.choice(90, 12, replace=False)
        context = names + 1, np.where(names % 2, rng.integers(1, 900, size=12) / 7, 1.0)
        ids = rng.integers(40, size=4)
        actions = [((100 + i, 200 + i % 3, 50), (1.0, 1.0, int(rng.integers(1, 99)) / 3), (9, 10, 50)) for i in ids]
        request, user = request_of(context, actions), int(rng.integers(5))
        own = owns.get(user, NO_MODEL)
        prediction = model.predict(request, own)
        digest_of_all.update(prediction.means.tobytes() + prediction.widths.tobytes())
        best = int(np.argmax(prediction.means + prediction.widths))
        reward = float(rng.random() < (0.6 if (ids[best] + k // 700) % 3 == 0 else 0.2))
        (owns[user],) = model.learn(events_of([(request, best, reward, 0)]), [own])
    for _, array in sorted(model.to_arrays().items()):
        digest_of_all.update(array.tobytes())
    for _, own in sorted(owns.items()):
        digest_of_all.update(own.tobytes())
    return digest_of_all.hexdigest()


def test_exp_and_log_are_exact_to_the_last_bits():
    for x in np.random.default_rng(3).uniform(-40, 6, size=2_000).tolist():
        assert exp(x) == pytest.approx(math.exp(x), rel=5e-16)
        assert log(math.exp(x)) == pytest.approx(x, rel=1e-15, abs=2e-16)
    assert (exp(0.0), exp(-math.inf), exp(-800.0), log(1.0)) == (1.0, 0.0, 0.0, 0.0)


@pytest.mark.long
def test_another_processor_learns_the_same_bits(tmp_path):
    environment = os.environ | OTHER | {"NUMBA_CACHE_DIR": str(tmp_path)}
    other = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest()


if __name__ == "__main__":
    print(digest())
