/**
 * One pass over the body of a turn: valid JSON or not, which model, streaming or not, where its messages are. The body is
 * not parsed into objects: that would double the fixed cost of a turn (bench/overhead).
 *
 * Q1: every byte of the body is read once, whatever is looked for; only the echoed tool calls and `stream_options` are read a
 *     second time.
 * Q2: what is kept of a body is bounded, whatever is in it.
 * Q3: of duplicate keys the last one counts, and keys are compared with their escapes resolved, as JSON.parse has it.
 */
import type { WireApi } from "../wire/endpoint.ts";
import type { ByteRange, EchoedToolCall, RequestScan, ScannedMessage, ScanProblem } from "./inspection.ts";
import { BYTE, JsonProblem, JsonScan } from "./json-scan.ts";

/** A client that echoes more calls than this is not recognised by them (the tap keeps no more of an answer either). */
const CALLS_MAX = 256;

/** A longer conversation is not recognised by its prefix: two bytes make a message, and each costs 50 bytes to keep. */
const MESSAGES_MAX = 16_384;

/** A longer name is none: it would go into errors, events and the link. */
const MODEL_BYTES_MAX = 1_024;

/** True, as the first byte of its word: a scanned value that begins so is `true`. */
const TRUE = 0x74;

/**
 * @param api decides which fields are looked for; every API here has `model` and `stream` at the top.
 * @returns what was found, or what is wrong in words for the client. `stream` that is no boolean and messages that are
 * no messages are the engine's to refuse.
 */
export function scanRequest(body: Buffer, api: WireApi): RequestScan | ScanProblem {
  if (body.length === 0) {
    return { code: "invalid_json", message: "the request has no body: send a JSON object" };
  }
  try {
    return new RequestWalk(body, api).scan();
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error;
    return { code: "invalid_json", message: `the body is not valid JSON at byte ${error.at}: ${error.message}` };
  }
}

class RequestWalk {
  readonly #cursor: JsonScan;
  readonly #api: WireApi;
  #model: string | undefined;
  #modelSeen = false;
  #stream = false;
  #streamOptions: ByteRange | undefined;
  #tools: ByteRange | undefined;
  #priority: ByteRange | undefined;
  #messages: ScannedMessage[] = [];
  /** The `tool_calls` of the last assistant message, where it has a list of them. */
  #calls: ByteRange | undefined;

  constructor(body: Buffer, api: WireApi) {
    this.#cursor = new JsonScan(body);
    this.#api = api;
  }

  scan(): RequestScan | ScanProblem {
    const cursor = this.#cursor;
    if (cursor.peek() !== BYTE.openObject) {
      cursor.value(0);
      return { code: "invalid_json", message: "the body is not a JSON object: send {…}" };
    }
    const start = cursor.at;
    if (cursor.firstMember()) {
      do this.#field();
      while (cursor.nextMember());
    }
    const root = { start, end: cursor.at };
    if (cursor.peek() !== -1) throw new JsonProblem(cursor.at, "something follows the object");
    if (this.#model === undefined || this.#model === "") {
      const message = this.#modelSeen
        ? `\`model\` must be a string of 1 to ${MODEL_BYTES_MAX} bytes that names a model`
        : "`model` is missing: name the model to ask";
      return { code: "missing_model", message, param: "model" };
    }
    return {
      model: this.#model,
      stream: this.#stream,
      includeUsage: this.#asksForUsage(),
      streamOptions: this.#streamOptions,
      tools: this.#tools,
      priority: this.#priority,
      root,
      messages: this.#messages.length > MESSAGES_MAX ? [] : this.#messages,
      lastToolCalls: this.#calls === undefined ? [] : echoedCalls(cursor, this.#calls.start),
    };
  }

  #field(): void {
    const cursor = this.#cursor;
    const first = cursor.peek();
    const start = cursor.at;
    if (cursor.keyIs("messages")) {
      this.#messages = [];
      this.#calls = undefined;
      if (first === BYTE.openArray && this.#api === "chat") this.#messageList();
      else cursor.value(1);
    } else if (cursor.keyIs("model")) {
      cursor.value(1);
      this.#modelSeen = true;
      const isName = first === BYTE.quote && cursor.at - start - 2 <= MODEL_BYTES_MAX;
      this.#model = isName ? cursor.text(start, cursor.at, cursor.escaped) : undefined;
    } else if (cursor.keyIs("stream")) {
      cursor.value(1);
      this.#stream = first === TRUE;
    } else if (cursor.keyIs("stream_options")) {
      cursor.value(1);
      this.#streamOptions = { start, end: cursor.at };
    } else if (cursor.keyIs("tools")) {
      cursor.value(1);
      this.#tools = { start, end: cursor.at };
    } else if (cursor.keyIs("priority")) {
      cursor.value(1);
      this.#priority = { start, end: cursor.at };
    } else {
      cursor.value(1);
    }
  }

  #asksForUsage(): boolean {
    const at = this.#streamOptions?.start;
    return at !== undefined && memberValue(this.#cursor, at, "include_usage")?.first === TRUE;
  }

  #messageList(): void {
    const cursor = this.#cursor;
    if (!cursor.firstElement()) return;
    do this.#message();
    while (cursor.nextElement());
  }

  #message(): void {
    const cursor = this.#cursor;
    const isObject = cursor.peek() === BYTE.openObject;
    const start = cursor.at;
    let role = "";
    let calls: ByteRange | undefined;
    if (!isObject) {
      cursor.value(2);
    } else if (cursor.firstMember()) {
      do {
        const first = cursor.peek();
        const from = cursor.at;
        const isRole = cursor.keyIs("role");
        const isCalls = !isRole && cursor.keyIs("tool_calls");
        cursor.value(3);
        if (isRole) role = first === BYTE.quote ? roleText(cursor, from) : "";
        else if (isCalls) calls = first === BYTE.openArray ? { start: from, end: cursor.at } : undefined;
      } while (cursor.nextMember());
    }
    // One more than are kept shows that there were too many.
    if (this.#messages.length <= MESSAGES_MAX) this.#messages.push({ start, end: cursor.at, role });
    if (role === "assistant") this.#calls = calls;
  }
}

const ROLES = ["user", "assistant", "tool", "system", "developer"] as const;

/** The string that ends at the cursor. A role that is known needs no new string: a conversation has hundreds. */
function roleText(cursor: JsonScan, start: number): string {
  const { bytes, at, escaped } = cursor;
  if (!escaped) {
    for (const role of ROLES) if (isAt(bytes, start + 1, at - 1, role)) return role;
  }
  return cursor.text(start, at, escaped);
}

function isAt(bytes: Buffer, start: number, end: number, word: string): boolean {
  if (end - start !== word.length) return false;
  for (let index = 0; index < word.length; index += 1) {
    if (bytes[start + index] !== word.charCodeAt(index)) return false;
  }
  return true;
}

/** A value in a scanned body, and the byte with which it begins. */
export type FoundValue = ByteRange & { readonly first: number };

/**
 * The value of the last member of that name in the object at `at`; undefined when there is none, or no object.
 * The bytes were scanned before.
 */
export function memberValue(cursor: JsonScan, at: number, name: string): FoundValue | undefined {
  cursor.at = at;
  let found: FoundValue | undefined;
  if (cursor.peek() !== BYTE.openObject || !cursor.firstMember()) return undefined;
  do {
    if (cursor.keyIs(name)) found = valueAt(cursor);
    else cursor.value(0);
  } while (cursor.nextMember());
  return found;
}

/** The tool calls in the list at `at`, as the client echoes them; what names no function is left out. */
function echoedCalls(cursor: JsonScan, at: number): readonly EchoedToolCall[] {
  const calls: EchoedToolCall[] = [];
  cursor.at = at;
  if (!cursor.firstElement()) return calls;
  do {
    if (cursor.peek() !== BYTE.openObject) {
      cursor.value(0);
      continue;
    }
    const call = echoedCall(cursor);
    if (call !== undefined) calls.push(call);
    if (calls.length > CALLS_MAX) return [];
  } while (cursor.nextElement());
  return calls;
}

/** Reads the call at the cursor, each byte of it once: its arguments can be most of a body. */
function echoedCall(cursor: JsonScan): EchoedToolCall | undefined {
  let id: FoundValue | undefined;
  let called: Described | undefined;
  // A custom tool has its text in `input` instead of arguments.
  let custom: Described | undefined;
  if (!cursor.firstMember()) return undefined;
  do {
    if (cursor.keyIs("function")) called = describedAt(cursor);
    else if (cursor.keyIs("custom")) custom = describedAt(cursor);
    else if (cursor.keyIs("id")) id = valueAt(cursor);
    else cursor.value(0);
  } while (cursor.nextMember());
  const described = called ?? custom;
  const name = stringOf(cursor, described?.name);
  if (described === undefined || name === undefined) return undefined;
  const value = described.arguments ?? described.input;
  return {
    id: stringOf(cursor, id) ?? "",
    name,
    // Some clients send the arguments as an object: its text counts, which the canonical form makes comparable.
    arguments:
      stringOf(cursor, value) ?? (value === undefined ? "" : cursor.bytes.toString("utf8", value.start, value.end)),
  };
}

type Described = { name?: FoundValue; arguments?: FoundValue; input?: FoundValue };

/** What an object says about the function that is called; nothing, where it is no object. */
function describedAt(cursor: JsonScan): Described {
  const described: Described = {};
  if (cursor.peek() !== BYTE.openObject) {
    cursor.value(0);
    return described;
  }
  if (!cursor.firstMember()) return described;
  do {
    if (cursor.keyIs("name")) described.name = valueAt(cursor);
    else if (cursor.keyIs("arguments")) described.arguments = valueAt(cursor);
    else if (cursor.keyIs("input")) described.input = valueAt(cursor);
    else cursor.value(0);
  } while (cursor.nextMember());
  return described;
}

function valueAt(cursor: JsonScan): FoundValue {
  const first = cursor.peek();
  const start = cursor.at;
  cursor.value(0);
  return { start, end: cursor.at, first };
}

function stringOf(cursor: JsonScan, value: FoundValue | undefined): string | undefined {
  if (value?.first !== BYTE.quote) return undefined;
  const { start, end } = value;
  return cursor.text(start, end, cursor.bytes.subarray(start, end).includes(BYTE.backslash));
}
