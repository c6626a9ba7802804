"""Eight bugs, planted into the product one at a time: the simulation must find each."""

import contextlib

from service.learn import learner as learner_module
from service.learn import pruning, publishing
from service.learn.follower import Follower
from service.learn.join import Join
from service.log import sqlite, sqlite_schema


@contextlib.contextmanager
def replaced(place, name, value):
    before = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, before)


def acknowledge_before_sync():
    return contextlib.nullcontext({"synchronous": "OFF"})


@contextlib.contextmanager
def no_dedup():
    schema = tuple(line.replace("UNIQUE INDEX log_by_event", "INDEX log_by_event") for line in sqlite_schema.SCHEMA)
    with replaced(sqlite_schema, "SCHEMA", schema):
        yield {}


@contextlib.contextmanager
def publish_before_learn():
    """Publish the end of the log as learned, whatever was learned."""
    publish = publishing.publish_loop

    def early(publisher, state, cleaned, waiting_bytes):
        position, state.position = state.position, state.position + 2
        try:
            publish(publisher, state, cleaned, waiting_bytes)
        finally:
            state.position = position

    with replaced(learner_module, "publish_loop", early):
        yield {}


@contextlib.contextmanager
def skip_a_record_on_restart():
    restore = Follower.restore

    def skip(learner, name, saved):
        restore(learner, name, saved)
        if learner.log.heads()[name].last > saved.position:
            learner.positions[name] += 1

    with replaced(Follower, "restore", skip):
        yield {}


@contextlib.contextmanager
def erase_only_the_newest_copy():
    newest = "DELETE FROM log WHERE rowid IN (SELECT max(rowid) FROM log WHERE loop = ?1 AND user = ?2)"
    with replaced(sqlite, "ERASE_USER", newest):
        yield {"erasures": True}


@contextlib.contextmanager
def double_tick():
    """Let every event that expires expire twice."""
    expiring = Join._expiring

    def twice(join, time):
        for settled in expiring(join, time):
            yield settled
            yield settled

    with replaced(Join, "_expiring", twice):
        yield {"erasures": False}


@contextlib.contextmanager
def remove_what_waits():
    """Remove all old events, also those that still wait for a reward."""

    def all_old(log, state, before):
        return pruning.last_before(
            log, state.metadata.name, before, max(state.metadata.created_at, state.metadata.pruned.cut)
        )

    with replaced(pruning, "old_events", all_old):
        yield {"prunings": True, "erasures": False}


@contextlib.contextmanager
def remove_without_a_base():
    """Remove old events without storing first what was learned from them."""
    with replaced(pruning, "log_base", lambda learner, state, epoch: None):
        yield {"prunings": True, "erasures": False}


BUGS = [
    acknowledge_before_sync,
    no_dedup,
    publish_before_learn,
    skip_a_record_on_restart,
    erase_only_the_newest_copy,
    double_tick,
    remove_what_waits,
    remove_without_a_base,
]
