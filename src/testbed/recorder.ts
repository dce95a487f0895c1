/**
 * What reached a simulated engine: counts, and the last requests with their headers and bodies, for tests and people.
 * Bounded by number and by bytes: the oldest bodies go first.
 */

/** How a request ended, or that it has not. */
type RequestOutcome = "open" | "finished" | "aborted" | "refused" | "failed";

export type RequestRecord = {
  /** Order of arrival, from 0, over all requests to turn and classify routes. */
  readonly order: number;
  readonly path: string;
  /** Names and values alternating, as received. */
  readonly rawHeaders: readonly string[];
  /** The body as received; empty when it was dropped to stay within the bound. */
  readonly body: Buffer;
  /** Simulated milliseconds since the engine's start. */
  readonly arrivedMs: number;
  readonly id: string;
  readonly outcome: RequestOutcome;
  /** HTTP status, undefined while none was sent. */
  readonly status: number | undefined;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly generatedTokens: number;
  readonly priority: number;
  /** Place in the order of first admission to the batch; undefined before. */
  readonly admission: number | undefined;
};

export type MutableRecord = { -readonly [Key in keyof RequestRecord]: RequestRecord[Key] };

export type RequestCounts = { readonly [Outcome in RequestOutcome | "started"]: number };

export type Recorder = {
  add(request: Pick<RequestRecord, "path" | "rawHeaders" | "body" | "arrivedMs" | "id">): MutableRecord;
  settle(record: MutableRecord, outcome: Exclude<RequestOutcome, "open">): void;
  counts(): RequestCounts;
  last(): readonly RequestRecord[];
  /** Called after every change. */
  onChange: (() => void) | undefined;
};

/** Bodies kept at most. */
const BODY_BYTES_MAX = 64 * 1_024 * 1_024;

export function createRecorder(recordLast: number): Recorder {
  const records: MutableRecord[] = [];
  const counts = { started: 0, open: 0, finished: 0, aborted: 0, refused: 0, failed: 0 };
  let bytes = 0;
  const trim = (): void => {
    while (records.length > recordLast) bytes -= records.shift()?.body.length ?? 0;
    for (const record of records) {
      if (bytes <= BODY_BYTES_MAX) break;
      bytes -= record.body.length;
      record.body = Buffer.alloc(0);
    }
  };
  const recorder: Recorder = {
    add(request) {
      const record: MutableRecord = {
        ...request,
        order: counts.started,
        outcome: "open",
        status: undefined,
        promptTokens: 0,
        cachedTokens: 0,
        generatedTokens: 0,
        priority: 0,
        admission: undefined,
      };
      counts.started += 1;
      counts.open += 1;
      records.push(record);
      bytes += record.body.length;
      trim();
      recorder.onChange?.();
      return record;
    },
    settle(record, outcome) {
      if (record.outcome !== "open") return;
      record.outcome = outcome;
      counts.open -= 1;
      counts[outcome] += 1;
      recorder.onChange?.();
    },
    counts: () => ({ ...counts }),
    last: () => records.map((record) => ({ ...record })),
    onChange: undefined,
  };
  return recorder;
}
