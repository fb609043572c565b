// Tests a server with the official JavaScript clients of OpenAI and Anthropic: node clients.mjs http://127.0.0.1:8099
import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const base = process.argv[2] ?? "http://127.0.0.1:8080";
const apiKey = process.argv[3] ?? "none";
const o = new OpenAI({ baseURL: `${base}/v1`, apiKey, maxRetries: 0 });
const a = new Anthropic({ baseURL: base, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Say a word." }];
const schema = { type: "object", required: ["ok"], additionalProperties: false, properties: { ok: { type: "boolean" } } };
let failed = 0;

async function attempt(name, work) {
  try {
    console.log("ok    ", name, "|", String(JSON.stringify(await work())).slice(0, 110));
  } catch (error) {
    failed += 1;
    console.log("FAILED", name, "|", String(error).slice(0, 300));
  }
}

await attempt("models", async () => (await o.models.list()).data.map((model) => model.id));
await attempt("completion", async () => (await o.completions.create({ model: "demo", prompt: "Once", max_tokens: 4 })).choices[0].text);
await attempt("chat", async () => (await o.chat.completions.create({ model: "demo", messages, max_tokens: 8 })).choices[0].message);
await attempt("chat, streamed", async () => {
  let text = "";
  const stream = await o.chat.completions.create({ model: "demo", messages, max_tokens: 8, stream: true });
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  return text;
});
await attempt("chat, streamed by the helper", async () => {
  const stream = o.chat.completions.stream({ model: "demo", messages, max_tokens: 8 });
  return (await stream.finalChatCompletion()).choices[0].finish_reason;
});
await attempt("chat, n and logprobs", async () => {
  const answer = await o.chat.completions.create({ model: "demo", messages, max_tokens: 2, n: 2, logprobs: true, top_logprobs: 3 });
  assert.equal(answer.choices.length, 2);
  assert.equal(answer.choices[1].logprobs.content[0].top_logprobs.length, 3);
});
await attempt("chat, json_schema", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "x", schema, strict: true } };
  const answer = await o.chat.completions.create({ model: "demo", messages, max_tokens: 200, response_format });
  const value = JSON.parse(answer.choices[0].message.content);
  assert.equal(typeof value.ok, "boolean");
  return value;
});
await attempt("responses", async () => (await o.responses.create({ model: "demo", input: "x", max_output_tokens: 4 })).output_text);
await attempt("responses, streamed", async () => {
  const kinds = [];
  const stream = o.responses.stream({ model: "demo", input: "x", max_output_tokens: 4 });
  for await (const event of stream) kinds.push(event.type);
  assert.equal(kinds[0], "response.created");
  return (await stream.finalResponse()).status;
});
await attempt("messages", async () => (await a.messages.create({ model: "demo", messages, max_tokens: 8 })).content);
await attempt("messages, streamed", async () => {
  const stream = a.messages.stream({ model: "demo", messages, max_tokens: 8 });
  return (await stream.finalMessage()).stop_reason;
});
process.exit(failed > 0 ? 1 : 0);
