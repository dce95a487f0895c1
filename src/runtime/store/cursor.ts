/** Cursors of a listing: the place of the last item in the order in which the store got to know the items. */
import { StoreError } from "./port.ts";

export function cursorOf(place: number): string {
  return place.toString(36);
}

/**
 * @returns the place, or undefined where there is no cursor.
 * @throws StoreError where the text is none of ours.
 */
export function placeOf(cursor: string | undefined): number | undefined {
  if (cursor === undefined) return undefined;
  const place = /^[0-9a-z]{1,11}$/.test(cursor) ? Number.parseInt(cursor, 36) : Number.NaN;
  if (!Number.isSafeInteger(place)) {
    throw new StoreError("bad-cursor", "this cursor is not from an earlier page; leave it out to begin at the first");
  }
  return place;
}
