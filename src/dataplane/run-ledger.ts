/**
 * What a dataplane must remember to hand over when its link is made (spec 2, Resync): the runs it served with their last
 * replica and phase, and the identity keys that it reported. The turns in flight are the open turns themselves.
 *
 * It does not decide which run a turn belongs to: that is the scheduler's.
 *
 * L1: `quiet` lists every run, the longest quiet first; runs expire from its front.
 * L2: `reported` lists every key report of a known run, the oldest first; `keys` is the number of their keys.
 */
import type { CallerId, PrincipalId, ReplicaId, RunId } from "../base/ids.ts";
import { LinkedList, type ListLinks } from "../base/linked-list.ts";
import type { IdentityKey, KeyReport, RunReport, ServiceClass } from "../wire/admission.ts";

export type LedgerLimits = {
  readonly runIdleExpiryMs: number;
  readonly identityTtlMs: number;
  /** Bounds the keys, and the runs too: a run that is worth remembering has at least one key or a header. */
  readonly identityKeysMax: number;
};

/** Who a turn belongs to, once the scheduler has said so. */
export type RunOwner = {
  readonly run: RunId;
  readonly principal: PrincipalId;
  readonly caller: CallerId;
  readonly class: ServiceClass;
};

type LedgerRun = {
  readonly run: RunId;
  readonly principal: PrincipalId;
  caller: CallerId;
  class: ServiceClass;
  phase: "paused" | "idle";
  replica: ReplicaId | undefined;
  /** When its last turn began or ended. */
  touchedMs: number;
  pausedMs: number;
  quietLinks: ListLinks<LedgerRun> | undefined;
  readonly reports: Set<KeyRecord>;
};

type KeyRecord = {
  readonly owner: LedgerRun;
  readonly keys: readonly IdentityKey[];
  readonly atMs: number;
  reportedLinks: ListLinks<KeyRecord> | undefined;
};

export class RunLedger {
  readonly #limits: LedgerLimits;
  readonly #runs = new Map<PrincipalId, Map<RunId, LedgerRun>>();
  readonly #quiet = new LinkedList<"quietLinks", LedgerRun>("quietLinks");
  readonly #reported = new LinkedList<"reportedLinks", KeyRecord>("reportedLinks");
  #keys = 0;

  constructor(limits: LedgerLimits) {
    this.#limits = limits;
  }

  get runCount(): number {
    return this.#quiet.size;
  }

  get keyCount(): number {
    return this.#keys;
  }

  /** A turn was admitted. Side calls move nothing but the run's sign of life. */
  admitted(owner: RunOwner, replica: ReplicaId, side: boolean, nowMs: number): void {
    const run = this.#touch(owner, nowMs);
    if (side) return;
    run.replica = replica;
    run.phase = "idle";
  }

  /** A turn's answer is whole. */
  finished(owner: RunOwner, paused: boolean, side: boolean, keys: readonly IdentityKey[], nowMs: number): void {
    const run = this.#touch(owner, nowMs);
    if (!side) {
      run.phase = paused ? "paused" : "idle";
      run.pausedMs = nowMs;
    }
    if (keys.length > 0) this.#remember(run, keys, nowMs);
  }

  /** A turn failed: its run is idle, not paused (spec 2, Retry). */
  failed(owner: RunOwner, side: boolean, nowMs: number): void {
    const run = this.#touch(owner, nowMs);
    if (!side) run.phase = "idle";
  }

  /** The run has ended: nothing of it is handed over any more. */
  ended(run: RunId, principal: PrincipalId): void {
    const known = this.#runs.get(principal)?.get(run);
    if (known !== undefined) this.#forget(known);
  }

  runReports(nowMs: number): RunReport[] {
    this.sweep(nowMs);
    const reports: RunReport[] = [];
    for (let run = this.#quiet.first; run !== undefined; run = this.#quiet.next(run)) {
      reports.push({
        run: run.run,
        principal: run.principal,
        caller: run.caller,
        class: run.class,
        phase: run.phase,
        replica: run.replica,
        quietMs: nowMs - run.touchedMs,
        pausedMs: run.phase === "paused" ? nowMs - run.pausedMs : undefined,
      });
    }
    return reports;
  }

  keyReports(nowMs: number): KeyReport[] {
    this.sweep(nowMs);
    const reports: KeyReport[] = [];
    for (let one = this.#reported.first; one !== undefined; one = this.#reported.next(one)) {
      const { run, principal } = one.owner;
      reports.push({ run, principal, keys: one.keys, ageMs: nowMs - one.atMs });
    }
    return reports;
  }

  /** Forgets what is too old or too much. */
  sweep(nowMs: number): void {
    const { runIdleExpiryMs, identityTtlMs, identityKeysMax } = this.#limits;
    for (let run = this.#quiet.first; run !== undefined; run = this.#quiet.first) {
      if (nowMs - run.touchedMs < runIdleExpiryMs && this.#quiet.size <= identityKeysMax) break;
      this.#forget(run);
    }
    for (let one = this.#reported.first; one !== undefined; one = this.#reported.first) {
      if (nowMs - one.atMs < identityTtlMs && this.#keys <= identityKeysMax) break;
      this.#drop(one);
    }
  }

  #touch(owner: RunOwner, nowMs: number): LedgerRun {
    let ofPrincipal = this.#runs.get(owner.principal);
    if (ofPrincipal === undefined) {
      ofPrincipal = new Map();
      this.#runs.set(owner.principal, ofPrincipal);
    }
    let run = ofPrincipal.get(owner.run);
    if (run === undefined) {
      run = {
        run: owner.run,
        principal: owner.principal,
        caller: owner.caller,
        class: owner.class,
        phase: "idle",
        replica: undefined,
        touchedMs: nowMs,
        pausedMs: nowMs,
        quietLinks: undefined,
        reports: new Set(),
      };
      ofPrincipal.set(owner.run, run);
      this.#quiet.append(run);
      if (this.#quiet.size > this.#limits.identityKeysMax) this.sweep(nowMs);
    }
    run.caller = owner.caller;
    run.class = owner.class;
    run.touchedMs = nowMs;
    this.#quiet.touch(run);
    return run;
  }

  #remember(owner: LedgerRun, keys: readonly IdentityKey[], nowMs: number): void {
    const record: KeyRecord = { owner, keys, atMs: nowMs, reportedLinks: undefined };
    owner.reports.add(record);
    this.#reported.append(record);
    this.#keys += keys.length;
    if (this.#keys > this.#limits.identityKeysMax) this.sweep(nowMs);
  }

  #drop(record: KeyRecord): void {
    record.owner.reports.delete(record);
    this.#reported.remove(record);
    this.#keys -= record.keys.length;
  }

  #forget(run: LedgerRun): void {
    for (const record of run.reports) this.#drop(record);
    this.#quiet.remove(run);
    const ofPrincipal = this.#runs.get(run.principal);
    ofPrincipal?.delete(run.run);
    if (ofPrincipal?.size === 0) this.#runs.delete(run.principal);
  }
}
