"""The durable store of the service: an append-only log in SQLite or PostgreSQL, group commit, and a lease on it."""

from fedres.lease import Lease, LeaseHeld
from service.store.group_commit import Commits, GroupCommit
from service.store.log import Duplicate, Entry, Log, Record, Refused
from service.store.opening import StoreUnavailable, sqlite_file
from service.store.protocol import EventLog
from service.store.writer import Writer

__all__ = [
    "Commits",
    "Duplicate",
    "Entry",
    "EventLog",
    "GroupCommit",
    "Lease",
    "LeaseHeld",
    "Log",
    "Record",
    "Refused",
    "StoreUnavailable",
    "Writer",
    "sqlite_file",
]
