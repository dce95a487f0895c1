/** HTTP for the hosts: the front that serves clients, the clients that call engines, tokens. */
import type { EngineClient } from "./engine-call.ts";
import { createPlainClient, type EngineClientOptions } from "./engine-client.ts";
import { createTlsClient } from "./engine-client-tls.ts";

export type { Exchange } from "./exchange.ts";
export { answerWhole } from "./exchange.ts";
export type {
  EngineCall,
  EngineClient,
  EngineFailure,
  EngineHandler,
  EngineHead,
  EngineTarget,
} from "./engine-call.ts";
export { createFront } from "./front.ts";
export type { Front, FrontOptions } from "./front.ts";
export { createAuth } from "./auth.ts";
export type { Authenticate, AuthOptions, Identity } from "./auth.ts";
export { FrameSocket, LINK_SOCKET } from "./frame-socket.ts";

/** A client for both schemes: our own on plain http, undici on https. */
export function createEngineClient(options: EngineClientOptions): EngineClient {
  const plain = createPlainClient(options);
  let tls: EngineClient | undefined;
  return {
    call(target, request, handler) {
      if (target.protocol === "http:") return plain.call(target, request, handler);
      tls ??= createTlsClient(options);
      return tls.call(target, request, handler);
    },
    stats() {
      const a = plain.stats();
      const b = tls?.stats() ?? { open: 0, idle: 0, retriedOnFresh: 0 };
      return { open: a.open + b.open, idle: a.idle + b.idle, retriedOnFresh: a.retriedOnFresh };
    },
    close() {
      plain.close();
      tls?.close();
    },
  };
}
