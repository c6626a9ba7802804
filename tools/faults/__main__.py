"""``python tools/faults --kills 300 --pauses 50``: kill and pause the service's processes under load.

Prints the result. The exit status is 1 if anything acknowledged was lost, changed or counted twice, if models
differ from those of the log, or if clients saw failures that they should not.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "service"))
sys.path.append(str(Path(__file__).parents[2] / "tests" / "service" / "faults"))

from fault_campaign import Campaign
from fault_run import Service


def progress(began):
    def say(text):
        print(f"\r{time.monotonic() - began:6.0f} s  {text}  ", end="", file=sys.stderr, flush=True)

    return say


async def run(options, folder):
    began = time.monotonic()
    service = Service(Path(folder, "store.db"), options.database)
    campaign = Campaign(service, rankers=options.rankers, seed=options.seed, say=progress(began))
    try:
        await campaign.run(options.kills, options.pauses)
    except BaseException as error:
        campaign.problems.append(f"the campaign ended early: {error!r}")
        raise
    finally:
        print(f"\n{time.monotonic() - began:.0f} s", *campaign.table(), sep="\n", flush=True)
        if options.errors:
            print(service.server.errors()[-options.errors :], file=sys.stderr)
        await service.clear()
    return campaign.problems


def main():
    parser = argparse.ArgumentParser(
        prog="python tools/faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=300, help="of all processes together")
    parser.add_argument("--pauses", type=int, default=0, help="of each role")
    parser.add_argument("--rankers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", help="an empty one in PostgreSQL")
    parser.add_argument("--errors", type=int, default=0, help="characters of the service's standard error to show")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(bool(asyncio.run(run(options, folder))))


if __name__ == "__main__":
    main()
