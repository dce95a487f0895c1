/** Who is this? Tokens are compared as digests in constant time; every configured token is compared every time. */
import { createHash, timingSafeEqual } from "node:crypto";
import { invariant } from "../base/invariant.ts";
import { SOLE_PRINCIPAL, type PrincipalId } from "../base/ids.ts";
import type { ServiceClass } from "../wire/admission.ts";

export type Identity = {
  readonly principal: PrincipalId;
  /** One of our own services: may name another principal (spec 1, Who may see and continue a run). */
  readonly service: boolean;
  /** Classes that the principal may use, the best first. */
  readonly classes: readonly ServiceClass[];
};

export type AuthOptions = {
  /** The single token, for everybody; undefined when there is none or when there are principals. */
  readonly token: string | undefined;
  readonly serviceToken: string | undefined;
  readonly principals: readonly {
    readonly name: PrincipalId;
    readonly token: string;
    readonly classes: readonly ServiceClass[];
  }[];
};

export type Authenticate = (headers: { header(name: string): string | undefined }) => Identity | undefined;

const BOTH: readonly ServiceClass[] = ["interactive", "batch"];
const SCHEME = /^bearer +([\x21-\x7e]+)$/i;

/**
 * Makes the check of a request's token (spec 7, Security).
 * @returns the identity, or undefined for a missing, malformed or wrong token: a 401. Without any token configured
 * everybody is the sole principal.
 */
export function createAuth(options: AuthOptions): Authenticate {
  const rows: { readonly digest: Buffer; readonly identity: Identity }[] = [];
  const add = (token: string, identity: Identity): void => {
    // The config's schema refuses it; here it would let an empty header in.
    invariant(token !== "", "a token is never empty");
    rows.push({ digest: digestOf(token), identity });
  };
  // The single token is the service token too, where no other is named (spec 7, Principals).
  if (options.token !== undefined) {
    add(options.token, { principal: SOLE_PRINCIPAL, service: options.serviceToken === undefined, classes: BOTH });
  }
  if (options.serviceToken !== undefined) {
    add(options.serviceToken, { principal: SOLE_PRINCIPAL, service: true, classes: BOTH });
  }
  for (const { name, token, classes } of options.principals) {
    const sorted = BOTH.filter((serviceClass) => classes.includes(serviceClass));
    add(token, { principal: name, service: false, classes: sorted });
  }
  if (rows.length === 0) {
    const everybody: Identity = { principal: SOLE_PRINCIPAL, service: false, classes: BOTH };
    return () => everybody;
  }
  return (headers) => {
    const token = tokenOf(headers);
    if (token === undefined) return undefined;
    const digest = digestOf(token);
    let found: Identity | undefined;
    for (const row of rows) if (timingSafeEqual(row.digest, digest)) found = row.identity;
    return found;
  };
}

function digestOf(token: string): Buffer {
  return createHash("sha256").update(token, "utf8").digest();
}

/** The token as the SDKs send it; an `authorization` that is no bearer token does not fall through to the others. */
function tokenOf(headers: { header(name: string): string | undefined }): string | undefined {
  const authorization = headers.header("authorization");
  if (authorization !== undefined) return SCHEME.exec(authorization)?.[1];
  return headers.header("x-api-key") ?? headers.header("x-goog-api-key");
}
