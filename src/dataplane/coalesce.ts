/**
 * Joins the pieces of one read of an engine's answer into one write. A read brings many chunks when the client or the
 * machine is busy; framed anew one by one, each would be a system call of its own (bench/overhead: five times the cost
 * of a burst).
 *
 * The pieces of a read come and go before anything else happens: one place for all turns is enough.
 *
 * C1: pieces are kept only between the first payload of a read and its end, and belong to one turn: what a turn left
 *     behind that ended within its read never reaches another.
 */
const SCRATCH_BYTES = 262_144;
const scratch = Buffer.allocUnsafeSlow(SCRATCH_BYTES);

let owner: object | undefined;
/** The only piece so far, not copied yet; a read with one chunk, the usual one, is never copied here. */
let single: Buffer | undefined;
let used = 0;

/**
 * Adds a piece of a turn.
 * @returns bytes to be written first, when there was no room left.
 */
export function addPiece(turn: object, piece: Buffer): Buffer | undefined {
  if (owner !== turn) {
    owner = turn; // C1
    single = undefined;
    used = 0;
  }
  if (single === undefined && used === 0) {
    single = piece;
    return undefined;
  }
  if (single !== undefined) {
    const before = single;
    single = undefined;
    if (before.length + piece.length > SCRATCH_BYTES) {
      single = piece;
      return before;
    }
    append(before);
  }
  if (used + piece.length > SCRATCH_BYTES) {
    const full = scratch.subarray(0, used);
    used = 0;
    single = piece;
    return full;
  }
  append(piece);
  return undefined;
}

/** Everything of a turn that was not given out yet; undefined when there is nothing. Valid until the next piece. */
export function takePieces(turn: object): Buffer | undefined {
  if (owner !== turn) return undefined;
  owner = undefined;
  const bytes = single ?? (used === 0 ? undefined : scratch.subarray(0, used));
  single = undefined;
  used = 0;
  return bytes;
}

function append(piece: Buffer): void {
  piece.copy(scratch, used);
  used += piece.length;
}
