import * as fc from "fast-check";
import { expect, test } from "vitest";
import { IndexedHeap } from "../../src/base/heap.ts";

type Item = { readonly id: number; key: number; heapIndex: number };
const before = (a: Item, b: Item): boolean => (a.key === b.key ? a.id < b.id : a.key < b.key);

test("the top is always the least, whatever is pushed, removed or changed", () => {
  const action = fc.tuple(fc.constantFrom("push", "push", "remove", "fix", "raise", "lower"), fc.nat(99), fc.nat(20));
  fc.assert(
    fc.property(fc.array(action, { maxLength: 200 }), (actions) => {
      const heap = new IndexedHeap<Item>(before);
      let items: Item[] = [];
      for (const [id, [kind, pick, key]] of actions.entries()) {
        const item = items[pick % Math.max(1, items.length)];
        if (kind === "push") {
          items.push({ id, key, heapIndex: -1 });
          heap.push(items.at(-1)!);
        } else if (item === undefined) continue;
        else if (kind === "remove") {
          heap.remove(item);
          expect(item.heapIndex).toBe(-1);
          items = items.filter((other) => other !== item);
        } else if (kind === "fix") {
          item.key = key;
          heap.fix(item);
        } else if (kind === "raise") {
          item.key -= key;
          heap.raise(item);
        } else {
          item.key += key;
          heap.lower(item);
        }
        const least = items.toSorted((a, b) => (before(a, b) ? -1 : 1))[0];
        expect(heap.top).toBe(least);
        expect(heap.size).toBe(items.length);
      }
    }),
  );
});
