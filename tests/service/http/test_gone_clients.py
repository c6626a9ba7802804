"""What a client looks up in the log is given up when it disconnects."""

import json
import socket
import threading
import time

from live import run_service

from service.log.sqlite import SqliteLog

COUNT = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t"


def test_a_look_up_is_interrupted_when_its_client_disconnects(tmp_path, monkeypatch):
    begun = threading.Event()
    find = SqliteLog.find

    def endless(self, loop, events, kind=None):
        if "hang~1" not in events:
            return find(self, loop, events, kind)
        begun.set()
        with self._connection() as db:
            return list(db.execute(COUNT))

    monkeypatch.setattr(SqliteLog, "find", endless)
    with run_service(tmp_path) as live:
        body = json.dumps({"event_id": "hang", "actions": [{"id": "a"}], "slots": [{"id": "top"}]}).encode()
        head = f"POST /v1/rank/slots HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection(live.address) as client:
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            begun.wait()
        threads = live.engine.context._look_ups.threads
        while threads.running:
            time.sleep(0.01)
        with live.client() as client:  # the connection to the log is free again
            assert client.post("/v1/rank/slots", json=json.loads(body) | {"event_id": "next"}).status_code == 200
