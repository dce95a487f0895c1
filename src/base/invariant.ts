/** Thrown when the program itself is wrong, never for bad input: bad input is a value (see wire/errors). */
class InvariantViolation extends Error {
  override readonly name = "InvariantViolation";
}

/**
 * Asserts what must hold if the code is right.
 * @throws InvariantViolation when it does not.
 */
export function invariant(condition: unknown, message: string): asserts condition {
  if (condition === false || condition === undefined || condition === null) throw new InvariantViolation(message);
}

/** Ends an exhaustive switch: compiles only when every case is handled. */
export function unreachable(value: never): never {
  throw new InvariantViolation(`unhandled case ${JSON.stringify(value)}`);
}
