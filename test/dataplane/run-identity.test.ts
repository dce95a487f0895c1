import { describe, expect, it } from "vitest";
import { asPrincipalId } from "../../src/base/ids.ts";
import type { AnsweredToolCall, RequestScan } from "../../src/dataplane/inspection.ts";
import { scanRequest } from "../../src/dataplane/request-scan.ts";
import { answerKeys, requestIdentity, type RequestIdentity } from "../../src/dataplane/run-identity.ts";
import { createStreamTap } from "../../src/dataplane/stream-tap.ts";
import type { IdentityKey } from "../../src/wire/admission.ts";
import { read } from "./streams.ts";

const P = asPrincipalId("default");
type Scope = { readonly principal: ReturnType<typeof asPrincipalId>; readonly model: string };
const SCOPE: Scope = { principal: P, model: "m" };

function identify(text: string, scope: Scope = SCOPE): RequestIdentity {
  const body = Buffer.from(text);
  return requestIdentity(scope, body, scanRequest(body, "chat") as RequestScan);
}

const request = (messages: readonly unknown[]): string => JSON.stringify({ model: "m", stream: true, messages });
const requestOf = (...calls: readonly unknown[]): string =>
  request([
    { role: "user", content: "u" },
    { role: "assistant", content: null, tool_calls: calls },
    { role: "tool", content: "r" },
  ]);
const echoed = (id: string, name: string, text: unknown): unknown => ({
  id,
  type: "function",
  function: { name, arguments: text },
});
const answered = (id: string, name: string, text: string, choice = 0): AnsweredToolCall => ({
  choice,
  id,
  name,
  arguments: text,
});
const answer = (...toolCalls: readonly AnsweredToolCall[]): readonly IdentityKey[] =>
  answerKeys({ ...SCOPE, prefix: undefined }, { toolCalls });
const hashes = (keys: readonly IdentityKey[]): string[] => keys.map(({ hash }) => hash);
const callKeys = (keys: readonly IdentityKey[]): string[] =>
  keys.filter(({ source }) => source === "tool-calls").map(({ hash }) => hash);

/** The keys as the scheduler has them: which runs left which key; a key says something when one run left it. */
class Table {
  readonly #runs = new Map<string, Set<string>>();
  remember(run: string, keys: readonly IdentityKey[]): void {
    for (const { hash } of keys) this.#runs.set(hash, new Set([...(this.#runs.get(hash) ?? []), run]));
  }
  find(keys: readonly string[]): string | undefined {
    for (const hash of keys) {
      const runs = [...(this.#runs.get(hash) ?? [])];
      if (runs.length > 0) return runs.length === 1 ? runs[0] : undefined;
    }
    return undefined;
  }
}

describe("the tool calls of an answer", () => {
  // What vLLM sent: {"b": 1.0, "a":"x",  "2":"z"} in pieces, and a second call with an umlaut in its path.
  const tap = createStreamTap();
  const bytes = read("vllm-tools.sse");
  tap.push(bytes, 0, bytes.length);
  tap.finish();
  const left = answerKeys({ ...SCOPE, prefix: undefined }, tap.findings);
  const [id1, id2] = ["chatcmpl-tool-2f1b8c", "chatcmpl-tool-77d0aa"];
  const search = (text: unknown): unknown => echoed(id1, "search", text);
  const file = (text: unknown): unknown => echoed(id2, "read_file", text);

  it.each([
    ["openai-node", [search('{"b": 1.0, "a":"x",  "2":"z"}'), file('{"path": "/été.md"}')]],
    ["LangChain JS and the AI SDK", [search('{"2":"z","b":1,"a":"x"}'), file('{"path":"/été.md"}')]],
    ["Python", [search('{"b": 1.0, "a": "x", "2": "z"}'), file('{"path": "/\\u00e9t\\u00e9.md"}')]],
    ["a client that turns their order", [file('{"path": "/été.md"}'), search('{"2":"z","b":1,"a":"x"}')]],
    ["a client that sends objects", [search({ 2: "z", a: "x", b: 1 }), file({ path: "/été.md" })]],
  ])("are known again when %s echoes them", (_, calls) => {
    const { keys } = identify(requestOf(...calls));
    expect(callKeys(keys)).toEqual(callKeys(left));
  });

  it("are known by ids and names when the arguments were changed", () => {
    const { keys } = identify(requestOf(search("{}"), file('{"path":"…"}')));
    const [exact, names] = callKeys(keys);
    expect(hashes(left)).not.toContain(exact);
    expect(names).toBe(callKeys(left)[1]);
  });

  it.each([
    ["another id", [echoed("other", "search", '{"b":1,"a":"x","2":"z"}'), file('{"path": "/été.md"}')]],
    ["another name", [echoed(id1, "find", '{"b":1,"a":"x","2":"z"}'), file('{"path": "/été.md"}')]],
    ["one call fewer", [search('{"b":1,"a":"x","2":"z"}')]],
    ["one call twice", [search('{"b":1,"a":"x","2":"z"}'), file('{"path": "/été.md"}'), file('{"path": "/été.md"}')]],
  ])("are not known with %s", (_, calls) => {
    const { keys } = identify(requestOf(...calls));
    for (const hash of callKeys(keys)) expect(hashes(left)).not.toContain(hash);
  });

  it("are not known to another principal or for another model", () => {
    const text = requestOf(search('{"b":1,"a":"x","2":"z"}'), file('{"path": "/été.md"}'));
    for (const scope of [
      { ...SCOPE, principal: asPrincipalId("other") },
      { ...SCOPE, model: "n" },
    ]) {
      for (const hash of hashes(identify(text, scope).keys)) expect(hashes(left)).not.toContain(hash);
    }
  });

  it("cannot be forged into another scope by a model's name", () => {
    const parts = [
      { principal: asPrincipalId("a"), model: 'b"]\n["c' },
      { principal: asPrincipalId('a","b"]\n["c'), model: "" },
      { principal: asPrincipalId("a"), model: "bc" },
      { principal: asPrincipalId("ab"), model: "c" },
    ];
    const keys = parts.flatMap((scope) => hashes(identify(requestOf(search("{}")), scope).keys));
    expect(new Set(keys).size).toBe(keys.length);
  });

  it("of several choices are known choice by choice, since a client goes on with one", () => {
    const keys = answer(answered("a", "f", "{}"), answered("b", "g", "{}", 1), answered("c", "h", "{}", 1));
    expect(callKeys(keys)).toEqual(expect.arrayContaining(callKeys(identify(requestOf(echoed("a", "f", "{}"))).keys)));
    const second = identify(requestOf(echoed("b", "g", "{}"), echoed("c", "h", "{}")));
    expect(callKeys(keys)).toEqual(expect.arrayContaining(callKeys(second.keys)));
    expect(keys).toHaveLength(4);
  });

  it("are known by ids and names alone when their arguments are more than a mebibyte together", () => {
    const half = JSON.stringify({ text: "x".repeat(524_288 - 11) });
    expect(half.length).toBe(524_288);
    const calls = [echoed("a", "f", half), echoed("b", "f", half)];
    expect(callKeys(identify(requestOf(...calls)).keys)).toHaveLength(2);
    const [byNames, ...rest] = callKeys(identify(requestOf(...calls, echoed("c", "f", "1"))).keys);
    expect(rest).toEqual([]);
    expect(byNames).toBe(callKeys(answer(...["a", "b", "c"].map((id) => answered(id, "f", "{}"))))[1]);
  });

  it.each([
    ["call_8f14e45fceea167a5a36dedd", 1],
    ["chatcmpl-tool-8d2f1c0a4b5e46a1b7a9c3d2e1f00a11", 1],
    ["toolu_01A09q90qw90lq917835lq9", 1],
    ["functions.search_v2:0", 2],
    ["call_internationalisation", 2],
    ["call_12", 2],
    ["0", 2],
    ["", 2],
  ])("whose id is %j leave %i keys: ids drawn at random need no arguments beside them", (id, count) => {
    expect(callKeys(answer(answered(id, "f", '{"q":1}')))).toHaveLength(count);
    expect(callKeys(identify(requestOf(echoed(id, "f", '{"q":2}'))).keys)).toHaveLength(count);
  });

  it("leave both keys when one id of several says nothing", () => {
    const calls = [answered("call_8f14e45fceea167a5a36dedd", "f", "{}"), answered("call_1", "f", "{}")];
    expect(callKeys(answer(...calls))).toHaveLength(2);
  });

  it("give no key where there are none", () => {
    expect(answer()).toEqual([]);
    expect(callKeys(identify(request([{ role: "user", content: "u" }])).keys)).toEqual([]);
  });
});

describe("ids that engines send over and over", () => {
  it.each(["0", "call_0", "f:0", "functions.f:0", ""])("%j never merges two callers", (id) => {
    const table = new Table();
    table.remember("run-1", answer(answered(id, "f", '{"q": "one"}')));
    table.remember("run-2", answer(answered(id, "f", '{"q": "two"}')));
    const ask = (text: string): string | undefined =>
      table.find(callKeys(identify(requestOf(echoed(id, "f", text))).keys));
    expect(ask('{"q":"one"}')).toBe("run-1");
    expect(ask('{"q":"two"}')).toBe("run-2");
    // Neither exact key: ids and names alone fit both, so nobody is named.
    expect(ask('{"q":"three"}')).toBeUndefined();
    // The same call of both: the key names nobody any more.
    table.remember("run-2", answer(answered(id, "f", '{"q":"one"}')));
    expect(ask('{"q":"one"}')).toBeUndefined();
  });

  it("keep two callers apart whose big numbers differ in the last digit only", () => {
    const table = new Table();
    table.remember("run-1", answer(answered("0", "f", '{"id": 12345678901234567890}')));
    table.remember("run-2", answer(answered("0", "f", '{"id": 12345678901234567891}')));
    const ask = (text: string): string | undefined =>
      table.find(callKeys(identify(requestOf(echoed("0", "f", text))).keys));
    expect(ask('{"id":12345678901234567890}')).toBe("run-1");
    // JavaScript has lost the digits.
    expect(ask(JSON.stringify(JSON.parse('{"id":12345678901234567890}')))).toBeUndefined();
  });
});

describe("the prefix of a conversation", () => {
  const system = { role: "system", content: "s" };
  const user = {
    role: "user",
    content: [
      { type: "text", text: "é" },
      { type: "image_url", image_url: { url: "data:," } },
    ],
  };
  const reply = { role: "assistant", content: "a" };
  const next = { role: "user", content: "go on" };
  const prefixKeys = (keys: readonly IdentityKey[]): readonly IdentityKey[] =>
    keys.filter(({ source }) => source === "prefix");
  const leftBy = (text: string): string | undefined => identify(text).prefix;

  it("is known again in the next request: the same messages, the answer, and something new", () => {
    const { keys } = identify(request([system, user, reply, next]));
    expect(keys).toEqual([{ source: "prefix", hash: leftBy(request([system, user])), weak: true }]);
    expect(answerKeys({ ...SCOPE, prefix: leftBy(request([system, user])) }, { toolCalls: [] })).toEqual(keys);
  });

  it("is known again as Python writes it, with its own spaces", () => {
    const python = (messages: readonly unknown[]): string =>
      `{"model": "m", "messages": [${messages.map((message) => JSON.stringify(message, null, 1).replaceAll("\n", " ")).join(", ")}]}`;
    const [key] = identify(python([system, user, reply, next])).keys;
    expect(key?.hash).toBe(leftBy(python([system, user])));
  });

  it("does not depend on the other fields of the body, nor on where the messages stand", () => {
    const other = `{"messages":${JSON.stringify([system, user])},"temperature":0.5,"model":"m"}`;
    expect(leftBy(other)).toBe(leftBy(request([system, user])));
  });

  it("is looked for before each of the last three answers, the longest first", () => {
    const turns = [system, user, reply, next, reply, next, reply, next, reply, next];
    const { keys } = identify(request(turns));
    expect(hashes(prefixKeys(keys))).toEqual([8, 6, 4].map((count) => leftBy(request(turns.slice(0, count)))));
  });

  it("is known again when a client splits the answer into two messages", () => {
    const { keys } = identify(request([system, user, reply, { ...reply, content: "b" }, next]));
    expect(hashes(keys)).toContain(leftBy(request([system, user])));
  });

  it("comes behind the tool calls, and is weak", () => {
    const { keys } = identify(requestOf(echoed("a", "f", "{}")));
    expect(keys.map(({ source, weak }) => [source, weak])).toEqual([
      ["tool-calls", undefined],
      ["tool-calls", undefined],
      ["prefix", true],
    ]);
  });

  it("is not known to another principal, for another model, or after one changed byte", () => {
    const before = leftBy(request([system, user]));
    for (const [text, scope] of [
      [request([system, user, reply, next]), { ...SCOPE, principal: asPrincipalId("other") }],
      [request([system, user, reply, next]), { ...SCOPE, model: "n" }],
      [request([{ ...system, content: "S" }, user, reply, next]), SCOPE],
    ] as const) {
      expect(hashes(identify(text, scope).keys)).not.toContain(before);
    }
  });

  it.each([
    ["no messages", '{"model":"m"}', undefined],
    ["an empty list", request([]), undefined],
  ])("is nothing for %s", (_, text, expected) => {
    expect(identify(text)).toEqual({ keys: [], prefix: expected });
  });

  it("is not looked for before an answer that is the first message", () => {
    const { keys, prefix } = identify(request([reply, next]));
    expect(keys).toEqual([]);
    expect(prefix).toMatch(/^[\w-]{22}$/);
  });

  it("of sixteen runs with one opening is the same: the table must treat it as weak", () => {
    const openings = Array.from({ length: 16 }, () => leftBy(request([system, user])));
    expect(new Set(openings).size).toBe(1);
  });
});
