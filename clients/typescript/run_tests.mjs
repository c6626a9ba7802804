// npm test: runs the tests against the service at FEDRES_URL or, where that is not set, against one that it starts.

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const folders = [join(here, "../../.venv/bin"), ...(process.env.PATH ?? "").split(delimiter)];
const fedres = folders.map((folder) => join(folder, "fedres")).find(existsSync);

/** Start a service on a free port; return its address and how to stop it. */
async function serve() {
  if (!fedres) {
    console.error("npm test needs a service: set FEDRES_URL to the address of one, or install fedres (pip install 'fedres[serve]')");
    process.exit(1);
  }
  const folder = mkdtempSync(join(tmpdir(), "fedres-npm-test-"));
  const service = spawn(fedres, ["serve", "--port", "0"], { cwd: folder, stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((resolve) => service.once("exit", resolve));
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => (service.kill("SIGINT"), process.exit(1)));
  const url = await new Promise((resolve, reject) => {
    let said = "";
    service.stdout.on("data", (part) => {
      said += part;
      const address = /http:\/\/127\.0\.0\.1:\d+/.exec(said);
      if (address) resolve(address[0]);
    });
    ended.then((code) => reject(new Error(`fedres serve ended with ${code}: ${said}`)));
  });
  return { url, stop: () => (service.kill("SIGINT"), ended.then(() => rmSync(folder, { recursive: true, force: true }))) };
}

/** The first start compiles for minutes, and answers 503 meanwhile. */
async function ready(url) {
  for (;;) {
    const answers = await fetch(`${url}/readyz`).then(({ ok }) => ok, () => false);
    if (answers) return;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

const { url, stop } = process.env.FEDRES_URL ? { url: process.env.FEDRES_URL, stop: () => {} } : await serve();
try {
  await ready(url);
  const tests = spawn(process.execPath, ["--test", ...process.argv.slice(2)], { cwd: here, stdio: "inherit", env: { ...process.env, FEDRES_URL: url } });
  process.exitCode = await new Promise((resolve) => tests.once("exit", resolve));
} finally {
  await stop();
}
