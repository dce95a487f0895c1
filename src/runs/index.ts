/**
 * The runs core (spec 4): the life of sub-agent runs as records and what follows from them. Pure: the host owns clock,
 * store, model and tools.
 *
 * A host restores trees (`createTree`, `restoreLive`, `restoreEnded`, then `resume`), feeds what happens to `advance`,
 * `decide` and `passTime`, appends the entries that come back in one commit, and then carries out `actionsOf` every run
 * that changed.
 */
export { actionsOf, advance, decide, liveRun, nextDeadlineMs, passTime, resume } from "./advance.ts";
export { fitArguments, simplifiedSchema } from "./arguments/index.ts";
export { pendingApprovals, settledApproval } from "./approval.ts";
export type { PendingApproval } from "./approval.ts";
export { estimateUsage, exceededText } from "./budget.ts";
export { carriesTools, conversation } from "./conversation.ts";
export type { ChatMessage } from "./conversation.ts";
export { isJsonObject, readText, shownValue } from "./json/index.ts";
export { NO_SUMS, REFUSAL } from "./fold.ts";
export { replayRun } from "./replay.ts";
export type { Replayed, StoredRecord } from "./replay.ts";
export { recoverCalls } from "./text-calls/index.ts";
export type { TextCall } from "./text-calls/index.ts";
export {
  createTree,
  difference,
  REPORTED_SUMS,
  refusesChild,
  restoreEnded,
  restoreLive,
  sum,
  upwards,
} from "./tree.ts";
export type { Entry, Outline, RunNode, SpawnRefusal, TreeState } from "./tree.ts";
export { RECORD_VERSION } from "./types.ts";
export type {
  Action,
  Approval,
  ApprovalScope,
  AskReason,
  Assignment,
  BudgetName,
  Decision,
  Effect,
  End,
  EndReason,
  Exceeded,
  Grant,
  JsonObject,
  Judgement,
  Limits,
  MadeCall,
  OnCrash,
  OpenTurn,
  RecordOf,
  Resolution,
  RunRecord,
  RunRules,
  RunState,
  RunStateName,
  ServiceClass,
  Sums,
  ToolRef,
  TurnFailure,
  TurnMode,
  Usage,
} from "./types.ts";
