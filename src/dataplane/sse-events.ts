/**
 * Server-sent events (WHATWG) in bytes read as Latin-1: one character is one byte, so that positions in the text are
 * positions in the bytes, and no cut can fall inside a character.
 */

/**
 * An event's end: two line ends in a row, whichever of LF, CRLF and CR they are. A CR at the very end of the text after
 * another kind of line end may be half of a CRLF: it ends nothing before the next byte is seen.
 */
const EVENT_END = /\n\n|\r\n\r\n|\r\r|\n\r\n|\r\n\n|\n\r(?=[^\n])|\r\n\r(?=[^\n])/g;

/** So many characters before the end of a text can belong to an event end that is not whole yet. */
export const EVENT_END_CHARS = 3;

/** The position behind the first event end at or after `from`, or -1. */
export function eventEnd(text: string, from: number): number {
  EVENT_END.lastIndex = from;
  return EVENT_END.test(text) ? EVENT_END.lastIndex : -1;
}

/** The position behind the last event end, 0 when there is none. */
export function lastEventEnd(text: string): number {
  if (!text.includes("\r")) {
    const at = text.lastIndexOf("\n\n");
    return at === -1 ? 0 : at + 2;
  }
  let last = 0;
  for (let at = eventEnd(text, 0); at !== -1; at = eventEnd(text, last)) last = at;
  return last;
}

/** The first position at or after `from` that is no line end: line ends between events belong to none. */
export function skipLineEnds(text: string, from: number): number {
  let at = from;
  while (text.charCodeAt(at) === 0x0a || text.charCodeAt(at) === 0x0d) at += 1;
  return at;
}

/** The data of one event, its lines joined; undefined for comments and events without data. */
export function eventData(event: string): string | undefined {
  // Nearly every event is one line of data and a blank one.
  if (event.startsWith("data:") && event.indexOf("\n") === event.length - 2 && !event.includes("\r")) {
    return event.slice(event.startsWith("data: ") ? 6 : 5, -2);
  }
  let data: string | undefined;
  for (const line of event.split(/\r\n|\n|\r/)) {
    if (!line.startsWith("data:")) continue;
    const value = line.startsWith("data: ") ? line.slice(6) : line.slice(5);
    data = data === undefined ? value : `${data}\n${value}`;
  }
  return data;
}

/** JSON in the data of an event, or undefined. The text is Latin-1 of UTF-8 bytes. */
export function eventJson(data: string): unknown {
  try {
    // eslint-disable-next-line no-control-regex
    const text = /^[\x00-\x7f]*$/.test(data) ? data : Buffer.from(data, "latin1").toString("utf8");
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}
