/** HTTP for the hosts: the front that serves clients, the clients that call engines, tokens. */
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
export { createEngineClient } from "./engine-client.ts";
export { createFront } from "./front.ts";
export type { Front, FrontOptions } from "./front.ts";
export { createAuth } from "./auth.ts";
export type { Authenticate, AuthOptions, Identity } from "./auth.ts";
export { detached } from "./header-grammar.ts";
export { FrameSocket, LINK_SOCKET } from "./frame-socket.ts";
export { createPatientFetch } from "./patient-fetch.ts";
export type { PatientFetch } from "./patient-fetch.ts";
