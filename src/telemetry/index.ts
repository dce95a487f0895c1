export { createLog, SILENT_LOG } from "./log.ts";
export type { Log, LogFields, LogLevel, LogOptions } from "./log.ts";
export { REAL_CLOCK } from "./clock.ts";
export { Counter, Distribution, Gauge, Registry, Tally } from "./metrics.ts";
