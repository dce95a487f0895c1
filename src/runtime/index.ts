/** The runtime (spec 4): durable sub-agents over MCP. */
export { exportJournal } from "./store/export.ts";
export type { ExportReport } from "./store/export.ts";
export { importJournal } from "./store/import.ts";
export type { ImportReport } from "./store/import.ts";
export { StoreError } from "./store/port.ts";
export type { Damage } from "./store/port.ts";
export { openSqliteStore } from "./store/sqlite.ts";
export type { SqliteStore } from "./store/sqlite.ts";
export { createMcpFace } from "./mcp/face.ts";
export type { McpFace } from "./mcp/face.ts";
export { createModelClient } from "./model-client.ts";
export type { ModelClient } from "./model-client.ts";
export type { RunService } from "./run-service.ts";
export { createRuntime } from "./service.ts";
export type { Runtime } from "./service.ts";
export type { ToolServers } from "./tool-servers/port.ts";
