/**
 * The model that the command-line agents get: it plays a user's wish with luftpause's tools. Which call comes next follows
 * from the conversation alone, as the agent sent it; so what it says at the end shows what the agent passed on.
 */

/** A tool result in the conversation, as text. */
export type Result = { readonly tool: string; readonly text: string };

export type Conversation = {
  /** Names of the tools that are offered, as the agent calls them. */
  readonly tools: readonly string[];
  /** In order. */
  readonly results: readonly Result[];
};

export type Step =
  | { readonly kind: "call"; readonly tool: string; readonly input: { readonly [name: string]: unknown } }
  | { readonly kind: "text"; readonly text: string };

/** Tasks that the agent hands out; each run makes one call, for which a person is asked. */
export const FAN = 6;
const TASKS: readonly string[] = Array.from({ length: FAN }, (_, at) => `Look river ${at} up and say how long it is.`);

type Entry = {
  readonly handle: string;
  readonly state: string;
  readonly pendingApprovals?: readonly { readonly id: string }[];
};

/** What the model does next. */
export function nextStep({ tools, results }: Conversation): Step {
  const named = (name: string): string | undefined => tools.find((tool) => tool === name || tool.endsWith(`_${name}`));
  const [spawn, wait, approve] = [named("spawn"), named("await"), named("approve")];
  if (spawn === undefined || wait === undefined)
    return { kind: "text", text: `no tools of luftpause among ${tools.join(", ")}` };
  const handles = results.flatMap(({ text }) => fieldsOf<{ handles?: readonly string[] }>(text).handles ?? []);
  if (handles.length === 0) {
    if (results.length > 0) return { kind: "text", text: `spawn answered: ${results.at(-1)?.text}` };
    const input = { tasks: TASKS, tools: ["lookup"], approveTools: ["lookup"], maxToolCalls: 1 };
    return { kind: "call", tool: spawn, input };
  }
  const last = results.at(-1)?.text ?? "";
  const { results: entries = [] } = fieldsOf<{ results?: readonly Entry[] }>(last);
  if (entries.length > 0 && entries.every(({ state }) => state !== "Running" && state !== "AwaitingApproval")) {
    return { kind: "text", text: `DONE ${JSON.stringify(entries.map(({ handle, state }) => ({ handle, state })))}` };
  }
  const [asking] = entries.flatMap(({ handle, pendingApprovals = [] }) =>
    pendingApprovals.map(({ id }) => ({ handle, id })),
  );
  if (asking !== undefined) {
    if (approve === undefined) return { kind: "text", text: `no approve among ${tools.join(", ")}` };
    return { kind: "call", tool: approve, input: { ...asking, allow: true } };
  }
  return { kind: "call", tool: wait, input: { handles, timeoutSeconds: 2 } };
}

/** The object in a result's text; agents put words around it. */
function fieldsOf<Fields extends object>(text: string): Partial<Fields> {
  const [from, to] = [text.indexOf("{"), text.lastIndexOf("}")];
  if (from < 0 || to < from) return {};
  try {
    return JSON.parse(text.slice(from, to + 1)) as Partial<Fields>;
  } catch {
    return {};
  }
}
