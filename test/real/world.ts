/** A real luftpause in front of a real engine, and clients that see the wire as it is. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { request, type IncomingHttpHeaders } from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import type { Status } from "../../src/scheduler/index.ts";
import { eventually, luftpause, type Running } from "../e2e/processes.ts";
import { MODEL } from "./engine.ts";

export type Luftpause = {
  readonly url: string;
  readonly process: Running;
  status(): Promise<Status>;
  end(): Promise<void>;
};

/**
 * Starts `luftpause up` for one engine, and waits until the engine counts as healthy.
 * @param options.config further lines of its config.
 */
export async function startLuftpause(
  engineUrl: string,
  options: { readonly maxInFlight?: number; readonly config?: string } = {},
): Promise<Luftpause> {
  const folder = mkdtempSync(path.join(tmpdir(), "luftpause-real-"));
  const flags = ["up", "--listen", "127.0.0.1:0"];
  const { maxInFlight, config = "" } = options;
  if (maxInFlight === undefined && config === "") {
    flags.push("--engine", engineUrl);
  } else {
    const file = path.join(folder, "luftpause.yaml");
    const cap = maxInFlight === undefined ? "" : `, maxInFlight: ${maxInFlight}`;
    writeFileSync(file, `endpoints:\n  - { name: llama, url: "${engineUrl}"${cap} }\n${config}`);
    flags.push("--config", file);
  }
  const process = luftpause(flags, { folder });
  const [, url = ""] = await process.waitFor(/base_url +(\S+)\/v1\n/);
  const status = async (): Promise<Status> =>
    (await (await fetch(`${url}/status`, { signal: AbortSignal.timeout(10_000) })).json()) as Status;
  await eventually("the engine is healthy", async () =>
    (await status()).replicas[0]?.healthy === true ? true : undefined,
  );
  return {
    url,
    process,
    status,
    async end() {
      await process.end("SIGTERM");
      rmSync(folder, { recursive: true });
    },
  };
}

export type Answer = {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  /** False: the connection broke before the answer's end. */
  readonly clean: boolean;
};

export type Exchange = {
  readonly ended: Promise<Answer>;
  /** Resolves when the body so far has this many SSE events, rejects when it ends before. */
  events(count: number): Promise<void>;
  /** Closes the connection, as a client does that has gone. */
  leave(): void;
};

/** One POST by node:http on a connection of its own: tells a broken end from a clean one, hides nothing. */
export function post(url: string, body: object, headers: { readonly [name: string]: string } = {}): Exchange {
  let text = "";
  let over: string | undefined;
  const watching = new Set<() => void>();
  const changed = (): void => {
    for (const check of watching) check();
  };
  const sent = request(url, {
    method: "POST",
    agent: false,
    headers: { "content-type": "application/json", ...headers },
  });
  const ended = new Promise<Answer>((resolve, reject) => {
    sent.on("error", (error) => {
      over ??= error.message;
      changed();
      reject(error);
    });
    sent.on("response", (answer) => {
      answer.setEncoding("utf8");
      answer.on("data", (chunk: string) => {
        text += chunk;
        changed();
      });
      answer.on("error", () => undefined); // `complete` says it at close.
      answer.on("close", () => {
        over ??= "the answer ended";
        changed();
        resolve({ status: answer.statusCode ?? 0, headers: answer.headers, text, clean: answer.complete });
      });
    });
  });
  ended.catch(() => undefined); // Whoever awaits it sees the error; whoever left does not care.
  sent.end(JSON.stringify(body));
  return {
    ended,
    events(count) {
      return new Promise((resolve, reject) => {
        const check = (): void => {
          const enough = text.split("\n\n").length > count;
          if (!enough && over === undefined) return;
          watching.delete(check);
          if (enough) resolve();
          else reject(new Error(`${over} before event ${count}:\n${text}`));
        };
        watching.add(check);
        check();
      });
    },
    leave: () => void sent.destroy(),
  };
}

/** A request whose answer depends on nothing but itself: no sampling, and no cache that another batch filled. */
export function repeatable(task: string, more: object = {}): object {
  return {
    model: MODEL,
    messages: [{ role: "user", content: task }],
    temperature: 0,
    seed: 7,
    max_tokens: 32,
    cache_prompt: false,
    ...more,
  };
}

/** A streamed turn that goes on until the context is full: some 1,900 tokens, many seconds. */
export function endless(task: string): object {
  return {
    model: MODEL,
    messages: [{ role: "user", content: task }],
    stream: true,
    ignore_eos: true,
    max_tokens: 1_900,
  };
}

/** The body without what the engine makes anew for every answer. */
export function lasting(text: string): string {
  return text
    .replaceAll(/"id":"chatcmpl-\w+"/g, '"id":"-"')
    .replaceAll(/"created":\d+/g, '"created":0')
    .replaceAll(/"timings":\{[^}]*\}/g, '"timings":{}');
}
