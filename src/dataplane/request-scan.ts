/**
 * One pass over the body of a turn: valid JSON or not, which model, streaming or not, where its messages are. The body is
 * not parsed into objects: that would double the fixed cost of a turn (bench/overhead); only the last assistant message
 * is, when it carries tool calls.
 */
import type { WireApi } from "../wire/endpoint.ts";
import type { ByteRange, EchoedToolCall, RequestScan, ScannedMessage, ScanProblem } from "./inspection.ts";
import { JsonProblem, JsonScan } from "./json-scan.ts";

type Found = {
  model: string | undefined;
  modelSeen: boolean;
  stream: boolean;
  streamOptions: ByteRange | undefined;
  includeUsage: boolean;
  messages: ScannedMessage[];
  /** The last assistant message, where it has tool calls. */
  calling: ByteRange | undefined;
};

/**
 * @param api decides which fields are looked for besides `model` and `stream`, which every API has at the top.
 * @returns what was found, or what is wrong in words for the client.
 */
export function scanRequest(body: Buffer, api: WireApi): RequestScan | ScanProblem {
  if (body.length === 0) {
    return { code: "invalid_json", message: "the request has no body; send a JSON object" };
  }
  try {
    return scan(body, api);
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error;
    return { code: "invalid_json", message: `the body is not valid JSON at byte ${error.at}: ${error.message}` };
  }
}

function scan(body: Buffer, api: WireApi): RequestScan | ScanProblem {
  const cursor = new JsonScan(body);
  if (cursor.peek() !== 0x7b) {
    cursor.value(0);
    return { code: "invalid_json", message: "the body is not a JSON object" };
  }
  const start = cursor.at;
  cursor.at += 1;
  const found: Found = {
    model: undefined,
    modelSeen: false,
    stream: false,
    streamOptions: undefined,
    includeUsage: false,
    messages: [],
    calling: undefined,
  };
  if (cursor.peek() === 0x7d) {
    cursor.at += 1;
  } else {
    members(cursor, (key) => field(cursor, body, key, api, found));
  }
  const root = { start, end: cursor.at };
  if (cursor.peek() !== -1) throw new JsonProblem(cursor.at, "something follows the object");
  if (found.model === undefined || found.model === "") {
    const message = found.modelSeen
      ? "`model` must be the name of a model"
      : "`model` is missing; name the model to ask";
    return { code: "missing_model", message, param: "model" };
  }
  const { model, stream, includeUsage, streamOptions, messages } = found;
  return {
    model,
    stream,
    includeUsage,
    streamOptions,
    root,
    messages,
    lastToolCalls: toolCallsOf(body, found.calling),
  };
}

/** Walks the members of an object whose `{` was read, up to and with its `}`. */
function members(cursor: JsonScan, onMember: (key: string) => void): void {
  for (;;) {
    cursor.peek();
    const from = cursor.at + 1;
    cursor.string();
    const key = keyText(cursor, from);
    cursor.expect(0x3a, "expected ':'");
    onMember(key);
    const next = cursor.peek();
    cursor.at += 1;
    if (next === 0x7d) return;
    if (next !== 0x2c) throw new JsonProblem(cursor.at - 1, "expected ',' or '}'");
  }
}

/** No key that is looked for is longer. */
const KEY_BYTES_MAX = 64;

function keyText(cursor: JsonScan, from: number): string {
  const to = cursor.at - 1;
  const bytes = cursor.bytes as Buffer;
  if (cursor.escaped) return JSON.parse(bytes.toString("utf8", from - 1, to + 1)) as string;
  return to - from > KEY_BYTES_MAX ? "" : bytes.toString("latin1", from, to);
}

function field(cursor: JsonScan, body: Buffer, key: string, api: WireApi, found: Found): void {
  const first = cursor.peek();
  const start = cursor.at;
  switch (key) {
    case "model":
      cursor.value(1);
      found.modelSeen = true;
      found.model = first === 0x22 ? stringAt(body, start, cursor.at, cursor.escaped) : undefined;
      return;
    case "stream":
      cursor.value(1);
      found.stream = first === 0x74;
      return;
    case "stream_options":
      cursor.value(1);
      found.streamOptions = first === 0x7b ? { start, end: cursor.at } : undefined;
      found.includeUsage = first === 0x7b && asksForUsage(body, start, cursor.at);
      return;
    case "messages":
      found.messages = [];
      found.calling = undefined;
      if (first === 0x5b && api === "chat") messageList(cursor, body, found);
      else cursor.value(1);
      return;
    default:
      cursor.value(1);
  }
}

function asksForUsage(body: Buffer, start: number, end: number): boolean {
  const options = JSON.parse(body.toString("utf8", start, end)) as { readonly include_usage?: unknown };
  return options.include_usage === true;
}

function stringAt(body: Buffer, start: number, end: number, escaped: boolean): string {
  if (escaped) return JSON.parse(body.toString("utf8", start, end)) as string;
  return body.toString("utf8", start + 1, end - 1);
}

function messageList(cursor: JsonScan, body: Buffer, found: Found): void {
  cursor.at += 1;
  if (cursor.peek() === 0x5d) {
    cursor.at += 1;
    return;
  }
  for (;;) {
    message(cursor, body, found);
    const next = cursor.peek();
    cursor.at += 1;
    if (next === 0x5d) return;
    if (next !== 0x2c) throw new JsonProblem(cursor.at - 1, "expected ',' or ']'");
  }
}

function message(cursor: JsonScan, body: Buffer, found: Found): void {
  const first = cursor.peek();
  const start = cursor.at;
  let role = "";
  let calls = false;
  if (first !== 0x7b) {
    cursor.value(2);
  } else {
    cursor.at += 1;
    if (cursor.peek() === 0x7d) {
      cursor.at += 1;
    } else {
      members(cursor, (key) => {
        const kind = cursor.peek();
        const from = cursor.at;
        cursor.value(3);
        if (key === "role" && kind === 0x22) role = stringAt(body, from, cursor.at, cursor.escaped);
        else if (key === "tool_calls") calls = kind === 0x5b;
      });
    }
  }
  found.messages.push({ start, end: cursor.at, role });
  if (role === "assistant") found.calling = calls ? { start, end: cursor.at } : undefined;
}

type LooseCall = {
  readonly id?: unknown;
  readonly function?: { readonly name?: unknown; readonly arguments?: unknown } | null;
} | null;

/** The tool calls of an assistant message as it echoes them; what has no function in it is left out. */
function toolCallsOf(body: Buffer, range: ByteRange | undefined): readonly EchoedToolCall[] {
  if (range === undefined) return [];
  const parsed = JSON.parse(body.toString("utf8", range.start, range.end)) as { readonly tool_calls?: unknown };
  if (!Array.isArray(parsed.tool_calls)) return [];
  return (parsed.tool_calls as LooseCall[]).flatMap((call) => {
    const name = call?.function?.name;
    if (typeof name !== "string") return [];
    const text = call?.function?.arguments;
    return [
      {
        id: typeof call?.id === "string" ? call.id : "",
        name,
        // Some clients send the arguments as an object: its text is compared in canonical form anyway.
        arguments: typeof text === "string" ? text : JSON.stringify(text ?? ""),
      },
    ];
  });
}
