"""Events in pages, against a plain dict of what they should hold."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from service.engine.joining import NOWHERE, Join, Slot
from service.engine.pages import SIZE, SPARSE, Body, Pages, Written
from service.engine.saving import Turns, put_changed, put_everything

SOME = st.integers(0, 3 * SIZE)
USERS = st.sampled_from(["ann", "bob", "eve"])


class File:
    """What was written, as a snapshot has it."""

    def __init__(self):
        self.bodies, self.dead = {}, {}

    def write(self, written):
        for n in written.gone:
            self.bodies.pop(n, None)
            self.dead.pop(n, None)
        self.bodies.update(written.bodies)
        self.dead.update(written.dead)

    def load(self):
        """Return the events, each there once, and their pages."""
        pages, found = Pages(), []
        for n in sorted(self.bodies):
            found += pages.load(n, self.bodies[n], self.dead.get(n, b""))
        assert self.dead.keys() <= self.bodies.keys()
        assert len(dict(found)) == len(found)
        return dict(found), pages


class Loop:
    """A loop's events, changed by hand."""

    def __init__(self):
        self.join, self.pages, self.file, self.unwritten = Join(), Pages(), File(), Written()
        self.order = 0

    def change(self, event, user=None):
        self.order += 1
        slot = self.join.slots.setdefault(event, Slot(0))
        slot.order, slot.user = self.order, user or slot.user
        self.join.changed[event] = slot

    def encode(self):
        put_changed(self.join, self.pages, Turns(0.0), at_least=SIZE)

    def save(self, fails=False):
        put_everything(self.join, self.pages, Turns(0.0))
        self.unwritten = self.pages.take().after(self.unwritten)
        if not fails:
            self.file.write(self.unwritten)
            self.unwritten = Written()

    def restart(self):
        self.save()
        slots, self.pages = self.file.load()
        self.join = Join(slots)


def plain(slots):
    """Return the slots without where they are."""
    return {event: msgspec.structs.replace(slot, place=NOWHERE) for event, slot in slots.items()}


def written_about(file):
    """Return whom the file has anything about, dead or alive, and all events in it."""
    bodies = [msgspec.msgpack.decode(body, type=Body) for body in file.bodies.values()]
    return {slot.user for body in bodies for slot in body.slots} | {event for body in bodies for event in body.events}


class PagesMachine(RuleBasedStateMachine):
    """Whatever happens, a snapshot that was written holds exactly the events as they were when it was taken."""

    def __init__(self):
        super().__init__()
        self.loop = Loop()
        self.saved = {}

    @rule(first=SOME, n=SOME, user=USERS)
    def rank(self, first, n, user):
        for k in range(first, first + n):
            self.loop.change(f"{user} {k}", user)

    @rule(first=SOME, step=st.integers(1, 9), user=USERS)
    def reward(self, first, step, user):
        """Change some events that are there, and some that come later."""
        for k in range(first, 4 * SIZE, step):
            self.loop.change(f"{user} {k}")

    @rule(first=SOME, step=st.integers(1, 9), user=USERS)
    def drop(self, first, step, user):
        for k in range(first, 4 * SIZE, step):
            if f"{user} {k}" in self.loop.join.slots:
                self.loop.join._drop(f"{user} {k}")

    @rule(user=USERS)
    def erase(self, user):
        self.loop.join.forget(user, [f"{user} {k}" for k in range(6 * SIZE)])
        self.save()
        assert not any(user in str(owner) for owner in written_about(self.loop.file))

    @rule()
    def encode(self):
        self.loop.encode()
        assert len(self.loop.join.changed) < SIZE

    @rule()
    def save(self):
        self.loop.save()
        self.saved = plain(self.loop.join.slots)
        assert len(self.loop.file.bodies) <= len(self.saved) // SPARSE + SIZE

    @rule()
    def fail_to_save(self):
        self.loop.save(fails=True)

    @rule()
    def restart(self):
        self.save()
        self.loop.restart()
        assert plain(self.loop.join.slots) == self.saved

    @invariant()
    def the_file_is_the_last_snapshot(self):
        assert plain(self.loop.file.load()[0]) == self.saved


TestPages = PagesMachine.TestCase
TestPages.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)


def test_what_has_not_changed_is_not_written_again():
    loop = Loop()
    for k in range(5 * SIZE):
        loop.change(f"event {k}")
    loop.save()
    for k in range(10):
        loop.change(f"event {k}")
    put_everything(loop.join, loop.pages, Turns(0.0))
    written = loop.pages.take()
    assert [len(msgspec.msgpack.decode(body, type=Body).events) for body in written.bodies.values()] == [10]
    assert written.dead == {0: bytes(range(10))}
    assert written.gone == []


def test_pages_that_are_dead_before_a_snapshot_are_never_written():
    loop = Loop()
    for _ in range(3):
        for k in range(SIZE):
            loop.change(f"event {k}")
        loop.encode()
    assert loop.pages.n_unwritten == 1
    assert loop.pages.take().gone == []


def test_few_events_at_a_time_do_not_make_many_pages():
    loop = Loop()
    for k in range(2 * SIZE):
        loop.change(f"event {k}")
        loop.save()
    assert len(loop.file.bodies) <= 2 * SIZE // SPARSE + 1


def test_a_reward_that_came_before_its_event_goes_with_its_user():
    loop = Loop()
    loop.change("private event")
    for k in range(SPARSE):
        loop.change(f"event {k}")
    loop.save()
    loop.change("private event", "somebody")
    loop.save()
    assert written_about(loop.file) >= {"somebody", "private event"}
    loop.join.forget("somebody", ["private event"])
    loop.save()
    assert written_about(loop.file) == {None, *(f"event {k}" for k in range(SPARSE))}


def test_what_could_not_be_written_and_is_gone_since_is_not_written_later():
    loop = Loop()
    loop.change("event")
    loop.save(fails=True)
    loop.change("event")
    loop.save()
    assert list(loop.file.bodies) == [1]
    assert plain(loop.file.load()[0]) == plain(loop.join.slots)


def test_pages_in_which_few_events_live_are_written_anew():
    loop = Loop()
    for k in range(10 * SIZE):
        loop.change(f"event {k}")
    loop.save()
    assert len(loop.file.bodies) == 10
    for k in set(range(10 * SIZE)) - set(range(0, 10 * SIZE, 10)):
        loop.join._drop(f"event {k}")
    loop.save()
    assert len(loop.file.bodies) == 1
    assert loop.file.dead == {}
    assert len(loop.file.load()[0]) == SIZE
