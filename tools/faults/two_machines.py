"""A campaign against two machines on one PostgreSQL server, judged by the clients' own ledger.

``python tools/faults/two_machines.py --kills 100 --restarts 20 --partitions 5`` prints a table and ends with
status 1 if anything acknowledged was lost, changed or counted twice, or if models differ.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

SERVICE = Path(__file__).parents[2] / "tests" / "service"
sys.path[:0] = [str(SERVICE), str(SERVICE / "roles")]
from conftest import Postgres  # noqa: E402
from machines import Ledger, Load, digests, judge  # noqa: E402
from proxies import StallingProxy  # noqa: E402
from serving import MachineProcess, running  # noqa: E402
from waiting import until  # noqa: E402

LOOPS = ("default", "news")
KILLED = ("ranker", "ranker", "learner", "learner", "log", "machine")


class Campaign:
    """Two machines under load. Each fault is followed by progress, so that the next one hits a working service."""

    def __init__(self, folder, seed):
        self.rng = random.Random(seed)
        (folder / "postgres").mkdir()
        folder.chmod(0o755)
        self.postgres = Postgres(folder / "postgres")
        self.postgres.start()
        self.proxy = StallingProxy(folder / "postgres" / ".s.PGSQL.5432")
        through_proxy = f"postgresql://fedres@127.0.0.1:{self.proxy.port}/postgres"
        self.a = MachineProcess(folder / "a", self.postgres.address, "--rankers", "2")
        self.b = MachineProcess(folder / "b", through_proxy)
        self.machines, self.folder, self.ledger = [self.a, self.b], folder, Ledger()
        self.done = {}

    def kill(self):
        what, machine = self.rng.choice(KILLED), self.rng.choice(self.machines)
        if what == "machine":
            machine.kill()
            self.ledger.grow(5)
            machine.start()
        else:
            until(lambda: machine.kill_role(what) or True, f"the death of a {what}")
            self.ledger.grow(5)
        self._count(f"kill -9 of a {what}")

    def restart(self):
        how = self.rng.choice(("fast", "immediate"))
        self.postgres.stop(how)
        time.sleep(self.rng.uniform(0.0, 1.0))
        self.postgres.start()
        self.ledger.grow(5)
        self._count(f"restart of PostgreSQL ({how})")

    def partition(self):
        self.proxy.stall()
        until(lambda: not self.b.is_ready(), "b noticing")
        assert self.a.is_ready()
        time.sleep(self.rng.uniform(0.0, 5.0))
        self.proxy.heal()
        until(self.b.is_ready, "b coming back")
        self.ledger.grow(5)
        self._count("partition between b and PostgreSQL")

    def _count(self, what):
        self.done[what] = self.done.get(what, 0) + 1
        print(f"{sum(self.done.values()):4} {what}: {len(self.ledger.rewards)} events", file=sys.stderr, flush=True)

    def run(self, kills, restarts, partitions):
        faults = [self.kill] * kills + [self.restart] * restarts + [self.partition] * partitions
        self.rng.shuffle(faults)
        with running(*self.machines):
            self.a.ask("POST", "/v1/loops", json={"name": "news"})
            until(lambda: "news" in self.b.ask("GET", "/v1/loops").json()["loops"], "b following")
            with Load(self.machines, self.ledger, seed=1, n_clients=6, loops=LOOPS):
                for fault in faults:
                    fault()
            wrong = judge(self.ledger, self.postgres.address)
            for loop in LOOPS:
                models = digests(self.machines, self.postgres.address, self.folder, loop)
                if len(set(models.values())) != 1:
                    wrong.append(f"models of {loop} differ: {models}")
                n_rewarded = sum(of == loop for of, _ in self.ledger.rewards.values())
                states = [until(machine.status, "a status") for machine in self.machines]
                counts = [state["loops"][loop]["rewarded_events"] for state in states]
                if counts != [n_rewarded] * 2:
                    wrong.append(f"{loop}: {n_rewarded} events were rewarded, machines learned from {counts}")
        return wrong

    def close(self):
        self.proxy.close()
        self.postgres.stop("immediate")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedres-machines-") as folder:
        campaign = Campaign(Path(folder), options.seed)
        began = time.monotonic()
        try:
            wrong = campaign.run(options.kills, options.restarts, options.partitions)
        finally:
            campaign.close()
        ledger = campaign.ledger
        print(f"\n{'fault':<40} times")
        for what, times in sorted(campaign.done.items()):
            print(f"{what:<40} {times}")
        print(f"\nminutes {(time.monotonic() - began) / 60:.1f}, events acknowledged {len(ledger.ranks)},")
        print(f"rewards acknowledged {len(ledger.rewards)}, requests repeated {ledger.refused}, wrong {len(wrong)}")
        print("\n".join(wrong[:20]))
        sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
