import * as fc from "fast-check";
import { expect, test } from "vitest";
import {
  checkInvariants,
  createState,
  decide,
  freeze,
  thaw,
  type SchedulerEffect,
} from "../../src/scheduling/index.ts";
import { PlainClassic } from "./plain-classic.ts";
import { viewOfCore, viewOfPlain } from "./plain-view.ts";
import { eventFor, operations, WORLDS } from "./random-events.ts";
import { probed } from "./support.ts";

/** The words of a refusal by API name the replicas; the plain version leaves them out. */
function comparable(effects: readonly SchedulerEffect[]): unknown[] {
  return effects.map((effect) =>
    "code" in effect && effect.code === "route_unknown" ? { ...effect, message: "" } : effect,
  );
}

for (const [index, world] of WORLDS.entries()) {
  test(`decides, explains and shows what the plain version does, event by event (pool ${index + 1})`, () => {
    fc.assert(
      fc.property(operations(140), (steps) => {
        const plain = new PlainClassic(world, 0);
        let state = createState(world, 0);
        const up = world.replicas.map((row) => probed(0, row.replica));
        const random = steps.map((step, number) => () => eventFor(plain, step, number));
        for (const next of [...up.map((event) => () => event), ...random]) {
          const event = next();
          if (event === undefined) continue;
          const expected = plain.decide(event);
          const decided = decide(state, event);
          state = decided.state;
          expect(comparable(decided.effects)).toEqual(comparable(expected));
          checkInvariants(state);
          expect(viewOfCore(state, plain)).toEqual(viewOfPlain(plain));
        }
        // Frozen and thawed it is the same state.
        const text = JSON.stringify(freeze(state));
        const again = thaw(JSON.parse(text));
        checkInvariants(again);
        expect(JSON.stringify(freeze(again))).toBe(text);
      }),
      { numRuns: Number(process.env["LUFTPAUSE_RUNS"] ?? 60) },
    );
  });
}
