/**
 * A `fetch` for calls that may be silent for minutes: Node's own gives an answer up after 5 minutes without a byte, and a
 * tool may work longer than that. Whoever calls brings the bound, as a signal.
 */
import { Agent, fetch as undiciFetch } from "undici";

export type PatientFetch = {
  readonly fetch: (url: string | URL, init?: RequestInit) => Promise<Response>;
  /** Gives up what is under way. */
  close(): Promise<void>;
};

export function createPatientFetch(connectTimeoutMs: number): PatientFetch {
  const dispatcher = new Agent({ headersTimeout: 0, bodyTimeout: 0, connect: { timeout: connectTimeoutMs } });
  return {
    // The same code as Node's own fetch; its types are declared apart.
    fetch: (url, init) => undiciFetch(url, { ...(init as object), dispatcher }),
    close: () => dispatcher.destroy(),
  };
}
