/** The rows of the failure table, as the tests and docs/failure-table.md name them. */
export const FAILURE_ROWS = {
  leftWhileHeld: "client leaves while its turn is held",
  leftMidStream: "client leaves mid-stream",
  unreachable: "engine unreachable",
  diesMidStream: "engine dies mid-stream",
  engineError: "engine answers with an error (429, 5xx, 4xx)",
  unknownModel: "unknown model",
  schedulerDown: "scheduler down or restarting",
  badRequest: "bad JSON, no `model`, bad class, bad run id",
  badToken: "no or wrong token",
} as const;
