import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { RequestScan, ScanProblem } from "../../src/dataplane/inspection.ts";
import { scanRequest } from "../../src/dataplane/request-scan.ts";
import { anyBody, anyValue, nearlyBody } from "./json-texts.ts";

const scan = (body: string | Buffer): RequestScan | ScanProblem => scanRequest(Buffer.from(body), "chat");

function scanned(body: string | Buffer): RequestScan {
  const result = scan(body);
  if ("code" in result) throw new Error(result.message);
  return result;
}

const problem = (body: string | Buffer): ScanProblem | undefined => {
  const result = scan(body);
  return "code" in result ? result : undefined;
};

/** Deepest nesting of a JSON value. */
function depthOf(value: unknown): number {
  if (typeof value !== "object" || value === null) return 0;
  return 1 + Math.max(0, ...Object.values(value).map(depthOf));
}

type Loose = { readonly [key: string]: unknown };
const isObject = (value: unknown): value is Loose =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** What a scan must find, by JSON.parse. Ranges are left out. */
function byParse(bytes: Buffer): unknown {
  let body: unknown;
  try {
    body = JSON.parse(bytes.toString("utf8")) as unknown;
  } catch {
    return "invalid_json";
  }
  if (!isObject(body)) return "invalid_json";
  const { model, stream, stream_options: options, messages } = body;
  if (typeof model !== "string" || model === "") return "missing_model";
  const list = Array.isArray(messages) ? (messages as unknown[]) : [];
  const roles = list.map((message) =>
    isObject(message) && typeof message["role"] === "string" ? message["role"] : "",
  );
  const last = list[roles.lastIndexOf("assistant")];
  const calls = isObject(last) && Array.isArray(last["tool_calls"]) ? (last["tool_calls"] as unknown[]) : [];
  return {
    model,
    stream: stream === true,
    includeUsage: isObject(options) && options["include_usage"] === true,
    streamOptions: options,
    messages: list,
    roles,
    calls: calls.flatMap((call) => {
      if (!isObject(call)) return [];
      const described = "function" in call ? call["function"] : call["custom"];
      if (!isObject(described) || typeof described["name"] !== "string") return [];
      const text = "arguments" in described ? described["arguments"] : described["input"];
      return [{ id: typeof call["id"] === "string" ? call["id"] : "", name: described["name"], arguments: text }];
    }),
  };
}

/** The same of a scan, its ranges read with JSON.parse. */
function byScan(bytes: Buffer): unknown {
  const found = scanRequest(bytes, "chat");
  if ("code" in found) return found.code;
  const at = ({ start, end }: { readonly start: number; readonly end: number }): unknown =>
    JSON.parse(bytes.toString("utf8", start, end));
  const { model, stream, includeUsage, streamOptions, messages, lastToolCalls, root } = found;
  expect(at(root)).toEqual(JSON.parse(bytes.toString("utf8")));
  return {
    model,
    stream,
    includeUsage,
    streamOptions: streamOptions === undefined ? undefined : at(streamOptions),
    messages: messages.map(at),
    roles: messages.map(({ role }) => role),
    calls: lastToolCalls.map(({ id, name, arguments: text }) => ({ id, name, arguments: text })),
  };
}

/** Arguments that are no string are found as their text: for the comparison both become values. */
function sameCalls(expected: unknown, found: unknown): void {
  if (!isObject(expected) || !isObject(found)) {
    expect(found).toEqual(expected);
    return;
  }
  const wanted = expected["calls"] as readonly { readonly arguments: unknown }[];
  const seen = found["calls"] as readonly { readonly arguments: string }[];
  const calls = seen.map((call, at) => {
    const value = wanted[at]?.arguments;
    if (typeof value === "string") return call;
    return { ...call, arguments: call.arguments === "" ? undefined : (JSON.parse(call.arguments) as unknown) };
  });
  expect({ ...found, calls }).toEqual(expected);
}

describe("what a scan finds", () => {
  it("is the model, the stream flags and the ranges of the messages", () => {
    const body =
      ' {"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"system","content":"s"}, {"role":"user","content":"u"}]}\n';
    const found = scanned(body);
    expect(found).toMatchObject({ model: "m", stream: true, includeUsage: true, lastToolCalls: [] });
    expect(found.messages.map(({ role, start, end }) => [role, body.slice(start, end)])).toEqual([
      ["system", '{"role":"system","content":"s"}'],
      ["user", '{"role":"user","content":"u"}'],
    ]);
    expect(body.slice(found.root.start, found.root.end)).toBe(body.trim());
  });

  it("is the last of duplicate keys, whatever their escapes", () => {
    expect(scanned('{"model":"a","mod\\u0065l":"b"}').model).toBe("b");
    expect(scanned('{"model":"m","stream":true,"\\u0073tream":false}').stream).toBe(false);
    expect(
      scanned(
        '{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"f"}}]}],"messages":[]}',
      ).lastToolCalls,
    ).toEqual([]);
  });

  it("is never taken out of a text or a nested object", () => {
    const body =
      '{"messages":[{"role":"user","content":"\\"model\\":\\"evil\\""}],"metadata":{"model":"evil","stream":true},"model":"m"}';
    expect(scanned(body)).toMatchObject({ model: "m", stream: false });
  });

  it("is the tool calls of the last assistant message as they were echoed", () => {
    const call = (id: string, text: string): string =>
      `{"id":"${id}","type":"function","function":{"name":"f","arguments":${text}}}`;
    const body = `{"model":"m","messages":[
      {"role":"assistant","tool_calls":[${call("old", '"{}"')}]},{"role":"tool","content":"r"},
      {"role":"assistant","content":null,"tool_calls":[${call("a", '"{\\"x\\": 1.0}"')}, ${call("b", '{ "big": 12345678901234567890 }')}]},
      {"role":"tool","content":"r"},{"role":"user","content":"u"}]}`;
    expect(scanned(body).lastToolCalls).toEqual([
      { id: "a", name: "f", arguments: '{"x": 1.0}' },
      { id: "b", name: "f", arguments: '{ "big": 12345678901234567890 }' },
    ]);
  });

  it("is no tool calls when the last assistant message has none", () => {
    const body =
      '{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}}]},{"role":"assistant","content":"done"}]}';
    expect(scanned(body).lastToolCalls).toEqual([]);
  });

  it("is no tool calls when there are absurdly many", () => {
    const calls = (count: number): string =>
      `{"model":"m","messages":[{"role":"assistant","tool_calls":[${Array.from({ length: count }, () => '{"id":"a","function":{"name":"f"}}').join(",")}]}]}`;
    expect(scanned(calls(256)).lastToolCalls).toHaveLength(256);
    expect(scanned(calls(257)).lastToolCalls).toHaveLength(0);
  });

  it("is no messages when there are absurdly many, but the calls of the last answer all the same", () => {
    const many = (count: number): string =>
      `{"model":"m","messages":[${"0,".repeat(count - 1)}{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}}]}]}`;
    expect(scanned(many(16_384)).messages).toHaveLength(16_384);
    expect(scanned(many(16_385)).messages).toHaveLength(0);
    expect(scanned(many(16_385)).lastToolCalls).toEqual([{ id: "a", name: "f", arguments: "" }]);
    expect(scanned(`${many(16_385).slice(0, -1)},"messages":[{"role":"user"}]}`).messages).toHaveLength(1);
  });

  it("is what a call says last, in whatever order and however often it says it", () => {
    const calls = (text: string): unknown =>
      scanned(`{"model":"m","messages":[{"role":"assistant","tool_calls":[${text}]}]}`).lastToolCalls;
    expect(
      calls(
        '{"function":{"name":"g","arguments":"1","arguments":"2","n\\u0061me":"f"},"id":"a","id":"b"},{"custom":{"input":"in","name":"c"},"id":"d"}',
      ),
    ).toEqual([
      { id: "b", name: "f", arguments: "2" },
      { id: "d", name: "c", arguments: "in" },
    ]);
    // The function counts where both stand, even if it says nothing; the later of two functions counts.
    expect(calls('{"custom":{"name":"c"},"function":7}')).toEqual([]);
    expect(calls('{"function":{"name":"f"},"function":{}}')).toEqual([]);
    expect(
      calls('7,{},[],{"function":{"name":7}},{"function":{"name":"f","x":{"name":"g"}},"x":[{"id":"z"}]}'),
    ).toEqual([{ id: "", name: "f", arguments: "" }]);
  });

  it("is nothing that a key only resembles", () => {
    for (const key of [
      "mod\\u0065",
      "model\\u0065",
      "mod\\u0065\\n",
      "mod\\nel",
      "mod\\n0065l",
      "mod\\u0165l",
      "mod\\u0045l",
      "\\u006d",
    ]) {
      expect(problem(`{"${key}":"m"}`)?.code).toBe("missing_model");
    }
    expect(scanned('{"\\u006D\\u006Fd\\u0065\\u006c":"m"}').model).toBe("m");
  });

  it("is the model of a text completion, whose prompt has no messages", () => {
    const found = scanRequest(
      Buffer.from('{"prompt":["a","b"],"messages":[{"role":"user"}],"model":"m"}'),
      "completions",
    );
    expect(found).toMatchObject({ model: "m", messages: [] });
  });

  it("is left to the engine where a field has a wrong type", () => {
    expect(scanned('{"model":"m","stream":"true","stream_options":7,"messages":{"role":"user"}}')).toMatchObject({
      stream: false,
      includeUsage: false,
      messages: [],
    });
  });
});

describe("what is wrong with a body", () => {
  it.each([
    ["", "the request has no body: send a JSON object"],
    ["[]", "the body is not a JSON object: send {…}"],
    ['"text"', "the body is not a JSON object: send {…}"],
    [" ", "the body is not valid JSON at byte 1: expected a value"],
    ['{"model":"m",}', "the body is not valid JSON at byte 13: expected a string"],
    ['{"model":"m"', "the body is not valid JSON at byte 12: expected ',' or '}'"],
    ['{"model" "m"}', "the body is not valid JSON at byte 9: expected ':'"],
    ['{"model":"m"}}', "the body is not valid JSON at byte 13: something follows the object"],
    ['{"a":[1 2]}', "the body is not valid JSON at byte 8: expected ',' or ']'"],
    ['{"a":"x\ny"}', "the body is not valid JSON at byte 7: a control character in a string must be escaped"],
    ['{"a":"\\x"}', "the body is not valid JSON at byte 7: unknown escape"],
    ['{"a":"\\u12g4"}', "the body is not valid JSON at byte 10: expected four hex digits"],
    ['{"a":"abc', "the body is not valid JSON at byte 9: the string has no end"],
    ['{"a":"abc\\', "the body is not valid JSON at byte 10: the string has no end"],
    ['{"a":-}', "the body is not valid JSON at byte 6: expected a digit"],
    ['{"a":1.}', "the body is not valid JSON at byte 7: expected a digit"],
    ['{"a":01}', "the body is not valid JSON at byte 6: expected ',' or '}'"],
    ['{"a":nul}', "the body is not valid JSON at byte 5: expected a value"],
    ["\ufeff{}", "the body is not valid JSON at byte 0: expected a value"],
    ['{"é":é}', "the body is not valid JSON at byte 6: expected a value"],
  ])("%j", (body, message) => {
    expect(problem(body)).toEqual({ code: "invalid_json", message });
  });

  it.each([
    ["{}", "`model` is missing: name the model to ask"],
    ['{"model":""}', "`model` must be a string of 1 to 1024 bytes that names a model"],
    [`{"model":"${"x".repeat(1_025)}"}`, "`model` must be a string of 1 to 1024 bytes that names a model"],
    ['{"model":null}', "`model` must be a string of 1 to 1024 bytes that names a model"],
    ['{"model":"m","model":7}', "`model` must be a string of 1 to 1024 bytes that names a model"],
  ])("%j", (body, message) => {
    expect(problem(body)).toEqual({ code: "missing_model", message, param: "model" });
  });

  it("is nesting beyond 512, wherever it stands", () => {
    const nested = (depth: number): string => "[".repeat(depth) + "]".repeat(depth);
    const objects = (depth: number): string => '{"a":'.repeat(depth) + "1" + "}".repeat(depth);
    expect(problem(`{"model":"m","x":${nested(511)}}`)).toBeUndefined();
    expect(problem(`{"model":"m","x":${objects(511)}}`)).toBeUndefined();
    expect(problem(`{"model":"m","messages":[{"content":${nested(509)}}]}`)).toBeUndefined();
    for (const body of [`{"x":${nested(512)}}`, `{"x":${objects(512)}}`, `{"messages":[{"content":${nested(510)}}]}`]) {
      expect(problem(body)?.message).toContain("nested more than 512 deep");
    }
    expect(problem(`{"x":${nested(2_000_000)}}`)?.message).toContain("nested more than 512 deep");
  });
});

describe("a scan against JSON.parse", () => {
  it("finds the same in any body", () => {
    fc.assert(
      fc.property(anyBody, (text) => {
        const bytes = Buffer.from(text);
        sameCalls(byParse(bytes), byScan(bytes));
      }),
      { numRuns: 1_000 },
    );
  });

  it("accepts and refuses the same bytes when they are nearly a body", () => {
    let accepted = 0;
    fc.assert(
      fc.property(nearlyBody, (bytes) => {
        const expected = byParse(bytes);
        if (expected !== "invalid_json") accepted += 1;
        sameCalls(expected, byScan(bytes));
      }),
      { numRuns: 2_000 },
    );
    // Else nothing but refusals were compared.
    expect(accepted).toBeGreaterThan(100);
  });

  it("accepts any value inside a body, up to the bound on nesting", () => {
    fc.assert(
      fc.property(anyValue, (text) => {
        fc.pre(depthOf(JSON.parse(text)) < 500);
        expect(problem(`{"x":${text},"model":"m"}`)).toBeUndefined();
      }),
      { numRuns: 1_000 },
    );
  });

  it("sees every byte that ends a run of string content, at every alignment", () => {
    for (let offset = 0; offset < 4; offset += 1) {
      for (let length = 0; length < 14; length += 1) {
        for (let at = 0; at < length; at += 1) {
          for (const byte of [0x00, 0x1f, 0x20, 0x21, 0x22, 0x23, 0x5b, 0x5c, 0x5d, 0x7f, 0x80, 0xa2, 0xdc, 0xff]) {
            const text = Buffer.alloc(length, "x");
            text[at] = byte;
            const body = Buffer.concat([Buffer.from('{"model":"m","x":"'), text, Buffer.from('"}')]);
            const room = Buffer.alloc(body.length + 8);
            body.copy(room, offset);
            const found = scanRequest(room.subarray(offset, offset + body.length), "chat");
            const expected = byParse(body);
            const code = "code" in found ? found.code : "fine";
            if (code !== (typeof expected === "string" ? expected : "fine")) {
              expect.fail(`byte ${byte} at ${at} of ${length}, offset ${offset}: ${code}`);
            }
          }
        }
      }
    }
  });
});
