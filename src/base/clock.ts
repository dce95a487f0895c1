/** Port for time: hosts pass the real clock, tests and the simulator a virtual one. */
export interface Clock {
  /** Monotonic milliseconds since an arbitrary start. */
  nowMs(): number;
  /** Calls `action` once after `delayMs`; the returned function cancels it. */
  after(delayMs: number, action: () => void): () => void;
}
