// A program in CommonJS, for tsc alone, with the library that has `await using`.

import fedres = require("fedres");
import testing = require("fedres/testing");

export async function decide(): Promise<string> {
  await using client = new testing.FakeService().client();
  await using other: fedres.Client = client.withLoop("other");
  return (await other.rank({ actions: ["tea"] })).action;
}
