export { recoverCalls } from "./recover.ts";
export type { TextCall } from "./types.ts";
