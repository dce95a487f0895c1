/** The policies by the name that the config gives them. A new one is a row here and a file beside classic.ts. */
import { activeSet } from "./active-set.ts";
import { classic } from "./classic.ts";
import type { Policy } from "./policy.ts";
import type { SchedulingConfig } from "./types.ts";

const POLICIES: { readonly [Name in SchedulingConfig["policy"]]: Policy } = {
  classic,
  "active-set": activeSet,
};

export function policyNamed(name: SchedulingConfig["policy"]): Policy {
  return POLICIES[name];
}
