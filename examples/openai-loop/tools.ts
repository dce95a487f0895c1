/** The two local tools of the example agent: each a schema for the model and a function that answers with text. */
import type { ChatCompletionFunctionTool } from "openai/resources/chat/completions";

export type Tool = {
  readonly schema: ChatCompletionFunctionTool;
  /** Answers with text for the model; throws with a message that tells the model what to mend. */
  readonly call: (argumentsText: string, signal: AbortSignal | undefined) => Promise<string> | string;
};

const RIVERS_KM: { readonly [name: string]: number } = {
  Danube: 2850,
  Elbe: 1094,
  Loire: 1006,
  Main: 525,
  Rhine: 1233,
  Weser: 452,
};

function fields(argumentsText: string): { readonly [name: string]: unknown } {
  const value: unknown = JSON.parse(argumentsText === "" ? "{}" : argumentsText);
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new Error("arguments must be an object");
  return value as { readonly [name: string]: unknown };
}

function number(value: unknown, name: string): number {
  if (typeof value === "number" && Number.isFinite(value)) return value;
  throw new Error(`'${name}' must be a number, got ${JSON.stringify(value)}`);
}

export const LOCAL_TOOLS: readonly Tool[] = [
  {
    schema: {
      type: "function",
      function: {
        name: "lookup_river",
        description: "Looks a river up",
        parameters: {
          type: "object",
          properties: { name: { type: "string", enum: Object.keys(RIVERS_KM) } },
          required: ["name"],
          additionalProperties: false,
        },
      },
    },
    call(argumentsText) {
      const { name } = fields(argumentsText);
      const km = typeof name === "string" && Object.hasOwn(RIVERS_KM, name) ? RIVERS_KM[name] : undefined;
      if (km === undefined) {
        throw new Error(`no river ${JSON.stringify(name)}; known: ${Object.keys(RIVERS_KM).join(", ")}`);
      }
      return `The ${String(name)} is ${km} km long.`;
    },
  },
  {
    schema: {
      type: "function",
      function: {
        name: "add",
        description: "Adds two numbers",
        parameters: {
          type: "object",
          properties: { a: { type: "number" }, b: { type: "number" } },
          required: ["a", "b"],
          additionalProperties: false,
        },
      },
    },
    call(argumentsText) {
      const { a, b } = fields(argumentsText);
      const [first, second] = [number(a, "a"), number(b, "b")];
      return `${first} plus ${second} is ${first + second}.`;
    },
  },
];
