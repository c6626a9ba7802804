"""docs/operate/postgresql.md keeps its word, on a server of its own; so does the benchmark it names."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psycopg
from forked import FEDRES, run
from needs import needs_program
from serving import MachineProcess, running
from waiting import LIMIT, until

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "operate" / "postgresql.md").read_text(encoding="utf-8")
BLOCKS = {kind: [] for kind in ("sql", "sh")}
for kind, text in re.findall(r"```(sql|sh)\n(.*?)```", DOCS, flags=re.DOTALL):
    BLOCKS[kind].append(text)
ADDRESS = "postgresql://fedres:secret@db.example/shop"
ACTIONS = [{"id": "tea", "features": {"temperature": "hot"}}, {"id": "juice", "features": {}}]
USERS = ["anna", "ben", "cleo", "dora"]


def options_of(line):
    """Return what a command of the page says beside its store, folder and port."""
    words = line.strip(" &\n").split()
    assert words[:4] == ["fedres", "serve", "--store", ADDRESS]
    return words[4:]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


@needs_program("haproxy")
def test_the_example_behind_haproxy_serves_through_the_loss_of_a_machine(tmp_path, database):
    made, *commands, balancer = BLOCKS["sh"][1].strip().split("\n")
    assert (made, balancer) == ("mkdir a b", "haproxy -f deploy/haproxy.cfg")
    assert [options_of(line)[:1] + options_of(line)[2:] for line in commands] == [
        ["--folder", "--port", "8001"],
        ["--folder", "--port", "8002"],
    ]
    machines = [MachineProcess(tmp_path / options_of(line)[1], database) for line in commands]
    port = free_port()
    with running(*machines):
        text = (ROOT / "deploy" / "haproxy.cfg").read_text(encoding="utf-8")
        for written, used in ((8000, port), (8001, machines[0].port), (8002, machines[1].port)):
            text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{used}")
        (tmp_path / "haproxy.cfg").write_text(text)
        with subprocess.Popen(["haproxy", "-f", "haproxy.cfg"], cwd=tmp_path) as proxy:
            try:
                play(f"http://127.0.0.1:{port}", machines, database)
            finally:
                proxy.terminate()


def play(url, machines, database):
    """Rank and reward through the balancer while a machine is lost; each request is repeated until it is answered."""
    with httpx.Client(base_url=url, trust_env=False, timeout=LIMIT) as client:

        def post(path, body):
            return until(lambda: (reply := client.post(path, json=body)).status_code < 300 and reply, path)

        for k in range(40):
            if k == 20:
                machines[0].kill()
            request = {"user": USERS[k % 4], "context": {"hour": 7}, "actions": ACTIONS, "event_id": f"e{k}"}
            post("/v1/rank", request)
            post(f"/v1/events/e{k}/reward", {"value": 1})
        until(lambda: client.get("/v1/status").json()["loops"]["default"]["rewarded_events"] == 40, "learning")
        machines[0].start()
        assert machines[0].digest() == machines[1].digest()
    with psycopg.connect(database) as db:
        assert db.execute("SELECT count(*) FROM fedres.log WHERE kind = 'rank'").fetchone() == (40,)


def test_its_commands_run(tmp_path, database):
    made, erasing = BLOCKS["sql"]
    assert made.count("CREATE") == 2  # a role and a database, which the tests have
    assert options_of(BLOCKS["sh"][0]) == []
    with running(MachineProcess(tmp_path / "a", database)) as [machine]:
        for user in USERS:
            request = {"user": user, "context": {"hour": 7}, "actions": ACTIONS, "event_id": f"of {user}"}
            assert machine.ask("POST", "/v1/rank", json=request).status_code == 200
        command = [FEDRES, "keys", "add", "admin", "--store", database]
        key = run(command, check=True, cwd=tmp_path)
        bearer = {"Authorization": f"Bearer {key.stdout.strip()}"}
        until(lambda: machine.ask("GET", "/v1/loops").status_code == 401, "the key")
        assert machine.ask("GET", "/v1/loops", headers=bearer).status_code == 200
        assert machine.stop() == 0
    with psycopg.connect(database, autocommit=True) as db:
        ranks = db.execute(
            """SELECT event, "user", body::json -> 'context' FROM fedres.log WHERE kind = 'rank' ORDER BY position"""
        ).fetchall()
        for command in erasing.split(";")[:2]:
            db.execute(command)
    assert ranks == [(f"of {user}", user, {"hour": 7}) for user in USERS]
    files = {file.name for file in (tmp_path / "a").iterdir()} - {"stderr"}
    assert files <= {f"postgres.postgresql-{part}" for part in ("models", "lease", "run")}


def test_the_benchmark_measures_both_logs(tmp_path, database):
    command = [sys.executable, ROOT / "benchmarks" / "log_commits.py", database, "--commits", "2", "--folder", tmp_path]
    done = run(command, check=True)
    for name in ("SQLite", "PostgreSQL"):
        assert re.findall(rf"{name} +│ [^│]+│ +(\d+) ", done.stdout) == ["1", "24", "500"] * 2
