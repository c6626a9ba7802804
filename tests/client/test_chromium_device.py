"""The device in JavaScript beside the one in Python, in Chromium with IndexedDB."""

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from javascript import MENU, close_to, loop_of, same, stream
from needs import CHROMIUM, needs_chromium
from waiting import LIMIT

from fedres.client import DeviceClient

FOLDER = Path(__file__).parents[2] / "clients" / "typescript"

PAGE = """<script type="module">
import { FedresDevice } from "/device.js";
const report = (found) => fetch("/found", { method: "POST", body: JSON.stringify(found) });
try {
  const found = {};
  let other;
  for (const learner of ["linear", "residual-kalman"]) {
    const options = { client: "phone", loop: `browser-${learner}`, learner, syncSeconds: null };
    let device = await FedresDevice.open(location.origin, options);
    other = await FedresDevice.open(location.origin, options).catch((error) => error.message);
    found[learner] = [];
    for (const [k, [request, liked]] of (await (await fetch("/stream")).json()).entries()) {
      if (k % 10 === 5) {
        await device.sync();
        await fetch(`/settle/${learner}`);
        await device.sync();
        await device.close(); // what follows is read from IndexedDB
        device = await FedresDevice.open(location.origin, options);
      }
      const decision = await device.decide(request);
      await device.reward(decision.eventId, Number(decision.action === liked));
      found[learner].push(decision);
    }
    await device.close();
  }
  await report({ found, other });
} catch (error) {
  await report({ error: `${error} ${error.stack}` });
}
</script>"""


@needs_chromium
def test_in_a_browser_it_keeps_everything_in_indexeddb_and_decides_the_same(live, tmp_path):
    models = {"linear": "adagrad", "residual-kalman": "residual-kalman"}
    for learner, model in models.items():
        loop_of(live, f"browser-{learner}", model), loop_of(live, f"twin-{learner}", model)
    requests, answers, done = list(stream(30)), [], threading.Event()

    class Site(BaseHTTPRequestHandler):
        """A page, the client's files, and the service below the same origin, as a proxy would have it."""

        def do_GET(self):
            if self.path == "/":
                self.answer(200, PAGE.encode(), "text/html")
            elif self.path == "/stream":
                self.answer(200, json.dumps(requests).encode(), "application/json")
            elif self.path.startswith("/settle/"):
                live.settle(f"browser-{self.path[8:]}")
                self.answer(200, b"{}", "application/json")
            elif self.path.startswith("/v1/"):
                self.forward(b"")
            else:
                self.answer(200, (FOLDER / self.path[1:]).read_bytes(), "text/javascript")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/found":
                answers.append(json.loads(body))
                self.answer(204, b"", "text/plain")
                done.set()
            else:
                self.forward(body)

        def forward(self, body):
            kept = {name: value for name, value in self.headers.items() if name in ("Content-Type", "If-None-Match")}
            reply = httpx.request(self.command, live.url + self.path, content=body, headers=kept)
            self.answer(reply.status_code, reply.content, reply.headers.get("content-type", "text/plain"))

        def answer(self, status, body, kind):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            f"--user-data-dir={tmp_path / 'user'}",
        ]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen([CHROMIUM, *options, f"http://127.0.0.1:{site.server_port}/"], **pipes) as browser:
            try:
                assert done.wait(LIMIT)
            finally:
                browser.terminate()
                site.shutdown()
    [answer] = answers
    assert "error" not in answer, answer
    assert "another tab uses this device" in answer["other"]
    for learner, compare in (("linear", same), ("residual-kalman", close_to)):
        loop, decisions = f"twin-{learner}", answer["found"][learner]
        how = {"loop": loop, "learner": learner, "sync_seconds": None}
        with DeviceClient(live.url, "phone", tmp_path / learner, **how) as device:
            for k, (request, liked) in enumerate(requests):
                if k % 10 == 5:
                    device.sync()
                    live.settle(loop)
                    device.sync()
                event, private = request["eventId"], request["private"]
                expected = device.decide(request["context"], MENU, private=private, event_id=event)
                compare(list(decisions[k]["scores"].values()), list(expected.scores.values()))
                assert decisions[k]["action"] == expected.action
                device.reward(event, float(expected.action == liked))
