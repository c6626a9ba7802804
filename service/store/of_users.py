"""How the log finds the records of a loop, of a user and of many users, without walking through those of others."""

from service.store.opening import STRETCH_BITS

# The first ?3 positions of loop ?1 after ?2, in order: stretches are, and those within one are sorted.
NEXT = f"""SELECT seq FROM log INDEXED BY log_by_stretch
    WHERE loop = ?1 AND seq >> {STRETCH_BITS} >= ?2 >> {STRETCH_BITS} AND seq > ?2
    ORDER BY seq >> {STRETCH_BITS}, seq LIMIT ?3"""
# The positions of user ?2's records in loop ?1: every stretch from the loop's first to its last is asked. By IN and not
# by a join: for that SQLite makes a Bloom filter once it has counted (ANALYZE), which reads the whole log, and before
# 3.41.2 misses records where an index has an expression.
OWN = f"""WITH RECURSIVE stretches (stretch) AS (
        SELECT min(seq >> {STRETCH_BITS}) FROM log INDEXED BY log_by_stretch WHERE loop = ?1
        UNION ALL SELECT stretch + 1 FROM stretches
        WHERE stretch < (SELECT max(seq >> {STRETCH_BITS}) FROM log INDEXED BY log_by_stretch WHERE loop = ?1))
    SELECT seq FROM log INDEXED BY log_by_stretch
    WHERE loop = ?1 AND seq >> {STRETCH_BITS} IN stretches AND user = ?2"""
EVENTS_OF = f"SELECT event FROM log WHERE seq IN ({OWN}) AND kind = ?3 AND event IS NOT NULL ORDER BY seq"
# The user's own records, and those that name no user but one of the user's decisions (rewards).
ERASE = f"""WITH own AS ({OWN}) DELETE FROM log WHERE seq IN (
    SELECT seq FROM own
    UNION SELECT other.seq FROM log AS rank JOIN log AS other ON other.loop = rank.loop AND other.event = rank.event
    WHERE rank.seq IN own AND rank.kind = 'rank' AND other.user IS NULL)"""

# What users' records of a kind, from position ?3 on, make needless.
SUPERSEDED = """DELETE FROM log INDEXED BY log_by_kind WHERE loop = ?1 AND kind = ?2 AND event IS NULL AND seq < ?3
    AND user IN (SELECT user FROM log WHERE seq >= ?3 AND kind = ?2 AND user IS NOT NULL)"""
# Of users' records of a kind all but the newest.
OLDER = """DELETE FROM log INDEXED BY log_by_kind WHERE loop = ?1 AND kind = ?2 AND event IS NULL
    AND user IN (SELECT value FROM json_each(?3))
    AND seq < (SELECT max(newer.seq) FROM log AS newer INDEXED BY log_by_kind
        WHERE newer.loop = ?1 AND newer.kind = ?2 AND newer.event IS NULL AND newer.user = log.user)"""
