/** Fronts that hold nothing: every turn goes to an engine at once, and waits there. */
import { createCacheAwareRouter } from "../engine/index.ts";
import type { ServiceClass } from "../wire/admission.ts";
import type { AskedTurn, Front, TurnActions } from "./front.ts";

/**
 * The class-blind cache-aware router of SGLang, by its own rules and defaults.
 * @param priorityOf what the harness sends the engine beside; undefined: nothing.
 */
export function routerFront(engines: number, priorityOf?: (serviceClass: ServiceClass) => number): Front {
  const router = createCacheAwareRouter({ engines });
  const usable = Array.from({ length: engines }, (_, at) => at);
  const chosen = new Map<string, number>();
  return {
    ask(turn: AskedTurn, actions: TurnActions) {
      const engine = router.choose(turn.promptHashes, usable);
      const refusal = actions.send(engine, priorityOf?.(turn.class));
      if (refusal === undefined) {
        chosen.set(turn.id, engine);
        return;
      }
      router.ended(engine);
      actions.fail(refusal);
    },
    started: () => undefined,
    runEnded: () => undefined,
    finished(turn) {
      const engine = chosen.get(turn.id);
      chosen.delete(turn.id);
      if (engine !== undefined) router.ended(engine);
    },
  };
}
