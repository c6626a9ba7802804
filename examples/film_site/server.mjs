// A small film site that learns what each visitor watches, on a running service:
//   node examples/film_site/server.mjs http://127.0.0.1:8000 [simulated visitors]
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { Client } from "../../clients/typescript/fedres.js"; // in a project of yours: from "fedres"

const [url = "http://127.0.0.1:8000", visitors = "0"] = process.argv.slice(2);
const GENRES = ["comedy", "crime", "drama", "horror", "romance", "science fiction"];
const FIRST = ["Silent", "Last", "Golden", "Broken", "Hidden", "Crimson", "Endless", "Lucky", "Frozen", "Paper", "Distant", "Wild", "Second", "Blue", "Iron"];
const SECOND = ["Harbor", "Summer", "Promise", "Station", "Garden", "Letter", "Horizon", "Orchard", "Signal", "Waltz", "Island", "Detective", "Kingdom", "Motel", "Comet"];

const films = new Map(FIRST.flatMap((first, k) => SECOND.map((second, j) => {
  const features = { genre: GENRES[(k * 7 + j * 5) % GENRES.length], year: 1950 + (k * 37 + j * 11) % 75 };
  return [`${first}-${second}`.toLowerCase(), { title: `${first} ${second}`, ...features }];
})));

const client = new Client(url, { loop: "films", timeout: 20_000 }); // ms; a site that cannot wait has less, and its fallback
await client.createLoop("films", { wait_time: 60 }).catch((error) => {
  if (error.status !== 409) throw error; // the loop of an earlier start goes on
});
await client.putActions([...films].map(([id, { genre, year }]) => ({ id, features: { genre, year } })));

const shown = new Map(); // items of pages by event, so that visitors can reward nothing else; the newest 10,000

async function page(user, genre) {
  const items = await client.recommend({
    user, n: 10, context: { weekend: [0, 6].includes(new Date().getDay()) }, filter: genre ? { genre } : {},
    excludeSeen: 3600, // seconds
    fallback: [...films.keys()], // while the service does not answer
  });
  for (const item of items) shown.set(item.eventId, item);
  for (const event of shown.keys()) if (shown.size > 10_000) shown.delete(event);
  return items.map(({ id, eventId, probability }) => ({ eventId, probability, ...films.get(id) }));
}

function watched(eventId) {
  if (!shown.delete(eventId)) return 404;
  client.reward(eventId, 1); // what nobody watches has the reward 0 once the wait time is over
  return 204;
}

async function visit(k) { // a simulated visitor, who likes one genre
  const user = `visitor-${k % 50}`, likes = GENRES[(k % 50) % GENRES.length];
  for (const film of await page(user, "")) {
    if (Math.random() < (film.genre === likes ? 0.6 : 0.05)) watched(film.eventId);
    else client.reward(film.eventId, 0);
  }
}

const html = await readFile(new URL("index.html", import.meta.url));
const site = createServer(async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://site");
  const answer = (status, body, type) => response.writeHead(status, type && { "Content-Type": type }).end(body);
  try {
    if (request.method === "GET" && pathname === "/") return answer(200, html, "text/html; charset=utf-8");
    if (request.method === "GET" && pathname === "/films") {
      const found = await page(searchParams.get("user"), searchParams.get("genre"));
      return answer(200, JSON.stringify(found), "application/json");
    }
    if (request.method === "POST" && pathname === "/watched") return answer(watched(searchParams.get("event")));
    answer(404);
  } catch (error) {
    console.error(error);
    answer(500);
  }
});

site.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", async () => {
  console.log(`films: http://127.0.0.1:${site.address().port}/`);
  for (let k = 0; k < Number(visitors); k++) await visit(k);
  if (Number(visitors)) console.log(`${visitors} visits`);
});
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, async () => {
  site.close();
  site.closeAllConnections();
  await client.close(); // sends the rewards that wait
});
