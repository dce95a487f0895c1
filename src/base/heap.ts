/**
 * Binary heap whose elements know their own position, so that an element can be moved or removed in O(log n) when its
 * key changes. An element is in at most one such heap. The order must be total: ties decide determinism.
 */
export type HeapElement = {
  /** Position in its heap, -1 outside. Written by the heap only. */
  heapIndex: number;
};

export class IndexedHeap<T extends HeapElement> {
  readonly #items: T[] = [];
  readonly #before: (a: T, b: T) => boolean;

  /** @param before whether `a` comes out before `b`. */
  constructor(before: (a: T, b: T) => boolean) {
    this.#before = before;
  }

  get size(): number {
    return this.#items.length;
  }

  /** The first element, or undefined when empty. */
  get top(): T | undefined {
    return this.#items[0];
  }

  /** All elements in no particular order; the array must not be changed. */
  get items(): readonly T[] {
    return this.#items;
  }

  push(item: T): void {
    item.heapIndex = this.#items.length;
    this.#items.push(item);
    this.#up(item.heapIndex);
  }

  remove(item: T): void {
    const index = item.heapIndex;
    const last = this.#items.pop();
    item.heapIndex = -1;
    if (last === undefined || last === item) return;
    this.#items[index] = last;
    last.heapIndex = index;
    this.#down(index);
    this.#up(last.heapIndex);
  }

  /** Puts an element whose key has changed in its place again. */
  fix(item: T): void {
    if (this.#items.length === 1) return;
    this.#down(item.heapIndex);
    this.#up(item.heapIndex);
  }

  /** The same for a key that can only have come forward: one comparison where nothing moves. */
  raise(item: T): void {
    this.#up(item.heapIndex);
  }

  /** The same for a key that can only have gone back. */
  lower(item: T): void {
    if (this.#items.length > 1) this.#down(item.heapIndex);
  }

  #up(from: number): void {
    if (from === 0) return;
    const items = this.#items;
    const item = items[from] as T;
    let index = from;
    while (index > 0) {
      const parentIndex = (index - 1) >> 1;
      const parent = items[parentIndex] as T;
      if (!this.#before(item, parent)) break;
      items[index] = parent;
      parent.heapIndex = index;
      index = parentIndex;
    }
    items[index] = item;
    item.heapIndex = index;
  }

  #down(from: number): void {
    const items = this.#items;
    const item = items[from] as T;
    const { length } = items;
    let index = from;
    for (;;) {
      let childIndex = 2 * index + 1;
      if (childIndex >= length) break;
      let child = items[childIndex] as T;
      const right = items[childIndex + 1];
      if (right !== undefined && this.#before(right, child)) {
        child = right;
        childIndex += 1;
      }
      if (!this.#before(child, item)) break;
      items[index] = child;
      child.heapIndex = index;
      index = childIndex;
    }
    items[index] = item;
    item.heapIndex = index;
  }
}
