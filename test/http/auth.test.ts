/** Tokens: who is who, and that nothing half right gets in. */
import { describe, expect, test } from "vitest";
import { asPrincipalId, SOLE_PRINCIPAL } from "../../src/base/ids.ts";
import { createAuth, type AuthOptions } from "../../src/http/index.ts";

const headers = (given: { readonly [name: string]: string }) => ({ header: (name: string) => given[name] });
const make = (options: Partial<AuthOptions> = {}) =>
  createAuth({ token: undefined, serviceToken: undefined, principals: [], ...options });
const bearer = (token: string) => headers({ authorization: `Bearer ${token}` });

describe("without a token", () => {
  test("everybody is the sole principal, whatever they send, and nobody is a service", () => {
    const authenticate = make();
    for (const given of [headers({}), bearer("x"), headers({ authorization: "garbage" })]) {
      expect(authenticate(given)).toEqual({
        principal: SOLE_PRINCIPAL,
        service: false,
        classes: ["interactive", "batch"],
      });
    }
  });
});

describe("with the single token", () => {
  const authenticate = make({ token: "secret-1" });

  test.each([
    ["a bearer token", { authorization: "Bearer secret-1" }],
    ["a bearer token in another case", { authorization: "bearer secret-1" }],
    ["x-api-key", { "x-api-key": "secret-1" }],
    ["x-goog-api-key", { "x-goog-api-key": "secret-1" }],
  ])("%s is the sole principal and the service", (_name, given) => {
    expect(authenticate(headers(given))).toMatchObject({ principal: SOLE_PRINCIPAL, service: true });
  });

  test.each([
    ["nothing", {}],
    ["an empty bearer token", { authorization: "Bearer " }],
    ["the word alone", { authorization: "Bearer" }],
    ["nothing but spaces", { authorization: "   " }],
    ["another scheme", { authorization: "Basic secret-1" }],
    ["no scheme", { authorization: "secret-1" }],
    ["a beginning of it", { authorization: "Bearer secret-" }],
    ["more than it", { authorization: "Bearer secret-1x" }],
    ["two tokens", { authorization: "Bearer secret-1 secret-1" }],
    ["bytes that are no ASCII", { authorization: "Bearer secret-1\u00e9" }],
    ["another letter case", { authorization: "Bearer SECRET-1" }],
    ["an empty key", { "x-api-key": "" }],
    ["a very long one", { "x-api-key": "x".repeat(16_000) }],
    ["a wrong authorization beside a right key", { authorization: "Bearer x", "x-api-key": "secret-1" }],
    ["a malformed authorization beside a right key", { authorization: "Bearer", "x-api-key": "secret-1" }],
  ])("%s is nobody", (_name, given) => {
    expect(authenticate(headers(given))).toBeUndefined();
  });

  test("is not the service where a service token is named", () => {
    const both = make({ token: "secret-1", serviceToken: "service-1" });
    expect(both(bearer("secret-1"))).toMatchObject({ principal: SOLE_PRINCIPAL, service: false });
    expect(both(bearer("service-1"))).toMatchObject({ principal: SOLE_PRINCIPAL, service: true });
  });
});

describe("with principals", () => {
  const authenticate = make({
    serviceToken: "service-1",
    principals: [
      { name: asPrincipalId("ann"), token: "ann-1", classes: ["batch", "interactive"] },
      { name: asPrincipalId("bob"), token: "bob-1", classes: ["batch"] },
    ],
  });

  test("each token is its principal with its classes, the best first", () => {
    expect(authenticate(bearer("ann-1"))).toEqual({
      principal: "ann",
      service: false,
      classes: ["interactive", "batch"],
    });
    expect(authenticate(bearer("bob-1"))).toEqual({ principal: "bob", service: false, classes: ["batch"] });
    expect(authenticate(bearer("service-1"))).toMatchObject({ service: true });
  });

  test("a token of nobody is nobody, and no token is not the sole principal", () => {
    expect(authenticate(bearer("ann-2"))).toBeUndefined();
    expect(authenticate(headers({}))).toBeUndefined();
  });
});

test("an empty token is no token: it never lets an empty header in", () => {
  expect(() => make({ token: "" })).toThrow(/empty/);
  expect(() => make({ token: "a", serviceToken: "" })).toThrow(/empty/);
});
