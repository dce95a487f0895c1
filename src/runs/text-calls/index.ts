export { parseJson } from "./lenient-json.ts";
export { recoverCalls } from "./recover.ts";
export type { Recovered } from "./recover.ts";
export type { TextCall } from "./types.ts";
