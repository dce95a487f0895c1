/**
 * What answers tell of prompts: how long a run's context is, what first prompts share, how fast a replica computes them,
 * whether prefixes survive, and how long tools take. From it the next prompt is estimated before its engine has counted it.
 */
import { activeSetOf } from "./active-set-config.ts";
import type { Step } from "./book.ts";
import { learnShared, type LiveSet } from "./live-set.ts";
import type { TurnFinished } from "./policy.ts";
import type { PromptMemory, Run, SchedulerState, Turn } from "./state.ts";
import { learnGap } from "./tool-gaps.ts";
import type { ActiveSetConfig } from "./types.ts";

/** How much one answer moves a learned mean. */
const WEIGHT = 0.05;
/** The fastest prefill seen is believed for about so many answers: load only ever makes one look slower. */
const RATE_DECAY = 0.01;
/** Shorter prompts are over in one step and tell nothing about the rate. */
const RATE_TOKENS_MIN = 512;
/** A limit is cut at most once in this time: one overload shows in several answers. */
const CUT_EVERY_MS = 1_000;

/** Tokens of the prompt with which a turn comes, as far as one can know. */
export function contextOf(state: SchedulerState, turn: Turn): number {
  const { prompts } = turn.run;
  const { promptBytes } = turn;
  if (prompts === undefined) {
    return promptBytes === undefined ? state.firstPromptTokens : Math.round(promptBytes / state.bytesPerToken);
  }
  if (promptBytes === undefined || prompts.promptBytes === undefined) return prompts.contextTokens;
  const grown = Math.round((promptBytes - prompts.promptBytes) / state.bytesPerToken);
  return Math.max(prompts.contextTokens, prompts.promptTokens + grown);
}

/** What a prompt begins with: without a digest of it, prompts of one model count as beginning alike. */
export function prefixKeyOf(turn: Turn): string {
  return turn.prefixKey ?? turn.model;
}

/** A main turn of a run is asked for: how long was the run away? */
export function learnReturn(state: SchedulerState, run: Run): void {
  const tool = run.prompts?.tool;
  if (tool !== undefined && run.last === "paused" && run.mainOpen === 1) {
    learnGap(state.gaps, tool, state.nowMs - run.pausedMs);
  }
}

/** The run is paused and was for less than the longest time for which a place is kept. */
export function mayTurnBack(state: SchedulerState, run: Run): boolean {
  return state.nowMs - run.pausedMs < activeSetOf(state.config).placeMostMs;
}

/** A main turn has ended well. Its run's replica and place are still those of the turn. */
export function learnFromAnswer(step: Step, turn: Turn, event: TurnFinished): void {
  const { state } = step;
  const { run, replica } = turn;
  if (replica === undefined) return;
  const { live } = replica;
  const { promptTokens = turn.contextTokens, completionTokens = 0, cachedTokens } = event.usage;
  const prefixKey = prefixKeyOf(turn);
  const before = run.prompts;
  if (event.usage.completionTokens !== undefined) {
    state.answerTokens += WEIGHT * (completionTokens - state.answerTokens);
  }
  if (event.usage.promptTokens !== undefined) learnSize(state, turn, promptTokens);
  if (cachedTokens !== undefined) {
    live.seesCached = true;
    if (before === undefined) learnShared(live, prefixKey, cachedTokens);
    else if (before.prefixKey === prefixKey && keptItsPlace(turn)) {
      learnSurvival(step, live, { before, cachedTokens });
    }
    learnRate(live, turn, promptTokens - cachedTokens);
  }
  run.prompts = {
    promptTokens,
    contextTokens: promptTokens + completionTokens,
    promptBytes: turn.promptBytes,
    prefixKey,
    tool: event.paused ? event.tool : undefined,
  };
}

/** The run held its place since its last turn: only then it is no wonder that its prefix is still there. */
function keptItsPlace({ run, admittedMs }: Turn): boolean {
  return run.place !== undefined && run.place.grantedMs < admittedMs;
}

function learnSize(state: SchedulerState, turn: Turn, promptTokens: number): void {
  if (promptTokens === 0) return;
  if (turn.promptBytes !== undefined) {
    state.bytesPerToken += WEIGHT * (turn.promptBytes / promptTokens - state.bytesPerToken);
  }
  if (turn.run.prompts === undefined) {
    const mean = state.firstPromptTokens;
    state.firstPromptTokens = mean === 0 ? promptTokens : Math.round(mean + WEIGHT * (promptTokens - mean));
  }
}

function learnRate(live: LiveSet, turn: Turn, uncachedTokens: number): void {
  if (!turn.streams || turn.startedMs <= turn.admittedMs || uncachedTokens < RATE_TOKENS_MIN) return;
  const rate = uncachedTokens / (turn.startedMs - turn.admittedMs);
  live.prefillRate = Math.max(rate, live.prefillRate + RATE_DECAY * (rate - live.prefillRate));
}

/** Did the prefix of a live run survive until its next turn? If not, too many are live (spec 9, Prefix survival). */
function learnSurvival(
  step: Step,
  live: LiveSet,
  seen: { readonly before: PromptMemory; readonly cachedTokens: number },
): void {
  const { state } = step;
  const config = activeSetOf(state.config);
  if (seen.cachedTokens < config.lostBelow * seen.before.promptTokens) cut(state, live, config);
  else if (state.heldCount > 0) live.limit += config.limitRaise / live.limit;
}

function cut(state: SchedulerState, live: LiveSet, config: ActiveSetConfig): void {
  if (state.nowMs - live.limitCutMs < CUT_EVERY_MS) return;
  live.limitCutMs = state.nowMs;
  live.limit = Math.max(1, config.limitCut * Math.min(live.limit, live.batchRuns + 1));
}
