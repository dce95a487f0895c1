/**
 * The cache-aware policy of the SGLang router (sgl-model-gateway, model_gateway/src/policies/cache_aware.rs), the usual
 * way to spread agents over engines: class-blind, by request, sticky as long as the load is not too uneven.
 *
 *   max − min of the requests in flight > balanceAbs  and  max > balanceRel × min   → the engine with the fewest
 *   else longest known prefix > cacheThreshold of the prompt                         → the engine that had it last
 *   else                                                                            → the engine with the fewest
 *
 * The real one keeps a tree of texts; here prefixes are known by the hashes of their blocks of 64 characters. What it does
 * not know of: runs, classes, callers, and what the engines really hold.
 */
import { invariant } from "../base/invariant.ts";

export type CacheAwareRouter = {
  /**
   * Chooses an engine and counts the request as in flight there.
   * @param blockHashes of the prompt (`hashBlocks`).
   * @param usable indexes of the healthy engines, at least one.
   */
  choose(blockHashes: Float64Array, usable: readonly number[]): number;
  /** The request has ended. */
  ended(engine: number): void;
  /** Requests in flight, by engine. */
  readonly inFlight: readonly number[];
};

/** The command's own defaults. */
const ROUTER_DEFAULTS = { balanceAbs: 64, balanceRel: 1.5, cacheThreshold: 0.3, blocksMax: 1_048_576 };

export type RouterOptions = { readonly engines: number } & Partial<typeof ROUTER_DEFAULTS>;

export function createCacheAwareRouter(options: RouterOptions): CacheAwareRouter {
  const { engines, balanceAbs, balanceRel, cacheThreshold, blocksMax } = { ...ROUTER_DEFAULTS, ...options };
  const inFlight = Array.from({ length: engines }, () => 0);
  const served = Array.from({ length: engines }, () => 0);
  /** The engine that had a prefix last, the longest unused first. */
  const tenants = new Map<number, number>();

  const load = (engine: number): number => inFlight[engine] ?? 0;
  const fewest = (usable: readonly number[]): number => {
    let best = usable[0];
    for (const engine of usable) {
      if (best === undefined) break;
      const less = load(engine) - load(best);
      if (less < 0 || (less === 0 && (served[engine] ?? 0) < (served[best] ?? 0))) best = engine;
    }
    invariant(best, "a router chooses among at least one engine");
    return best;
  };
  const uneven = (usable: readonly number[]): boolean => {
    let least = Infinity;
    let most = 0;
    for (const engine of usable) {
      least = Math.min(least, load(engine));
      most = Math.max(most, load(engine));
    }
    return most - least > balanceAbs && most > balanceRel * least;
  };
  const owner = (blockHashes: Float64Array, usable: readonly number[]): number | undefined => {
    let known = 0;
    let last: number | undefined;
    for (const hash of blockHashes) {
      const tenant = tenants.get(hash);
      if (tenant === undefined) break;
      known += 1;
      last = tenant;
    }
    if (last === undefined || known <= cacheThreshold * blockHashes.length) return undefined;
    return usable.includes(last) ? last : undefined;
  };
  const remember = (blockHashes: Float64Array, engine: number): void => {
    for (const hash of blockHashes) {
      tenants.delete(hash);
      tenants.set(hash, engine);
    }
    for (const oldest of tenants.keys()) {
      if (tenants.size <= blocksMax) break;
      tenants.delete(oldest);
    }
  };
  return {
    choose(blockHashes, usable) {
      const chosen = (uneven(usable) ? undefined : owner(blockHashes, usable)) ?? fewest(usable);
      remember(blockHashes, chosen);
      inFlight[chosen] = load(chosen) + 1;
      served[chosen] = (served[chosen] ?? 0) + 1;
      return chosen;
    },
    ended(engine) {
      inFlight[engine] = load(engine) - 1;
    },
    inFlight,
  };
}
