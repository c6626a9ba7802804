"""The log: the single source of truth. One protocol, one contract test, one file for each backend."""
