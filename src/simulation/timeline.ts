/** Virtual time: what is to happen, in order of its time, and of its making where times are equal. */
import { IndexedHeap } from "../base/heap.ts";

type Entry = { readonly atMs: number; readonly order: number; readonly act: () => void; heapIndex: number };

export class VirtualTime {
  readonly #heap = new IndexedHeap<Entry>((a, b) => a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order));
  #order = 0;
  #nowMs = 0;

  get nowMs(): number {
    return this.#nowMs;
  }

  /** @returns a function that takes it back. */
  at(atMs: number, act: () => void): () => void {
    this.#order += 1;
    const entry: Entry = { atMs: Math.max(atMs, this.#nowMs), order: this.#order, act, heapIndex: -1 };
    this.#heap.push(entry);
    return () => {
      if (entry.heapIndex >= 0) this.#heap.remove(entry);
    };
  }

  after(ms: number, act: () => void): () => void {
    return this.at(this.#nowMs + ms, act);
  }

  /** Lets everything happen that is due up to `untilMs`. */
  runUntil(untilMs: number): void {
    for (let next = this.#heap.top; next !== undefined && next.atMs <= untilMs; next = this.#heap.top) {
      this.#heap.remove(next);
      this.#nowMs = next.atMs;
      next.act();
    }
    this.#nowMs = untilMs;
  }
}
