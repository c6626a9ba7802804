"""Opens a device of the class for its learner."""

from __future__ import annotations

import os
from typing import Any

from fedres import checks
from fedres.client.adagrad_device import AdaGradDevice
from fedres.client.device import Device
from fedres.client.kalman_device import NAME, KalmanDevice
from fedres.client.local import LEARNERS


def open_device(folder: str | os.PathLike[str], *, learner: str = NAME, **options: Any) -> Device:
    """Return a device with a learner, which must suit its loop's model."""
    checks.one_of("learner", learner, (NAME, *LEARNERS))
    if learner == NAME:
        return KalmanDevice(folder, **options)
    return AdaGradDevice(folder, learner=learner, **options)
