"""Functions for another process, which finds them here by their names."""

import os
import time

from service.admin.exporting import exporter


def process_id(worker, loop):
    return os.getpid()


def text(worker, loop, n):
    return "x" * n


def fails(worker, loop, error):
    raise error


def n_events(worker, loop, since):
    return sum(1 for _ in exporter(worker, loop, since).events(loop, since, None))


def hangs(worker, loop):
    while True:
        time.sleep(3_600)


def prints(worker, loop, n_lines):
    for _ in range(n_lines):
        print("something that a policy prints", flush=True)
    os.system("echo something that a program prints")
    return n_lines
