/**
 * Every error that luftpause makes itself (spec 3, Errors that luftpause makes): code → HTTP status → types.
 * `docs/errors.md` is tested against this table both ways. An engine's own errors are never rewritten into these.
 */

export type ErrorCode =
  | "invalid_json"
  | "missing_model"
  | "bad_class"
  | "bad_run_id"
  | "invalid_token"
  | "run_unknown"
  | "model_not_found"
  | "route_unknown"
  | "method_not_allowed"
  | "body_too_large"
  | "unsupported_encoding"
  | "hold_deadline"
  | "engine_unreachable"
  | "engine_lost"
  | "no_healthy_replica"
  | "overloaded"
  | "draining"
  | "loop"
  | "internal";

export type ErrorKind = {
  readonly status: number;
  /** `type` in OpenAI's shape. */
  readonly openaiType: string;
  /** `error.type` in Anthropic's shape. */
  readonly anthropicType: string;
  /** `error.status` in Gemini's shape. */
  readonly geminiStatus: string;
  /** Whole seconds sent as Retry-After, where the client should come back. */
  readonly retryAfterSeconds?: number;
};

const invalid = (status: number, anthropicType = "invalid_request_error"): ErrorKind => ({
  status,
  openaiType: "invalid_request_error",
  anthropicType,
  geminiStatus: "INVALID_ARGUMENT",
});

const notFound: ErrorKind = {
  status: 404,
  openaiType: "not_found_error",
  anthropicType: "not_found_error",
  geminiStatus: "NOT_FOUND",
};

const unavailable = (retryAfterSeconds: number): ErrorKind => ({
  status: 503,
  openaiType: "overloaded_error",
  anthropicType: "overloaded_error",
  geminiStatus: "UNAVAILABLE",
  retryAfterSeconds,
});

const upstream: ErrorKind = {
  status: 502,
  openaiType: "upstream_error",
  anthropicType: "api_error",
  geminiStatus: "UNAVAILABLE",
};

export const ERRORS: { readonly [Code in ErrorCode]: ErrorKind } = {
  invalid_json: invalid(400),
  missing_model: invalid(400),
  bad_class: invalid(400),
  bad_run_id: invalid(400),
  invalid_token: {
    status: 401,
    openaiType: "authentication_error",
    anthropicType: "authentication_error",
    geminiStatus: "UNAUTHENTICATED",
  },
  run_unknown: notFound,
  model_not_found: notFound,
  route_unknown: notFound,
  method_not_allowed: invalid(405),
  body_too_large: invalid(413, "request_too_large"),
  unsupported_encoding: invalid(415),
  hold_deadline: {
    status: 429,
    openaiType: "rate_limit_error",
    anthropicType: "rate_limit_error",
    geminiStatus: "RESOURCE_EXHAUSTED",
    retryAfterSeconds: 1,
  },
  engine_unreachable: upstream,
  engine_lost: upstream,
  no_healthy_replica: unavailable(2),
  overloaded: unavailable(5),
  draining: unavailable(2),
  loop: invalid(508),
  internal: { status: 500, openaiType: "api_error", anthropicType: "api_error", geminiStatus: "INTERNAL" },
};

/** An error on its way to a client. `param` names the field or header that is wrong. */
export type LuftpauseError = {
  readonly code: ErrorCode;
  readonly message: string;
  readonly param?: string;
};

/** The family of error shapes: which API the client speaks. */
export type ErrorShape = "openai" | "anthropic" | "gemini";

/**
 * The JSON text of an error in the shape of the client's API.
 * @param requestId goes into Anthropic's `request_id`.
 */
export function errorBody(shape: ErrorShape, error: LuftpauseError, requestId: string): string {
  const kind = ERRORS[error.code];
  switch (shape) {
    case "openai":
      return JSON.stringify({
        error: { message: error.message, type: kind.openaiType, param: error.param ?? null, code: error.code },
      });
    case "anthropic":
      return JSON.stringify({
        type: "error",
        error: { type: kind.anthropicType, message: error.message },
        request_id: requestId,
      });
    case "gemini":
      return JSON.stringify({
        error: { code: kind.status, message: error.message, status: kind.geminiStatus },
      });
  }
}
