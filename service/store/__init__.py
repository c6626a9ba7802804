"""The durable store of the service: an append-only log in SQLite, group commit, and a lease on its file."""

from service.store.group_commit import GroupCommit
from service.store.lease import Lease, LeaseHeld
from service.store.log import Duplicate, Entry, Log, Record, Refused
from service.store.opening import StoreUnavailable, sqlite_file

__all__ = [
    "Duplicate",
    "Entry",
    "GroupCommit",
    "Lease",
    "LeaseHeld",
    "Log",
    "Record",
    "Refused",
    "StoreUnavailable",
    "sqlite_file",
]
