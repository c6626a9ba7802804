"""``python tests/service/faults --kills 100``: kill the service that often under load, and print what came of it."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from fault_run import (
    Service,
    digests_after_every_way_to_start,
    judge,
    kill_often,
    kill_workers_often,
    kill_writers_often,
)
from fault_server import Nursery


async def kill_servers(nursery, store, n_kills, seed, database=None):
    service, began = Service(nursery, store, database), time.monotonic()
    ledger, productive = await kill_often(service, n_kills, seed)
    print(f"{n_kills} kills of the server in {time.monotonic() - began:.0f} s, {productive} after acknowledgements")
    return await verdict(service, ledger)


async def kill_workers(nursery, store, n_kills, seed):
    service, began = Service(nursery, store), time.monotonic()
    ledger = await kill_workers_often(service, n_kills, seed)
    print(f"{n_kills} kills of a worker and 1 of their engine in {time.monotonic() - began:.0f} s")
    return await verdict(service, ledger)


async def kill_writers(nursery, store, n_kills, seed):
    service, began = Service(nursery, store), time.monotonic()
    ledger = await kill_writers_often(service, n_kills, seed)
    print(f"{n_kills} kills of the writer in {time.monotonic() - began:.0f} s")
    return await verdict(service, ledger)


async def verdict(service, ledger):
    """Print and return all that went wrong."""
    found = await judge(service, ledger)
    live, *others = await digests_after_every_way_to_start(service)
    service.whereabouts.hang_up()
    await service.kill()
    if others != [live] * 3:
        found.append("the models differ: live, made from the log, restarted with and without a snapshot")
    print(f"  {ledger.n_acknowledged()} decisions and rewards acknowledged; wrong: {len(found)}")
    for contradiction in found[:20]:
        print(f"    {contradiction}")
    return found


async def run(n_kills, n_others, seed, folder, database):
    async with Nursery() as nursery:
        if database is not None:
            return await kill_servers(nursery, Path(folder, "servers"), n_kills, seed, database)
        found = await kill_servers(nursery, Path(folder, "servers.db"), n_kills, seed)
        found += await kill_writers(nursery, Path(folder, "writers.db"), n_others, seed)
        return found + await kill_workers(nursery, Path(folder, "workers.db"), n_others, seed)


def main():
    parser = argparse.ArgumentParser(prog="python tests/service/faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--other-kills", type=int, default=10, help="of the writer, and of workers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", help="an empty one in PostgreSQL, to kill the server alone on that")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(bool(asyncio.run(run(options.kills, options.other_kills, options.seed, folder, options.database))))


if __name__ == "__main__":
    main()
