"""``python tests/service/faults --kills 100``: kill the service that often under load, and print what came of it."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from fault_run import Service, digests_after_every_way_to_start, judge, kill_often
from fault_server import Nursery


async def run(n_kills, seed, folder):
    """Return all that went wrong."""
    async with Nursery() as nursery:
        service = Service(nursery, Path(folder, "store.db"))
        began = time.monotonic()
        ledger, productive = await kill_often(service, n_kills, seed)
        print(
            f"{n_kills} kills in {time.monotonic() - began:.0f} s, {productive} of them after acknowledgements; "
            f"{ledger.n_acknowledged()} decisions and rewards acknowledged"
        )
        found = await judge(service, ledger)
        print(f"lost, changed or counted twice: {len(found)}", *found[:20], sep="\n  ")
        live, *others = await digests_after_every_way_to_start(service)
        same = others == [live] * 3
        print(f"models live, from the log, with and without a snapshot: {'the same' if same else 'DIFFERENT'}")
        for loop, digest in live.items():
            print(f"  {loop:8} {digest}")
        return [*found, *([] if same else ["models differ"])]


def main():
    parser = argparse.ArgumentParser(prog="python tests/service/faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(bool(asyncio.run(run(options.kills, options.seed, folder))))


if __name__ == "__main__":
    main()
