// The hash of docs/reference/hashing.md, by its own test vectors, and what is refused.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { expand, featureHash, hashed, pairKey } from "../features.js";

const page = readFileSync(new URL("../../../docs/reference/hashing.md", import.meta.url), "utf8");
const rows = (head) =>
  page.split(head)[1].split("\n\n")[0].trimEnd().split("\n").slice(2).map((row) => row.split("|").slice(1, -1).map((cell) => cell.trim()));
const name = (cell) => (cell === "(none)" ? null : cell.slice(1, -1));
const hash = (cell) => (name(cell) === null ? 0 : featureHash(name(cell)));

test("hashes are those of the page", () => {
  const vectors = rows("| name | hash |");
  assert.ok(vectors.length >= 10);
  for (const [cell, wanted] of vectors) assert.equal(hash(cell), Number(wanted), cell);
});

test("keys and indices are those of the page", () => {
  const vectors = rows("| context | action | key | index |");
  assert.ok(vectors.length >= 5);
  for (const [context, action, key, index] of vectors) {
    assert.equal(pairKey(hash(context), hash(action)), Number(key));
    assert.equal(pairKey(hash(context), hash(action)) >>> 14, Number(index));
  }
});

test("features are flattened as the page says", () => {
  const features = {
    age: 33, day: "mon", member: true, no: false, nothing: null, zero: 0, geo: { lat: 0.5 }, taste: [0.5, 2, 0], tags: ["a", "b"], _id: 7,
  };
  const names = ["age", "day=mon", "member", "zero", "geo.lat", "taste[0]", "taste[1]", "tags=a", "tags=b"];
  const { hashes, values } = hashed("context", features);
  assert.deepEqual([...hashes], names.map(featureHash));
  assert.deepEqual([...values], [33, 1, 1, 0, 0.5, 0.5, 2, 1, 1]);
  assert.deepEqual([...hashed("actions[a]", {}, "a").hashes], [featureHash("_id=a")]);
});

test("pairs come in order: context, action, crosses", () => {
  const context = hashed("context", { x: 2, y: 3 }), action = hashed("actions[a]", { z: 5 }, "a");
  assert.deepEqual([...expand(context, action, true).values], [2, 3, 1, 5, 2, 10, 3, 15]);
  assert.deepEqual([...expand(context, action, false).values], [2, 3, 1, 5]);
});

test("what the service would refuse is refused here", () => {
  const wrong = [
    [{ x: NaN }, /x must be within/], [{ x: 1e16 }, /x must be within/], [{ "": 1 }, /at least one character/], [[1], /must be an object/],
    [{ x: [1, "a"] }, /numbers alone or strings alone/], [{ x: "a".repeat(1000) }, /at most 1000 characters/], [{ x: "\ud800" }, /Unicode/],
    [{ x: () => 1 }, /must be JSON/], [Object.fromEntries(Array.from({ length: 1001 }, (_, k) => [`n${k}`, 1])), /at most 1000, got more/],
    [{ a: { a: { a: { a: { a: { a: { a: { a: { a: 1 } } } } } } } } }, /nested at most 8 deep/],
  ];
  for (const [features, message] of wrong) assert.throws(() => hashed("context", features), message);
});
