/**
 * Branded identifiers. At run time they are plain strings; the brand keeps one kind from being passed for another.
 * Each is made only by its parser below, at the border where the text comes in.
 */
declare const brand: unique symbol;
type Branded<Name extends string> = string & { readonly [brand]: Name };

/** One agent's conversation, as the client or a rule of recognition names it. Unique inside a principal only. */
export type RunId = Branded<"RunId">;
/** One model request. Made by the dataplane, unique over all dataplanes, so asking again is idempotent. */
export type TurnId = Branded<"TurnId">;
/** An engine endpoint: the `name` in the config. */
export type ReplicaId = Branded<"ReplicaId">;
/** Who is authenticated: the name of the token. */
export type PrincipalId = Branded<"PrincipalId">;
/** The unit of fairness inside a principal. The empty string is the one anonymous caller. */
export type CallerId = Branded<"CallerId">;
/** One dataplane process; new at every start. */
export type DataplaneId = Branded<"DataplaneId">;

const RUN_ID = /^[\x21-\x2b\x2d-\x7e]+$/;

/**
 * A run id from outside: visible ASCII without comma; undefined when it is not one (spec 3, Headers). Its length is the
 * caller's to check (`runIdBytesMax`).
 */
export function parseRunId(text: string): RunId | undefined {
  return RUN_ID.test(text) ? (text as RunId) : undefined;
}

/** Ids from a trusted source: our own generator, the config, a peer on the authenticated link. */
export const asRunId = (text: string): RunId => text as RunId;
export const asTurnId = (text: string): TurnId => text as TurnId;
export const asReplicaId = (text: string): ReplicaId => text as ReplicaId;
export const asPrincipalId = (text: string): PrincipalId => text as PrincipalId;
export const asCallerId = (text: string): CallerId => text as CallerId;
export const asDataplaneId = (text: string): DataplaneId => text as DataplaneId;

/** Everybody, where no tokens or only the single token is configured. */
export const SOLE_PRINCIPAL = asPrincipalId("default");
export const ANONYMOUS_CALLER = asCallerId("");
