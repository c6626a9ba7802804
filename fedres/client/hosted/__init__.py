"""Clients of a service that decides: ``Client`` for threads, ``AsyncClient`` for event loops.

``calls.py`` has the requests and reads the replies, ``retrying.py`` decides when to try again, ``rewards.py`` sends
rewards in the background, and ``spool.py`` keeps them on disk. The two clients are thin shells around httpx.
"""
