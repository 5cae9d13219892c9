// What a user writes with a client that openapi-typescript made: checked by tsc --strict, and run by node.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };
const [baseUrl, key] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });
const topic = "mail";

// No option is required, and each is checked: a word that is none does not compile.
const body: components["schemas"]["JobRequest"] = { id: "ts", delay: 60, context: { tenant: "acme" } };
// @ts-expect-error
const wrong: components["schemas"]["JobRequest"] = { priority: "urgent" };
void wrong;

const sent = await client.POST("/v1/topics/{topic}/jobs", { params: { path: { topic } }, body });
if (!sent.data) throw new Error(sent.error?.detail);
const path = { topic, id: sent.data.id };

const found = await client.GET("/v1/topics/{topic}/jobs/{id}", { params: { path } });
if (!found.data) throw new Error(found.error?.detail);
const state: "scheduled" | "ready" | "running" | "succeeded" | "dead" | "cancelled" = found.data.state;

const many = await client.POST("/v1/topics/{topic}/jobs:batch", {
  params: { path: { topic } },
  body: [{ id: "b1" }, { id: "b2", payload: [1] }],
  parseAs: "text",
});
const lines: components["schemas"]["BatchLine"][] = (many.data ?? "")
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line));

const missing = await client.DELETE("/v1/topics/{topic}/jobs/{id}", {
  params: { path: { topic, id: "nobody" } },
});
const told: components["schemas"]["Problem"] | undefined = missing.error;

console.log(
  JSON.stringify({
    state,
    due: new Date(found.data.due_at ?? "").getTime() > Date.now(),
    context: found.data.context,
    lines: lines.map((line) => [line.id, line.outcome]),
    problem: told?.type,
  }),
);
