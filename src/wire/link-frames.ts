/** What the frames of the link between processes hold (docs/decisions/0022). */
import type { DataplaneMessage, SchedulerMessage } from "./admission.ts";

/** The first frame of a dataplane. */
export type LinkOpening = { readonly protocol: number; readonly token: string | undefined };

/** The scheduler's answer to it: from then on both sides send messages. */
export type LinkAnswer =
  | { readonly accepted: true; readonly epoch: number }
  | { readonly accepted: false; readonly reason: string };

/** Each message of a scheduler carries its epoch; a dataplane ignores lower ones than it has seen. */
export type SchedulerFrame = { readonly epoch: number; readonly message: SchedulerMessage };

/** Frames before the opening is accepted are no larger. */
export const OPENING_BYTES_MAX = 8_192;

export function isLinkOpening(value: unknown): value is LinkOpening {
  if (typeof value !== "object" || value === null) return false;
  const { protocol, token } = value as { readonly protocol?: unknown; readonly token?: unknown };
  return typeof protocol === "number" && (token === undefined || typeof token === "string");
}

export function isLinkAnswer(value: unknown): value is LinkAnswer {
  return typeof value === "object" && value !== null && typeof (value as { accepted?: unknown }).accepted === "boolean";
}

const FROM_DATAPLANE: ReadonlySet<string> = new Set<DataplaneMessage["type"]>([
  "hello",
  "requested",
  "abandoned",
  "started",
  "finished",
  "failed",
  "pushed-back",
  "withdrawn",
  "too-late",
  "open-turns",
  "run-ended",
  "explain",
  "run-query",
]);

/** The peer is authenticated and of our protocol version: its messages are told apart, not validated field by field. */
export function isDataplaneMessage(value: unknown): value is DataplaneMessage {
  return typeof value === "object" && value !== null && FROM_DATAPLANE.has(String((value as { type?: unknown }).type));
}

export function isSchedulerFrame(value: unknown): value is SchedulerFrame {
  if (typeof value !== "object" || value === null) return false;
  const { epoch, message } = value as { readonly epoch?: unknown; readonly message?: unknown };
  return typeof epoch === "number" && typeof message === "object" && message !== null;
}
