import { describe, expect, it } from "vitest";
import { errorEvent, type EventError } from "../../src/dataplane/error-events.ts";
import { createStreamTap } from "../../src/dataplane/stream-tap.ts";

const LOST: EventError = { message: "engine a: closed", type: "upstream_error", code: "engine_lost" };

describe("the error event of a stream", () => {
  it.each([
    ["chat", 'data: {"error":{"message":"engine a: closed","type":"upstream_error","code":"engine_lost"}}\n\n'],
    ["completions", 'data: {"error":{"message":"engine a: closed","type":"upstream_error","code":"engine_lost"}}\n\n'],
    [
      "responses",
      'event: error\ndata: {"error":{"message":"engine a: closed","type":"upstream_error","code":"engine_lost"}}\n\n',
    ],
    ["messages", 'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"engine a: closed"}}\n\n'],
  ] as const)("of %s is its API's own", (api, expected) => {
    expect(errorEvent(api, LOST).toString()).toBe(expected);
  });

  it("of messages names the type that its SDK retries", () => {
    const type = (code: EventError["code"]): unknown =>
      JSON.parse(/data: (.*)\n/.exec(errorEvent("messages", { ...LOST, code }).toString())?.[1] ?? "");
    expect(type("overloaded")).toMatchObject({ error: { type: "overloaded_error" } });
    expect(type("hold_deadline")).toMatchObject({ error: { type: "rate_limit_error" } });
    // Codes of engines.
    for (const code of ["toString", 500, null]) expect(type(code)).toMatchObject({ error: { type: "api_error" } });
  });

  it.each(['quotes " and \\', "lines\n\r\n\u2028data: [DONE]\n\n", "é漢字😀\ud800"])(
    "stays one event with %j in it",
    (message) => {
      const bytes = errorEvent("chat", { ...LOST, message });
      expect(bytes.toString().match(/[\r\n]+/g)).toEqual(["\n\n"]);
      const tap = createStreamTap();
      tap.push(bytes, 0, bytes.length);
      expect(tap.findings).toMatchObject({ failed: true, terminal: false, betweenEvents: true });
      expect(JSON.parse(bytes.toString().slice(6))).toMatchObject({ error: { message } });
    },
  );
});
