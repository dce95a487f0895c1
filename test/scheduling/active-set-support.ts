/** Short words for `policy: active-set`: pools that show their size, prompts in tokens. */
import type { Usage } from "../../src/wire/admission.ts";
import { ACTIVE_SET_DEFAULTS, type ActiveSetConfig, type SchedulingConfig } from "../../src/scheduling/index.ts";
import { config, Core, finished, replica, requested, type Ask, type Seen } from "./support.ts";

const BYTES_PER_TOKEN = 4;

function activeConfig(about: Partial<ActiveSetConfig> = {}, pool: Partial<SchedulingConfig> = {}): SchedulingConfig {
  return config({ policy: "active-set", activeSet: { ...ACTIVE_SET_DEFAULTS, ...about }, ...pool });
}

export type Prompt = Ask & { readonly tokens?: number; readonly prefix?: string; readonly streams?: boolean };

/** A core with one policy mechanism after the other: batch by default, pools of 100,000 tokens, nothing work-conserving, nothing taken back. */
export class ActiveCore extends Core {
  static with(about: Partial<ActiveSetConfig> = {}, pool: Partial<SchedulingConfig> = {}): ActiveCore {
    const core = new ActiveCore(activeConfig({ workConservingBelow: 0, preempt: false, ...about }, pool));
    for (const row of core.state.config.replicas) core.shows(row.replica, {});
    return core;
  }

  /** A probe: takes priorities and shows a pool of 100,000 tokens, unless said otherwise. */
  shows(name: string, load: NonNullable<Seen["load"]>): string[] {
    const about = { running: 0, waiting: 0, kvCapacityTokens: 100_000, takesPriority: true, ...load };
    return this.probe(name, { load: about });
  }

  /** A main turn of a batch run whose prompt has so many tokens. */
  turn(turn: string, about: Prompt = {}): string[] {
    const { tokens, prefix, streams = true, ...ask } = about;
    const event = requested(this.nowMs, turn, { class: "batch", run: turn.split("/")[0]!, ...ask });
    return this.feed({
      ...event,
      streams,
      promptBytes: tokens === undefined ? undefined : tokens * BYTES_PER_TOKEN,
      prefixKey: prefix,
    });
  }

  /** It ended in a tool call, or with an answer (`stop`). */
  done(turn: string, usage: Usage, about: { readonly stop?: boolean; readonly tool?: string } = {}): string[] {
    const event = finished(this.nowMs, turn, { paused: about.stop !== true });
    return this.feed({ ...event, usage, tool: about.tool });
  }
}

export { replica };
