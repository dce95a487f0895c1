/**
 * What one replica speaks, learned by asking (spec 8, What a replica speaks): a POST with an empty body to the path of
 * each API, once. An API that could not be asked is asked at the next good health probe.
 */
import type { EndpointConfig, EngineKind, WireApi } from "../wire/endpoint.ts";
import type { ProbeClient } from "./probe-client.ts";

type Learned = "served" | "absent" | "refused";

const GENERATIVE: readonly (readonly [WireApi, string])[] = [
  ["chat", "/v1/chat/completions"],
  ["completions", "/v1/completions"],
  ["messages", "/v1/messages"],
  ["responses", "/v1/responses"],
  ["embeddings", "/v1/embeddings"],
  ["decisions", "/v1/decisions"],
];

/** While its key is refused it is asked again each so many good probes: somebody may mend the engine's end. */
const REFUSED_AGAIN_AFTER = 15;

export class ApiSurvey {
  readonly #learned = new Map<WireApi, Learned>();
  #roundsRefused = 0;
  #refusal: string | undefined;

  /** Another engine or another key: everything is asked again. */
  forget(): void {
    this.#learned.clear();
    this.#refusal = undefined;
    this.#roundsRefused = 0;
  }

  /** Words for a person when the engine does not take its key; undefined else. */
  get refusal(): string | undefined {
    return this.#refusal;
  }

  /** Asks what is not known. Ends when `signal` fires; what was not answered by then stays unknown. */
  async ask(
    endpoint: EndpointConfig,
    engine: EngineKind | undefined,
    client: ProbeClient,
    signal: AbortSignal,
  ): Promise<void> {
    this.#askRefusedAgain();
    const questions = pathsOf(endpoint, engine).filter(([api]) => !this.#learned.has(api));
    await Promise.all(
      questions.map(async ([api, path]) => {
        const answer = await client.post(endpoint.url + path, endpoint.apiKey, signal);
        if (answer.kind === "failed") return;
        const learned = meaningOf(answer.status);
        this.#learned.set(api, learned);
        if (learned === "refused") this.#refusal = `its key is refused (${answer.status} at ${path}): see apiKey`;
      }),
    );
  }

  /** Undefined while nothing is known. */
  speaks(engine: EngineKind | undefined): readonly WireApi[] | undefined {
    if (this.#learned.size === 0) return undefined;
    const apis: WireApi[] = [];
    // In the order of the table, not of the answers: the list must not change by chance.
    for (const api of ORDER) {
      const learned = this.#learned.get(api);
      if (learned === undefined || learned === "absent") continue;
      apis.push(api);
      // Cannot be asked for; only vLLM keeps responses so that they can be continued.
      if (api === "responses" && engine === "vllm") apis.push("responses-stateful");
    }
    return apis;
  }

  #askRefusedAgain(): void {
    if (this.#refusal === undefined) return;
    this.#roundsRefused += 1;
    if (this.#roundsRefused < REFUSED_AGAIN_AFTER) return;
    this.#roundsRefused = 0;
    this.#refusal = undefined;
    for (const [api, learned] of this.#learned) if (learned === "refused") this.#learned.delete(api);
  }
}

const ORDER: readonly WireApi[] = [...GENERATIVE.map(([api]) => api), "classify"];

function pathsOf(endpoint: EndpointConfig, engine: EngineKind | undefined): readonly (readonly [WireApi, string])[] {
  if (endpoint.kind === "generative") return GENERATIVE;
  const classifyPath = endpoint.classifyPath ?? (engine === "sglang" ? "/v1/classify" : "/classify");
  return [
    ["classify", classifyPath],
    ["embeddings", "/v1/embeddings"],
    ["decisions", "/v1/decisions"],
  ];
}

function meaningOf(status: number): Learned {
  if (status === 404 || status === 405 || status === 501) return "absent";
  return status === 401 || status === 403 ? "refused" : "served";
}
