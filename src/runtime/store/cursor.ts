/** Cursors of a listing: the place of the last item in the order in which the store got to know the items. */
import { StoreError } from "./port.ts";

/** No text that somebody makes up is a cursor by chance. */
const MARK = "after-";

export function cursorOf(place: number): string {
  return `${MARK}${place}`;
}

/**
 * @returns the place, or undefined where there is no cursor.
 * @throws StoreError where the text is none of ours.
 */
export function placeOf(cursor: string | undefined): number | undefined {
  if (cursor === undefined) return undefined;
  const digits = cursor.startsWith(MARK) ? cursor.slice(MARK.length) : "";
  const place = /^\d{1,16}$/.test(digits) ? Number(digits) : Number.NaN;
  if (!Number.isSafeInteger(place)) {
    throw new StoreError("bad-cursor", "this cursor is not from an earlier page; leave it out to begin at the first");
  }
  return place;
}
