"""Clients of a service that decides: ``Client`` for threads, ``AsyncClient`` for event loops.

``calls.py`` says what to send and what an answer means, ``retrying.py`` when to try again, ``rewards.py`` sends
rewards in the background, and ``spool.py`` keeps them on disk. The two clients are thin shells with httpx inside.
"""
