/** Status line and headers of an answer as text, and the check that keeps foreign values from breaking out of them. */
import { STATUS_CODES } from "node:http";
import { invariant } from "../base/invariant.ts";
import type { AnswerFraming } from "./exchange.ts";
import { isHeaderName, isHeaderValue } from "./header-grammar.ts";

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
    invariant(isHeaderName(name) && isHeaderValue(value), "a header that may not be sent");
    text += `${name}: ${value}\r\n`;
  }
  if (framing.kind === "length") text += `content-length: ${framing.bytes}\r\n`;
  else if (framing.kind === "stream") text += "transfer-encoding: chunked\r\n";
  return `${text}date: ${httpDate()}\r\n${close ? "connection: close\r\n" : "connection: keep-alive\r\n"}\r\n`;
}
