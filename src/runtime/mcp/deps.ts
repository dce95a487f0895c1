/** What the parts of the MCP face share. */
import type { Clock } from "../../base/clock.ts";
import type { RunService } from "../run-service.ts";

export type FaceDeps = {
  readonly service: RunService;
  readonly clock: Clock;
  readonly wallMs: () => number;
  /** A decline that comes sooner is nobody's answer. */
  readonly humanMinMs: number;
  readonly keepFinishedMs: number;
};
