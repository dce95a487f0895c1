/**
 * Doubly linked list whose links live on the elements: append, remove and "oldest first" in constant time.
 * With one constant time-to-live the list is a timer queue: the oldest element expires first.
 */
export class LinkedList<Key extends string, T extends { [Name in Key]: ListLinks<T> | undefined }> {
  readonly #key: Key;
  #first: T | undefined;
  #last: T | undefined;
  #size = 0;

  /** @param key the field of the elements that holds this list's links. */
  constructor(key: Key) {
    this.#key = key;
  }

  get first(): T | undefined {
    return this.#first;
  }

  get size(): number {
    return this.#size;
  }

  get last(): T | undefined {
    return this.#last;
  }

  next(item: T): T | undefined {
    return item[this.#key]?.next;
  }

  has(item: T): boolean {
    return item[this.#key] !== undefined;
  }

  append(item: T): void {
    this.#setLinks(item, { previous: this.#last, next: undefined });
    if (this.#last === undefined) this.#first = item;
    else this.#links(this.#last).next = item;
    this.#last = item;
    this.#size += 1;
  }

  /** Inserts from the end, behind the last element for which `goesBefore` holds: constant time for the newest. */
  insertSorted(item: T, goesBefore: (other: T) => boolean): void {
    let previous = this.#last;
    while (previous !== undefined && !goesBefore(previous)) previous = this.#links(previous).previous;
    if (previous === this.#last) {
      this.append(item);
      return;
    }
    const next = previous === undefined ? this.#first : this.#links(previous).next;
    this.#setLinks(item, { previous, next });
    if (previous === undefined) this.#first = item;
    else this.#links(previous).next = item;
    if (next !== undefined) this.#links(next).previous = item;
    this.#size += 1;
  }

  remove(item: T): void {
    const links = item[this.#key];
    if (links === undefined) return;
    if (links.previous === undefined) this.#first = links.next;
    else this.#links(links.previous).next = links.next;
    if (links.next === undefined) this.#last = links.previous;
    else this.#links(links.next).previous = links.previous;
    this.#setLinks(item, undefined);
    this.#size -= 1;
  }

  /** Makes the element the newest. */
  touch(item: T): void {
    if (this.#last === item) return;
    const links = item[this.#key];
    if (links === undefined) {
      this.append(item);
      return;
    }
    // Reuses the links: touching is the hottest operation and must not allocate.
    if (links.previous === undefined) this.#first = links.next;
    else this.#links(links.previous).next = links.next;
    if (links.next !== undefined) this.#links(links.next).previous = links.previous;
    links.previous = this.#last;
    links.next = undefined;
    if (this.#last !== undefined) this.#links(this.#last).next = item;
    this.#last = item;
  }

  /** Puts all elements in order again, stable: after many came in at once. Cheap where most are in order already. */
  sort(compare: (a: T, b: T) => number): void {
    const items: T[] = [];
    for (let item = this.#first; item !== undefined; item = this.next(item)) items.push(item);
    items.sort(compare);
    this.#first = items[0];
    this.#last = items.at(-1);
    for (const [at, item] of items.entries()) {
      const links = this.#links(item);
      links.previous = at === 0 ? undefined : items[at - 1];
      links.next = items[at + 1];
    }
  }

  #links(item: T): ListLinks<T> {
    return item[this.#key] as ListLinks<T>;
  }

  #setLinks(item: T, links: ListLinks<T> | undefined): void {
    (item as { [Name in Key]: ListLinks<T> | undefined })[this.#key] = links;
  }
}

export type ListLinks<T> = { previous: T | undefined; next: T | undefined };
