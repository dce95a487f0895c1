/** Exit codes (spec 7, Commands). */
export const EXIT = { ok: 0, fault: 1, usage: 2, config: 3, unhealthy: 4 } as const;

/** Ends a command with a message for a person: what is wrong, where, how to mend it. */
export class CommandError extends Error {
  override readonly name = "CommandError";
  readonly exitCode: number;

  constructor(exitCode: number, message: string) {
    super(message);
    this.exitCode = exitCode;
  }
}
