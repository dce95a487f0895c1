/** Host of the scheduling core: event loop, prober, decision log, status (spec 2, spec 7). */
export { createScheduler } from "./service.ts";
export type { DataplaneSession, DataplaneSink, Scheduler, SchedulerOptions, Status } from "./service.ts";
export { createEventLog } from "./event-log.ts";
export type { EventLog, EventLogOptions } from "./event-log.ts";
export { schedulerMetrics } from "./metrics.ts";
export { createLinkServer } from "./link-server.ts";
export type { LinkServer, LinkServerOptions } from "./link-server.ts";
