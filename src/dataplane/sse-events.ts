/** Server-sent events in bytes read as Latin-1: one character is one byte, so that positions in text are positions in bytes. */

/** An event's end: two line ends in a row, whichever of LF, CRLF and CR they are. */
const EVENT_END = /\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n/g;

/** The position behind the first event end at or after `from`, or -1. */
export function eventEnd(text: string, from: number): number {
  EVENT_END.lastIndex = from;
  return EVENT_END.test(text) ? EVENT_END.lastIndex : -1;
}

/** The data of one event, its lines joined; undefined for comments and events without data. */
export function eventData(event: string): string | undefined {
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
