/**
 * The tools that the official conformance suite asks a server for, by the names that it gives them.
 *
 * Those of tasks and of approvals are runs of the real runtime (`fixtures-as-runs.ts`). Those here are about content,
 * questions and sealed states: they need the server that the face is built on, and no run.
 */
import {
  acceptedContent,
  inputRequired,
  ProtocolError,
  type ElicitRequestFormParams,
} from "@modelcontextprotocol/server";
import type { ExtraCall } from "../../src/runtime/mcp/deps.ts";
import { newWait } from "../../src/runtime/mcp/waiting.ts";

type Listed = { readonly name: string; readonly description: string; readonly inputSchema: object };
type Fixture = { readonly listed: Listed; readonly call: (call: ExtraCall) => Promise<object> | object };

const MISSING_CAPABILITY = -32021;

/** One red pixel. */
const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";
/** A WAV file without a sample. */
const WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

export const text = (words: string): object => ({ content: [{ type: "text", text: words }] });

export function listed(name: string, properties: { readonly [name: string]: object } = {}): Listed {
  return {
    name,
    description: `A fixture of the conformance suite: ${name}.`,
    inputSchema: { type: "object", properties },
  };
}

function form(message: string, properties: object): ElicitRequestFormParams {
  const required = Object.keys(properties);
  return {
    mode: "form",
    message,
    requestedSchema: { type: "object", properties, required },
  } as ElicitRequestFormParams;
}

const ASK_NAME = form("What is your name?", { name: { type: "string" } });
const SAMPLE = {
  messages: [{ role: "user" as const, content: { type: "text" as const, text: "What is the capital of France?" } }],
  maxTokens: 100,
};

async function ask(call: ExtraCall, params: ElicitRequestFormParams, words: string): Promise<object> {
  const { action, content } = await call.context.mcpReq.elicitInput(params);
  return text(`${words}action=${action}, content=${JSON.stringify(content ?? {})}`);
}

/** Asks, without a sealed state, until the client's answers hold what is needed. */
export function untilNamed(call: ExtraCall, done: (name: string) => object): object {
  const answer = acceptedContent(call.context.mcpReq.inputResponses, "user_name");
  const name = answer?.["name"];
  if (typeof name === "string") return done(name);
  return inputRequired({ inputRequests: { user_name: inputRequired.elicit(ASK_NAME) } });
}

/** Asks in rounds; the sealed state says which is the last that was put. */
async function inRounds(
  { context, mint }: ExtraCall,
  rounds: readonly NonNullable<Parameters<typeof inputRequired>[0]["inputRequests"]>[],
  done: object,
): Promise<object> {
  const put = context.mcpReq.requestState<{ readonly rounds: number } | undefined>()?.rounds ?? 0;
  const inputRequests = rounds[put];
  if (inputRequests === undefined) return done;
  const requestState = await mint?.({ ...newWait([], "all"), rounds: put + 1 });
  return inputRequired({ inputRequests, ...(requestState === undefined ? {} : { requestState }) });
}

const pause = (): Promise<void> =>
  new Promise((resolve) => {
    setTimeout(resolve, 50);
  });

async function withProgress({ context }: ExtraCall): Promise<object> {
  const progressToken = context.mcpReq._meta?.progressToken;
  for (const progress of [0, 50, 100]) {
    if (progress > 0) await pause();
    if (progressToken === undefined) continue;
    const params = { progressToken, progress, total: 100 };
    await context.mcpReq.notify({ method: "notifications/progress", params });
  }
  return text("it told of its progress");
}

const DEFAULTS = {
  name: { type: "string", default: "John Doe" },
  age: { type: "integer", default: 30 },
  score: { type: "number", default: 95.5 },
  status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
  verified: { type: "boolean", default: true },
};

const titled = (values: readonly (readonly [string, string])[]): readonly object[] =>
  values.map(([value, title]) => ({ const: value, title }));
const OPTIONS = ["option1", "option2", "option3"];
const CHOICES = titled([
  ["value1", "First Choice"],
  ["value2", "Second Choice"],
  ["value3", "Third Choice"],
]);
const ENUMS = {
  untitledSingle: { type: "string", enum: OPTIONS },
  titledSingle: { type: "string", oneOf: CHOICES },
  legacyEnum: {
    type: "string",
    enum: ["opt1", "opt2", "opt3"],
    enumNames: ["Option One", "Option Two", "Option Three"],
  },
  untitledMulti: { type: "array", items: { type: "string", enum: OPTIONS } },
  titledMulti: { type: "array", items: { anyOf: CHOICES } },
};

/** Uses of the 2020-12 dialect that a list must not lose. */
const SCHEMA_2020_12 = {
  $schema: "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  $defs: {
    address: {
      $anchor: "addressDef",
      type: "object",
      properties: { street: { type: "string" }, city: { type: "string" } },
    },
  },
  properties: {
    name: { type: "string" },
    address: { $ref: "#/$defs/address" },
    contactMethod: { type: "string", enum: ["phone", "email"] },
    phone: { type: "string" },
    email: { type: "string" },
  },
  allOf: [{ anyOf: [{ required: ["phone"] }, { required: ["email"] }] }],
  if: { properties: { contactMethod: { const: "phone" } }, required: ["contactMethod"] },
  // oxlint-disable-next-line unicorn/no-thenable -- the keyword of JSON Schema
  then: { required: ["phone"] },
  else: { required: ["email"] },
  additionalProperties: false,
};

const RED_PIXEL = { type: "image", data: PNG, mimeType: "image/png" };
const resource = (uri: string, mimeType: string, words: string): object => ({
  type: "resource",
  resource: { uri, mimeType, text: words },
});

const plain = (name: string, result: object): Fixture => ({ listed: listed(name), call: () => result });
const asking = (name: string, call: Fixture["call"]): Fixture => ({ listed: listed(name), call });

export const PLAIN_FIXTURES: readonly Fixture[] = [
  plain("test_simple_text", text("This is a simple text response for testing.")),
  plain("test_image_content", { content: [RED_PIXEL] }),
  plain("test_audio_content", { content: [{ type: "audio", data: WAV, mimeType: "audio/wav" }] }),
  plain("test_embedded_resource", {
    content: [resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")],
  }),
  plain("test_multiple_content_types", {
    content: [
      { type: "text", text: "Multiple content types test:" },
      RED_PIXEL,
      resource("test://mixed-content-resource", "application/json", `{"test":"data","value":123}`),
    ],
  }),
  plain("test_error_handling", { ...text("This tool intentionally returns an error for testing"), isError: true }),
  plain("test_logging_tool", text("nothing was logged")),
  asking("test_tool_with_progress", withProgress),
  {
    listed: listed("test_elicitation", { message: { type: "string" } }),
    call: (call) => {
      const properties = { username: { type: "string" }, email: { type: "string" } };
      return ask(call, form(String(call.arguments["message"]), properties), "User response: ");
    },
  },
  asking("test_elicitation_sep1034_defaults", (call) =>
    ask(call, form("Look these over", DEFAULTS), "Elicitation completed: "),
  ),
  asking("test_elicitation_sep1330_enums", (call) => ask(call, form("Choose", ENUMS), "Elicitation completed: ")),
  {
    listed: { ...listed("json_schema_2020_12_tool"), inputSchema: SCHEMA_2020_12 },
    call: () => text("listed"),
  },
  asking("test_missing_capability", () => {
    throw new ProtocolError(MISSING_CAPABILITY, "this needs the client capability sampling", {
      requiredCapabilities: { sampling: {} },
    });
  }),
  asking("test_streaming_elicitation", (call) => untilNamed(call, (name) => text(`Hello, ${name}!`))),
  asking("test_input_required_result_elicitation", (call) => untilNamed(call, (name) => text(`Hello, ${name}!`))),
  asking("test_input_required_result_request_state", (call) => {
    const confirm = inputRequired.elicit(form("Please confirm", { ok: { type: "boolean" } }));
    return inRounds(call, [{ confirm }], text("state-ok"));
  }),
  asking("test_input_required_result_tampered_state", (call) => {
    const confirm = inputRequired.elicit(form("Please confirm", { ok: { type: "boolean" } }));
    return inRounds(call, [{ confirm }], text("state-ok"));
  }),
  asking("test_input_required_result_multi_round", (call) => {
    const step1 = inputRequired.elicit(form("Step 1: What is your name?", { name: { type: "string" } }));
    const step2 = inputRequired.elicit(form("Step 2: What is your favorite color?", { color: { type: "string" } }));
    return inRounds(call, [{ step1 }, { step2 }], text("both steps are done"));
  }),
  asking("test_input_required_result_capabilities", (call) => {
    // What the client has not declared is not asked for.
    const user_name = inputRequired.elicit(ASK_NAME);
    return inRounds(
      call,
      [call.client.elicits ? { user_name } : { answer: inputRequired.createMessage(SAMPLE) }],
      text("done"),
    );
  }),
  asking("test_input_required_result_sampling", (call) =>
    inRounds(call, [{ capital_question: inputRequired.createMessage(SAMPLE) }], text("Paris")),
  ),
  asking("test_input_required_result_list_roots", (call) =>
    inRounds(call, [{ client_roots: inputRequired.listRoots() }], text("roots were listed")),
  ),
  asking("test_input_required_result_multiple_inputs", (call) => {
    const user_name = inputRequired.elicit(ASK_NAME);
    const greeting = inputRequired.createMessage(SAMPLE);
    return inRounds(
      call,
      [{ user_name, greeting, client_roots: inputRequired.listRoots() }],
      text("all were answered"),
    );
  }),
];
