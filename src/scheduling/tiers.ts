/** How many tiers each policy has: needed by those who make groups, below the policies themselves. */
import type { SchedulingConfig } from "./types.ts";

export const TIERS: { readonly [Name in SchedulingConfig["policy"]]: number } = { classic: 2, "active-set": 4 };
