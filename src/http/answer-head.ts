/** Status line and headers of an answer as text, and the check that keeps foreign values from breaking out of them. */
import { STATUS_CODES } from "node:http";
import { invariant } from "../base/invariant.ts";
import type { AnswerFraming } from "./exchange.ts";

const NAME = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;

/** Whether a text may stand as a header's value: no controls, Latin-1 only. */
export function isHeaderValue(text: string): boolean {
  return VALUE.test(text);
}

export function isHeaderName(text: string): boolean {
  return NAME.test(text);
}

let dateText = "";
let dateSecond = -1;

/** The `date` header's value, made once a second. */
function httpDate(): string {
  const second = Math.floor(Date.now() / 1000);
  if (second !== dateSecond) {
    dateSecond = second;
    dateText = new Date(second * 1000).toUTCString();
  }
  return dateText;
}

/**
 * @param headers names and values alternating.
 * @param framing how the body is delimited; `stream` means chunked.
 * @param close whether the connection ends after the answer.
 */
export function answerHead(status: number, headers: readonly string[], framing: AnswerFraming, close: boolean): string {
  let text = `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? "Unknown"}\r\n`;
  for (let at = 0; at < headers.length; at += 2) {
    const name = headers[at] ?? "";
    const value = headers[at + 1] ?? "";
    invariant(NAME.test(name) && VALUE.test(value), `header ${JSON.stringify(name)} has a value that may not be sent`);
    text += `${name}: ${value}\r\n`;
  }
  if (framing.kind === "length") text += `content-length: ${framing.bytes}\r\n`;
  else if (framing.kind === "stream") text += "transfer-encoding: chunked\r\n";
  return `${text}date: ${httpDate()}\r\n${close ? "connection: close\r\n" : "connection: keep-alive\r\n"}\r\n`;
}
