"""A disk in memory, as SQLite sees one, that can lose its power or fail.

``Disk`` keeps a trace of all that changes it; ``Disk.cut`` draws one of the states in which a power cut at some point
of the trace may leave it. What was synced is there. Of the rest every write is lost, kept or torn by itself, in units
of a sector, whatever came after it in its own or in another file; so is every truncation, creation and deletion. What
a failed sync should have saved stays in danger: as under Linux, a later sync does not save it either.
"""
# ruff: noqa: N802 (the names are SQLite's)

import sqlite3
from contextlib import contextmanager
from itertools import count, pairwise

import apsw

from service.log.sqlite import SqliteLog

SECTOR = 512
EVERYTHING = 10_000
numbers = count()


class File:
    """An open file: the methods that SQLite calls. A change is visible at once, and noted in the disk's trace."""

    def __init__(self, disk, content):
        self.disk, self.content = disk, content

    def xRead(self, amount, offset):
        return bytes(self.content[offset : offset + amount])

    def xWrite(self, data, offset):
        self.disk.may_fail("write")
        _write(self.content, data, offset)
        self.disk.trace.append(("change", self.content, _write, bytes(data), offset))

    def xTruncate(self, size):
        self.disk.may_fail("truncate")
        _truncate(self.content, size)
        self.disk.trace.append(("change", self.content, _truncate, size))

    def xSync(self, flags):
        try:
            self.disk.may_fail("sync")
        except apsw.Error:
            self.disk.trace.append(("failed_sync", self.content))
            raise
        self.disk.trace.append(("sync", self.content))

    def xFileSize(self):
        return len(self.content)

    def xSectorSize(self):
        return 4096

    def xDeviceCharacteristics(self):
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE  # as SQLite's own files under Unix

    def xCheckReservedLock(self):
        return False

    def xFileControl(self, operation, pointer):
        return False

    def xLock(self, level): ...
    def xUnlock(self, level): ...
    def xClose(self): ...


class Disk(apsw.VFS):
    """A disk that holds ``files`` (name to bytes), all of them synced."""

    def __init__(self, files=None):
        self.start = [(name, bytearray(content), bytes(content)) for name, content in (files or {}).items()]
        self.files = {name: content for name, content, _ in self.start}
        self.trace = []
        self.n_operations = 0
        self.faults = {}  # an operation or its number: the error that it raises, once
        self.name = f"disk{next(numbers)}"
        super().__init__(self.name, base="unix")

    def may_fail(self, operation):
        self.n_operations += 1
        for key in (operation, self.n_operations):
            if key in self.faults:
                raise self.faults.pop(key)

    def xOpen(self, name, flags):
        name = name.filename() if isinstance(name, apsw.URIFilename) else name
        if name not in self.files:
            self.may_fail("create")
            self.files[name] = bytearray()
            self.trace.append(("create", self.files[name], name))
        return File(self, self.files[name])

    def xDelete(self, name, sync_directory):
        self.may_fail("delete")
        self.trace.append(("delete", self.files.pop(name), name, sync_directory))

    def xAccess(self, name, flags):
        return name in self.files

    def xFullPathname(self, name):
        return name

    def connect(self, synchronous="EXTRA"):
        """Return a connection to the file ``log`` for the product, with its own or a weaker care for syncing."""
        return Connection(self.name, synchronous)

    def cut(self, point, rng):
        """Return the files that a power cut after ``point`` changes and syncs leaves; ``rng`` picks what is lost."""
        platter = Platter(self.start, rng)
        for operation, content, *arguments in self.trace[:point]:
            getattr(platter, operation)(id(content), *arguments)
        return platter.left()


class Platter:
    """What is safe on the disk and what is not yet, while a trace is replayed."""

    def __init__(self, start, rng):
        self.rng = rng
        self.safe = {id(content): bytearray(synced) for _, content, synced in start}
        self.unsynced = {file: [] for file in self.safe}
        self.names = {name: [id(content)] for name, content, _ in start}  # the files that a name may turn out to be

    def create(self, file, name):
        self.safe[file], self.unsynced[file] = bytearray(), []
        self.names.setdefault(name, [None]).append(file)

    def delete(self, file, name, synced):
        self.names[name] = [None] if synced else [*self.names[name], None]

    def change(self, file, *change):
        self.unsynced[file].append(change)

    def sync(self, file):
        for change, *arguments in self.unsynced[file]:
            change(self.safe[file], *arguments)
        self.unsynced[file] = []
        for name, files in self.names.items():
            if file in files:  # its creation is safe too, and what happened to the name before
                self.names[name] = files[files.index(file) :]

    def failed_sync(self, file):
        self.safe[file], self.unsynced[file] = self.torn(file), []

    def left(self):
        drawn = {name: files[self.rng.randrange(len(files))] for name, files in self.names.items()}
        return {name: bytes(self.torn(file)) for name, file in drawn.items() if file is not None}

    def torn(self, file):
        """Return the content on which each unsynced change was lost, done, or (a write) done in some sectors."""
        content = bytearray(self.safe[file])
        for change, *arguments in self.unsynced[file]:
            fate = self.rng.randrange(3)
            if fate == 1:
                change(content, *arguments)
            elif fate == 2 and change is _write:
                self.write_some_sectors(content, *arguments)
        return content

    def write_some_sectors(self, content, data, offset):
        end = offset + len(data)
        borders = [offset, *range(offset - offset % SECTOR + SECTOR, end, SECTOR), end]
        for begin, stop in pairwise(borders):
            if self.rng.random() < 0.5:
                _write(content, data[begin - offset : stop - offset], begin)


def _write(content, data, offset):
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _truncate(content, size):
    del content[size:]


class Connection:
    """An apsw connection with the manners of ``sqlite3``: the two calls that the product makes, and their errors."""

    def __init__(self, vfs, synchronous):
        self.synchronous = synchronous
        with errors_of_sqlite3():
            self.apsw = apsw.Connection("log", vfs=vfs)
        self.execute("PRAGMA locking_mode=EXCLUSIVE")  # the disk has no shared memory, which only several openers need
        self.execute("PRAGMA wal_autocheckpoint=20")  # pages; rarely enough to leave a WAL, often enough to be cut

    def execute(self, sql, parameters=()):
        sql = sql.replace("synchronous=EXTRA", f"synchronous={self.synchronous}")
        with errors_of_sqlite3():
            return self.apsw.execute(sql, parameters).fetchall()

    def close(self):
        with errors_of_sqlite3():
            self.apsw.close()


@contextmanager
def errors_of_sqlite3():
    try:
        yield
    except apsw.Error as error:
        translated = sqlite3.OperationalError(str(error))
        translated.sqlite_errorcode = error.extendedresult
        raise translated from error


def contents(log):
    """Return all entries of all loops, whose number each head must know."""
    heads = log.heads()
    entries = {loop: log.read(loop, 0, EVERYTHING) for loop in sorted(heads)}
    assert {loop: head.last - head.removed for loop, head in heads.items()} == {
        loop: len(of_loop) for loop, of_loop in entries.items()
    }
    return [entry for of_loop in entries.values() for entry in of_loop]


def recovered(files):
    """Return the entries of the log that the files hold, once SQLite found no damage in them."""
    disk = Disk(files)
    connection = disk.connect()
    try:
        with SqliteLog(lambda: connection) as log:
            assert connection.execute("PRAGMA integrity_check") == [("ok",)]
            return contents(log)
    finally:
        disk.unregister()
