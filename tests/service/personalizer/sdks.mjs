// Drives Microsoft's two JavaScript SDKs through their calls; prints what came of each as one JSON object.
// Arguments: endpoint of the service, endpoint of a loop, key for that loop. Run in a folder that has the packages.
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "package.json"));
const { AzureKeyCredential } = require("@azure/core-auth");
const { ApiKeyCredentials } = require("@azure/ms-rest-js");
const { PersonalizerClient } = require("@azure/cognitiveservices-personalizer");
const { default: createPersonalizerClient } = require("@azure-rest/ai-personalizer");

const [serviceEndpoint, endpoint, key] = process.argv.slice(2);
const seen = {};

const actions = ["news", "sport", "arts"].map((id) => ({ id, features: [{ topic: { kind: id } }] }));
const contextFeatures = [{ user: { taste: "sport" } }, { device: { mobile: true } }];

// @azure/cognitiveservices-personalizer speaks v1.0; its endpoint has no path, so the key says which loop
const old = new PersonalizerClient(
  new ApiKeyCredentials({ inHeader: { "Ocp-Apim-Subscription-Key": key } }),
  serviceEndpoint,
);
const ranked = await old.rank({ actions, contextFeatures, excludedActions: ["news"], eventId: "old/é" });
seen.old = { event: ranked.eventId, first: ranked.ranking[0], status: ranked._response.status };
seen.oldReward = (await old.events.reward("old/é", { value: 0.5 }))._response.status;
seen.oldActivate = (await old.events.activate("old/é"))._response.status;
seen.oldRefused = await old.rank({ actions: [] }).catch((error) => [error.statusCode, error.body.error.code]);

// @azure-rest/ai-personalizer speaks v1.1-preview.3
const client = createPersonalizerClient(endpoint, new AzureKeyCredential(key), { allowInsecureConnection: true });
const call = async (name, path, method, options = {}, ...parameters) => {
  const reply = await client.path(path, ...parameters)[method](options);
  seen[name] = { status: reply.status, body: reply.body ?? null };
  return reply;
};

await call("rank", "/rank", "post", { body: { actions, contextFeatures, eventId: "new" } });
await call("reward", "/events/{eventId}/reward", "post", { body: { value: -1 } }, "new");
await call("activate", "/events/{eventId}/activate", "post", {}, "new");
await call("wrong", "/events/{eventId}/reward", "post", { body: { value: 2 } }, "new");
const service = await call("service", "/configurations/service", "get");
await call("putService", "/configurations/service", "put", { body: { ...service.body, rewardWaitTime: "PT4H" } });
const policy = await call("policy", "/configurations/policy", "get");
const multiSlot = policy.body.arguments.replace("--cb_explore_adf", "--ccb_explore_adf");
await call("putPolicy", "/configurations/policy", "put", { body: { name: "slots", arguments: multiSlot } });
const slots = [
  { id: "top", baselineAction: "news", features: [{ size: "large" }] },
  { id: "side", baselineAction: "sport", excludedActions: ["news"] },
];
await call("rankSlots", "/multislot/rank", "post", { body: { actions, slots, contextFeatures, eventId: "page" } });
const rewards = { reward: [{ slotId: "top", value: 1 }] };
await call("rewardSlots", "/multislot/events/{eventId}/reward", "post", { body: rewards }, "page");
await call("activateSlots", "/multislot/events/{eventId}/activate", "post", {}, "page");
await call("resetPolicy", "/configurations/policy", "delete");
await call("logs", "/logs/properties", "get");
const evaluation = { name: "js", startTime: "2020-01-01T00:00:00Z", endTime: "2100-01-01T00:00:00Z", policies: [] };
const made = await call("evaluate", "/evaluations", "post", { body: evaluation });
await call("evaluations", "/evaluations", "get");
await call("evaluation", "/evaluations/{evaluationId}", "get", {}, made.body.id);
await call("apply", "/configurations/applyFromEvaluation", "post", {
  body: { evaluationId: made.body.id, policyName: "nothing" },
});
await call("deleteEvaluation", "/evaluations/{evaluationId}", "delete", {}, made.body.id);
await call("modelProperties", "/model/properties", "get");
const model = await client.path("/model").get().asNodeStream();
const chunks = [];
for await (const chunk of model.body) chunks.push(chunk);
seen.model = { status: model.status, bytes: Buffer.concat(chunks).length };
const importModel = { body: Buffer.concat(chunks), contentType: "application/octet-stream" };
await call("importModel", "/model", "put", importModel);
await call("importRubbish", "/model", "put", { body: Buffer.from("rubbish"), contentType: "application/octet-stream" });
await call("resetModel", "/model", "delete");
await call("deleteLogs", "/logs", "delete");
console.log(JSON.stringify(seen));
