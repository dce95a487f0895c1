/**
 * Vocabulary of the scheduling core: events in (past tense), effects out (imperative), and the configuration.
 * Every event carries `nowMs`, monotonic milliseconds of the host's clock; the core has no clock, IO or randomness.
 */
import type { CallerId, DataplaneId, PrincipalId, ReplicaId, RunId, TurnId } from "../base/ids.ts";
import type {
  FailureReason,
  FlightReport,
  IdentityKey,
  KeyReport,
  ModelReport,
  RunReport,
  RunSource,
  ServiceClass,
  Usage,
} from "../wire/admission.ts";
import type { ErrorCode } from "../wire/errors.ts";
import type { EngineKind, PriorityOrder, ReplicaKind, WireApi } from "../wire/endpoint.ts";
import type { LoadSample } from "../wire/load.ts";

/** A replica as the pool's configuration names it; the order in the config breaks ties of placement. */
export type ReplicaConfig = {
  readonly replica: ReplicaId;
  readonly kind: ReplicaKind;
  /** Configured models; empty: learned from probes. */
  readonly models: readonly string[];
  /** Configured APIs; undefined: learned from probes. */
  readonly speaks: readonly WireApi[] | undefined;
  /** Undefined: only the measured cap. */
  readonly maxInFlight: number | undefined;
  /** Undefined: `auto`. */
  readonly priority?: PriorityOrder | undefined;
};

export type CapRelease = "step" | "at-once";

/** Which bound an active set has on a replica that shows both: its pool, whether prefixes survive, or both at once. */
export type ActiveSetBound = "pool" | "survival" | "both" | "none";

/** Numbers and switches of `policy: active-set` (spec 9). Each mechanism can be switched off for an ablation. */
export type ActiveSetConfig = {
  readonly bound: ActiveSetBound;
  /** Share of the KV pool that the live runs may fill. */
  readonly ceiling: number;
  /** A run that grows past the ceiling makes room: checked at every turn start. */
  readonly growth: boolean;
  /** Limit of live batch runs of a replica, where only the survival of prefixes is seen: at first. */
  readonly limitAtFirst: number;
  /** The limit is multiplied by this when a prefix was lost, at most once a second. */
  readonly limitCut: number;
  /** A prefix counts as lost when less than this share of the run's last prompt was cached. */
  readonly lostBelow: number;
  /** While prefixes survive and runs wait the limit L rises by this ÷ L. */
  readonly limitRaise: number;
  /** A slice is so many times the run's own re-prefill time; 0: no slices, an admitted run keeps its place. */
  readonly sliceFactor: number;
  /** A replica with fewer turns in flight takes held work whatever the gate says; 0: never. */
  readonly workConservingBelow: number;
  /** A batch turn that has sent nothing is taken back when an interactive turn comes. */
  readonly preempt: boolean;
  /** Shares are counted in tokens; false: in turns in flight, as in `classic`. */
  readonly tokenShares: boolean;
  readonly outputWeight: number;
  readonly shareHalfLifeMs: number;
  /** A paused batch run keeps its place for this × the p95 of its tool's durations, within the two bounds. */
  readonly placeFactor: number;
  readonly placeLeastMs: number;
  readonly placeMostMs: number;
};

export type SchedulingConfig = {
  readonly policy: "classic" | "active-set";
  /** Undefined: the defaults of active-set-config.ts. */
  readonly activeSet?: ActiveSetConfig | undefined;
  readonly capRelease: CapRelease;
  readonly pausedRoomMs: number;
  readonly turnExpiryMs: number;
  readonly dataplaneGraceMs: number;
  readonly runIdleExpiryMs: number;
  readonly arrivalKeptMs: number;
  readonly loadStaleAfterProbes: number;
  readonly identityTtlMs: number;
  readonly identityKeysMax: number;
  /** Weights of named principals; one that is not named weighs 1. */
  readonly principalWeights: readonly { readonly principal: PrincipalId; readonly weight: number }[];
  readonly replicas: readonly ReplicaConfig[];
};

export type SchedulerEvent = { readonly nowMs: number } &
  /** Reload: replicas that left lose their pins, new ones start open and unhealthy until their first good probe. */
  (
    | { readonly type: "pool-configured"; readonly config: SchedulingConfig }
    /** A load poll was sent: the sample that follows speaks for this moment. */
    | { readonly type: "probe-sent"; readonly replica: ReplicaId }
    | {
        readonly type: "replica-probed";
        readonly replica: ReplicaId;
        readonly healthy: boolean;
        /** Undefined: the load could not be read at this probe (a failed load probe, or an engine without any). */
        readonly load: LoadSample | undefined;
        /** Undefined: not learned at this probe. */
        readonly models: readonly string[] | undefined;
        readonly speaks: readonly WireApi[] | undefined;
        readonly engine: EngineKind | undefined;
        /** Another engine answers behind the same address: pins and load are dropped. */
        readonly replaced: boolean;
      }
    | {
        readonly type: "dataplane-linked";
        readonly dataplane: DataplaneId;
        readonly runs: readonly RunReport[];
        readonly flights: readonly FlightReport[];
        readonly keys: readonly KeyReport[];
        readonly models: readonly ModelReport[];
      }
    | { readonly type: "dataplane-lost"; readonly dataplane: DataplaneId }
    | {
        readonly type: "turn-requested";
        readonly dataplane: DataplaneId;
        readonly turn: TurnId;
        readonly principal: PrincipalId;
        readonly caller: CallerId;
        readonly class: ServiceClass;
        readonly model: string;
        readonly api: WireApi;
        readonly run: RunId | undefined;
        readonly keys: readonly IdentityKey[];
        readonly freshRun: RunId;
        readonly side: boolean;
        readonly heldMs: number;
        /** Size of the request's body: what a first prompt is estimated from. Undefined: not told. */
        readonly promptBytes?: number | undefined;
        /** Digest of what its prompt begins with (model, tools, system prompt). Prompts with the same one share a prefix. */
        readonly prefixKey?: string | undefined;
        /** The answer comes as a stream, so that its first byte shows the end of the prefill. Undefined: not told. */
        readonly streams?: boolean | undefined;
      }
    | { readonly type: "turn-abandoned"; readonly turn: TurnId; readonly reason: FailureReason }
    | { readonly type: "turn-started"; readonly turn: TurnId }
    | {
        readonly type: "turn-finished";
        readonly turn: TurnId;
        readonly usage: Usage;
        readonly finishReason: string | undefined;
        readonly paused: boolean;
        readonly keys: readonly IdentityKey[];
        /** Name of the tool for whose result the run is paused; the first one of several. */
        readonly tool?: string | undefined;
      }
    | { readonly type: "turn-failed"; readonly turn: TurnId; readonly reason: FailureReason }
    | { readonly type: "turn-pushed-back"; readonly turn: TurnId; readonly retryAfterMs: number }
    | { readonly type: "turn-withdrawn"; readonly turn: TurnId }
    | { readonly type: "turn-too-late"; readonly turn: TurnId }
    | { readonly type: "turns-named"; readonly dataplane: DataplaneId; readonly turns: readonly TurnId[] }
    | { readonly type: "run-ended"; readonly run: RunId; readonly principal: PrincipalId }
    | { readonly type: "ticked" }
  );

/** The only ways in which the core touches the world. The host delivers them in order to the turn's dataplane. */
export type SchedulerEffect =
  | {
      readonly type: "admit-turn";
      readonly dataplane: DataplaneId;
      readonly turn: TurnId;
      readonly replica: ReplicaId;
      readonly run: RunId;
      readonly source: RunSource;
      /** To be sent to the engine; undefined: none. */
      readonly priority?: number;
    }
  | { readonly type: "withdraw-turn"; readonly dataplane: DataplaneId; readonly turn: TurnId }
  | {
      readonly type: "reject-turn";
      readonly dataplane: DataplaneId;
      readonly turn: TurnId;
      readonly run: RunId;
      readonly source: RunSource;
      readonly code: ErrorCode;
      readonly message: string;
    };

/** Why a turn is held, for people: the same words in status, trace and dashboard (spec 2, Explaining itself). */
export type HoldExplanation = {
  readonly turn: TurnId;
  readonly reason: string;
  /** 1 for the turn that would go first among all held turns. */
  readonly place: number;
};
