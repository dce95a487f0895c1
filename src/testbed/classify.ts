/** Single-pass classification: `/classify` (vLLM) and `/v1/classify` (SGLang). Only the winner has a name. */
import { createRandom, hashText } from "../base/random.ts";
import { text } from "./turn-request.ts";
import type { Body } from "./turn-request.ts";

export type ClassifyRequest = { readonly model: string; readonly inputs: readonly string[] };

/** The request, or a message that names the wrong field. */
export function readClassifyRequest(body: Body): ClassifyRequest | string {
  const model = text(body["model"]);
  if (model === undefined) return "model: Field required";
  const { input } = body;
  const inputs = Array.isArray(input) ? input : [input];
  if (inputs.length === 0 || !inputs.every((one) => typeof one === "string")) {
    return "input: a text or a list of texts is required";
  }
  return { model, inputs };
}

/** The answer: probabilities come from the text alone, so that every replica says the same. */
export function classifyBody(options: {
  readonly request: ClassifyRequest;
  readonly id: string;
  readonly labels: readonly string[];
  readonly seed: number;
  readonly promptTokens: number;
}): string {
  const { request, id, labels, seed, promptTokens } = options;
  const data = request.inputs.map((input, index) => {
    const random = createRandom(hashText(input, seed));
    const weights = labels.map(() => Math.exp(3 * random.next()));
    const sum = weights.reduce((total, weight) => total + weight, 0);
    const probs = weights.map((weight) => weight / sum);
    const best = probs.indexOf(Math.max(...probs));
    return { index, label: labels[best], probs, num_classes: labels.length };
  });
  const usage = { prompt_tokens: promptTokens, total_tokens: promptTokens, completion_tokens: 0 };
  return JSON.stringify({
    id,
    object: "list",
    created: Math.floor(Date.now() / 1_000),
    model: request.model,
    data,
    usage: { ...usage, prompt_tokens_details: null },
  });
}
