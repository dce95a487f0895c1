/** Every header name of luftpause's own (spec 3, Headers). Lower case: compare with lower-cased names. */
export const HEADER = {
  runId: "x-luftpause-run-id",
  class: "x-luftpause-class",
  caller: "x-luftpause-caller",
  principal: "x-luftpause-principal",
  hop: "x-luftpause-hop",
  runSource: "x-luftpause-run-source",
  replica: "x-luftpause-replica",
  spliced: "x-luftpause-spliced",
  translated: "x-luftpause-translated",
} as const;
