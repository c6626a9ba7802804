"""A device that is killed again and again: python killed_device.py FOLDER LEARNER RULE TIMING SEED

A place to be killed at is a call of a function, in Python or in C, counted from the start of a process; it comes later
with every kill, so that this ends. Fails unless
the device thinks the same in the end as one that was never killed; prints how often it was.
"""

import os
import random
import signal
import sys
from pathlib import Path

from network import Driven, payload

from fedres.client import models
from fedres.client.choosing import Round

N_EVENTS = 40
BITS = 8
RULES = {
    "fedres-adagrad": Round(bits=BITS),
    "fedomd": Round(global_learner="fedomd", bits=BITS, hyperparameters={"n_clients": 2, "sync": 3}, number=1),
}

models.MOST_STEPS = 17  # so that the models are saved now and then


def run(folder, learner, rule, timing, tell):
    """Play all events from the first that is not rewarded on the disk; tell of each that was."""
    with Driven("http://127.0.0.1:1", folder, learner=learner, timing=timing, clock=lambda: 0.0) as made:
        device = made.device
        if not device.has_settings:
            device.adopt(RULES[rule])
        first = device._models.side.t if device.route == "updates" else device._store.last_seq()
        tell(first)
        for i in range(first, N_EVENTS):
            exchange(device, i)
            event = f"event-{i}"
            if device._store.waiting(event) is None:
                made.decide({"day": f"day-{i % 7}"}, private={"age": i % 3}, event_id=event)
            device.reward(event, (i % 5) / 4)
            tell(i + 1)
        return made.scores()


def exchange(device, i):
    """Let the service answer before every tenth event, unless it did so before the device was killed."""
    if i % 10 == 9 and device.version < i:
        batch = device.batch(100)
        device.sent(batch, [i] * len(batch))
        device.received(payload(i, BITS, seed=i), i)


def kill_at(place):
    """Kill this process when it makes its n-th call."""
    left = place

    def count(frame, event, argument):
        nonlocal left
        if event.endswith("call"):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def killed(place, *arguments):
    """Run in a process of its own; return what it told, and whether it was killed before the end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        kill_at(place)
        run(*arguments, lambda n: os.write(write, bytes([n])))
        sys.setprofile(None)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        numbers = pipe.read()
    _, status = os.waitpid(pid, 0)
    return list(numbers), os.WIFSIGNALED(status)


def main(folder, learner, rule, timing, seed):
    rng, returned, n_kills = random.Random(int(seed)), 0, 0
    arguments = (learner, rule, timing)
    expected = run(Path(folder, "straight"), *arguments, lambda n: None)
    while True:
        numbers, was_killed = killed(rng.randrange(1, 4000 + 1000 * n_kills), Path(folder, "killed"), *arguments)
        assert not numbers or numbers[0] in (returned, returned + 1), (numbers, returned)
        returned = max([returned, *numbers])
        if not was_killed:
            break
        n_kills += 1
    assert run(Path(folder, "killed"), *arguments, lambda n: None) == expected
    print(f"killed {n_kills} times")


main(*sys.argv[1:])
