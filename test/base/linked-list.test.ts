import * as fc from "fast-check";
import { expect, test } from "vitest";
import { LinkedList, type ListLinks } from "../../src/base/linked-list.ts";

type Item = { readonly id: number; atMs: number; links: ListLinks<Item> | undefined };

function ids(list: LinkedList<"links", Item>): number[] {
  const found: number[] = [];
  for (let item = list.first; item !== undefined; item = list.next(item)) found.push(item.id);
  return found;
}

test("keeps the order of an array under every operation", () => {
  const action = fc.tuple(fc.constantFrom("append", "remove", "touch", "insert", "sort"), fc.nat(99), fc.nat(20));
  fc.assert(
    fc.property(fc.array(action, { maxLength: 120 }), (actions) => {
      const list = new LinkedList<"links", Item>("links");
      let model: Item[] = [];
      for (const [id, [kind, pick, atMs]] of actions.entries()) {
        const item = model[pick % Math.max(1, model.length)];
        const made: Item = { id, atMs, links: undefined };
        if (kind === "append") {
          list.append(made);
          model.push(made);
        } else if (kind === "insert") {
          list.insertSorted(made, (other) => other.atMs <= atMs);
          const at = model.findLastIndex((other) => other.atMs <= atMs);
          model.splice(at + 1, 0, made);
        } else if (kind === "sort") {
          list.sort((a, b) => a.atMs - b.atMs);
          model.sort((a, b) => a.atMs - b.atMs);
        } else if (item !== undefined) {
          if (kind === "remove") list.remove(item);
          else list.touch(item);
          model = model.filter((other) => other !== item);
          if (kind === "touch") model.push(item);
          expect(list.has(item)).toBe(kind === "touch");
        }
        expect(ids(list)).toEqual(model.map((other) => other.id));
        expect([list.size, list.first, list.last]).toEqual([model.length, model[0], model.at(-1)]);
      }
    }),
  );
});
