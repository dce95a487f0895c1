/** SIGHUP: reads the config again; a fault keeps the old one (spec 7, Config). */
import type { Log } from "../telemetry/index.ts";

/** @param apply loads, validates and applies the config; throws what is wrong with it before anything has changed. */
export function reloadOnHangup(log: Log, apply: () => void): void {
  process.on("SIGHUP", () => {
    try {
      apply();
      log("info", "config-reloaded");
    } catch (error) {
      log("error", "config-not-reloaded", { reason: error instanceof Error ? error.message : String(error) });
    }
  });
}
