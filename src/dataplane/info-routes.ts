/** `GET /v1/models`, `GET` and `DELETE /v1/runs/{id}` (spec 3, Routes). */
import { parseRunId, type PrincipalId, type RunId } from "../base/ids.ts";
import { answerWhole, type Exchange } from "../http/index.ts";
import type { LuftpauseError } from "../wire/errors.ts";
import { answerError, answerJson } from "./answers.ts";
import type { TurnHost } from "./turn-state.ts";

/** The models of all healthy replicas, once each, in the shape of the API whose client asks. */
export function answerModels(host: TurnHost, exchange: Exchange): void {
  const models = host.pool.healthyModels();
  if (exchange.header("anthropic-version") === undefined) {
    const data = models.map((id) => ({ id, object: "model", created: 0, owned_by: "luftpause" }));
    answerJson(exchange, 200, { object: "list", data });
    return;
  }
  // When a model was made is not known here; the shape wants a date.
  const created = "1970-01-01T00:00:00Z";
  const data = models.map((id) => ({ type: "model", id, display_name: id, created_at: created }));
  answerJson(exchange, 200, { data, has_more: false, first_id: models[0] ?? null, last_id: models.at(-1) ?? null });
}

/** What is known of a run of this principal. */
export function answerRun(host: TurnHost, exchange: Exchange, principal: PrincipalId, encoded: string): void {
  const run = decodeRun(encoded);
  if (typeof run === "object") {
    answerError(exchange, run, host.limits);
    return;
  }
  host.admissions.queryRun(run, principal, (view) => {
    if (view === "unavailable") {
      const message = "the scheduler cannot be reached at the moment";
      answerError(exchange, { code: "overloaded", message }, host.limits);
    } else if (view === undefined) {
      answerError(exchange, { code: "run_unknown", message: `no run '${run}' is known` }, host.limits);
    } else {
      answerJson(exchange, 200, { ...view, replica: view.replica ?? null });
    }
  });
}

/** The run has ended: forgotten at once, or when its last open turn ends. The answer is the same when it is not known. */
export function endRun(host: TurnHost, exchange: Exchange, principal: PrincipalId, encoded: string): void {
  const run = decodeRun(encoded);
  if (typeof run === "object" && run.code !== "run_unknown") {
    answerError(exchange, run, host.limits);
    return;
  }
  if (typeof run !== "object") host.admissions.runEnded(run, principal);
  exchange.begin(204, [], { kind: "none" });
  exchange.end();
}

function decodeRun(encoded: string): RunId | LuftpauseError {
  if (encoded.includes("/")) return { code: "route_unknown", message: "a run's id is percent-encoded in the path" };
  let text: string;
  try {
    text = decodeURIComponent(encoded);
  } catch {
    return { code: "bad_run_id", param: "id", message: "the run's id is not percent-encoded UTF-8" };
  }
  // An id that no run can have is simply not known.
  return parseRunId(text) ?? { code: "run_unknown", message: "no such run is known" };
}

/** Text of a page, for probes and scrapers. */
export function answerText(exchange: Exchange, status: number, text: string, contentType: string): void {
  if (!exchange.over) answerWhole(exchange, status, [], text, contentType);
}
