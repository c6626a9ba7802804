"""What a service loads before it serves."""

import subprocess
import sys

SLOW_TO_LOAD = ("scipy.special", "scipy.optimize", "sklearn", "matplotlib", "vowpalwabbit", "joblib")


def test_a_service_loads_nothing_that_only_experiments_and_devices_need():
    roles = ", ".join(f"service.roles.{role}" for role in ("ranker", "learner", "supervisor"))
    code = f"import sys, {roles}; print([name for name in {SLOW_TO_LOAD} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
