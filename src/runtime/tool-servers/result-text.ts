/**
 * From the result of a tool call to the text that the model sees. What is too long loses its middle, since the beginning
 * says what it is and the end how it came out.
 */
import type { ToolOutcome } from "./port.ts";

export type ResultText = ToolOutcome & {
  /** The text before it was cut; undefined where nothing was. */
  readonly whole?: string | undefined;
};

const HEAD_SHARE = 0.75;

/** @param result of `tools/call`, as it came. */
export function resultText(result: unknown, bytesMax: number): ResultText {
  const { content, structuredContent, isError } = asObject(result);
  const parts = Array.isArray(content) ? content.map(partText).filter((text) => text !== "") : [];
  if (parts.length === 0 && structuredContent !== undefined) parts.push(JSON.stringify(structuredContent));
  const text = parts.join("\n");
  if (isError === true) {
    const words = text === "" ? "the tool failed and does not say why" : text;
    return capped(false, /^error\b/i.test(words) ? words : `Error: ${words}`, bytesMax);
  }
  return capped(true, text === "" ? "(the tool has answered with nothing)" : text, bytesMax);
}

function partText(part: unknown): string {
  const { type, text, data, mimeType, resource, uri, name } = asObject(part);
  switch (type) {
    case "text":
      return typeof text === "string" ? text : "";
    case "image":
    case "audio":
      return notShown(type, mimeType, data);
    case "resource": {
      const inner = asObject(resource);
      if (typeof inner["text"] === "string") return inner["text"];
      return notShown(`resource ${words(inner["uri"])}`, inner["mimeType"], inner["blob"]);
    }
    case "resource_link":
      return `[resource ${words(name)}: ${words(uri)}]`;
    default:
      return `[content of type ${words(type)}: not shown]`;
  }
}

/** No endpoint says whether its model sees or hears: what is not text is told in words. */
function notShown(what: string, mimeType: unknown, base64: unknown): string {
  const bytes = typeof base64 === "string" ? Math.floor((base64.length * 3) / 4) : 0;
  return `[${what} (${words(mimeType)}, ${bytes} bytes): not shown, only text is]`;
}

function capped(ok: boolean, text: string, bytesMax: number): ResultText {
  const bytes = Buffer.from(text, "utf8");
  if (bytes.length <= bytesMax) return { ok, text };
  const mark = `\n[… ${bytes.length} bytes in all: the middle is left out …]\n`;
  const room = Math.max(0, bytesMax - Buffer.byteLength(mark));
  const head = Math.floor(room * HEAD_SHARE);
  let from = bytes.length - (room - head);
  let to = head;
  // Cut between characters.
  while (to > 0 && isInside(bytes[to])) to -= 1;
  while (from < bytes.length && isInside(bytes[from])) from += 1;
  return { ok, text: bytes.toString("utf8", 0, to) + mark + bytes.toString("utf8", from), whole: text };
}

/** Whether a byte goes on with a character of UTF-8 that began before it. */
function isInside(byte: number | undefined): boolean {
  return ((byte ?? 0) & 0xc0) === 0x80;
}

function words(value: unknown): string {
  return typeof value === "string" ? value.slice(0, 200) : "unknown";
}

function asObject(value: unknown): { readonly [field: string]: unknown } {
  return typeof value === "object" && value !== null ? (value as { readonly [field: string]: unknown }) : {};
}
