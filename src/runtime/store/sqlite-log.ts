/**
 * Looks at the write-ahead log that a crash left behind, before SQLite does.
 *
 * SQLite reads the log up to the first page whose checksum is wrong and drops the rest without a word. After a loss of power
 * that is right: the end was never synced. After a damage in the middle it loses commits that were acknowledged. The two
 * can be told apart: a transaction is synced before the next one begins, so a whole page of a later transaction behind the
 * bad one shows that the disk had it all.
 *
 * What it does not do: tell a damage in the last transaction from a torn one.
 *
 * Source of the layout: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
 */
import { copyFileSync, readFileSync, statSync } from "node:fs";

const HEADER_BYTES = 32;
const FRAME_HEADER_BYTES = 24;
/** With checksums over little-endian words: what machines of that order write. */
const MAGIC_LITTLE_ENDIAN = 0x37_7f_06_82;
/** A log has 64 MiB and more only while the disk cannot keep up. */
const LOG_BYTES_MAX = 1024 * 1024 * 1024;

type Sums = { readonly s0: number; readonly s1: number };

/**
 * @param file the journal; its log lies beside it.
 * @returns what is wrong, with the place of a copy of the log; undefined where nothing is.
 */
export function inspectLog(file: string): string | undefined {
  const log = `${file}-wal`;
  const size = statSync(log, { throwIfNoEntry: false })?.size ?? 0;
  if (size <= HEADER_BYTES || size > LOG_BYTES_MAX) return undefined;
  const damaged = damagedFrame(readFileSync(log));
  if (damaged === undefined) return undefined;
  const copy = `${log}.damaged-${statSync(log).mtimeMs.toFixed()}`;
  let kept = `a copy of the log is ${copy}`;
  try {
    copyFileSync(log, copy);
  } catch (error) {
    kept = `no copy of the log could be kept (${(error as Error).message})`;
  }
  return `${log} is damaged at page ${damaged.frame} of ${damaged.frames}: commits behind it are lost; look at the disk; ${kept}`;
}

/** The first frame (from 1) of the log that is damaged although the disk had it; undefined where there is none. */
function damagedFrame(bytes: Buffer): { readonly frame: number; readonly frames: number } | undefined {
  const log = new Log(bytes);
  if (!log.readable) return undefined;
  let frame = 0;
  // Sums of a damaged header are unknown, and then no frame counts for SQLite.
  let sums = log.headerSums();
  while (sums !== undefined && frame < log.frames) {
    const next = log.sumsAfter(frame, sums);
    if (!log.isWhole(frame, next)) break;
    sums = next;
    frame += 1;
  }
  return log.goesOnBehind(frame) ? { frame: frame + 1, frames: log.frames } : undefined;
}

class Log {
  readonly frames: number;
  readonly readable: boolean;
  readonly #bytes: Buffer;
  readonly #words: Uint32Array;
  readonly #frameBytes: number;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
    const pageBytes = bytes.readUInt32BE(8);
    const plausible = pageBytes >= 512 && pageBytes <= 65_536 && (pageBytes & (pageBytes - 1)) === 0;
    const ourOrder = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;
    this.readable = plausible && ourOrder && bytes.readUInt32BE(0) === MAGIC_LITTLE_ENDIAN;
    this.#frameBytes = FRAME_HEADER_BYTES + pageBytes;
    this.frames = this.readable ? Math.floor((bytes.length - HEADER_BYTES) / this.#frameBytes) : 0;
    // A copy where the buffer does not begin at a whole word.
    const aligned = bytes.byteOffset % 4 === 0 ? bytes : Buffer.from(new Uint8Array(bytes).buffer);
    this.#words = new Uint32Array(aligned.buffer, aligned.byteOffset, bytes.length >> 2);
  }

  headerSums(): Sums | undefined {
    const sums = this.#sum({ s0: 0, s1: 0 }, 0, 24);
    const { s0, s1 } = this.#stored(24);
    return sums.s0 === s0 && sums.s1 === s1 ? sums : undefined;
  }

  sumsAfter(frame: number, before: Sums): Sums {
    const at = this.#at(frame);
    return this.#sum(this.#sum(before, at, 8), at + FRAME_HEADER_BYTES, this.#frameBytes - FRAME_HEADER_BYTES);
  }

  isWhole(frame: number, sums: Sums): boolean {
    const { s0, s1 } = this.#stored(this.#at(frame) + 16);
    return this.#isOfThisLog(frame) && sums.s0 === s0 && sums.s1 === s1;
  }

  /** Whether a transaction ends at or behind this frame, and a whole frame of a later one follows. */
  goesOnBehind(damaged: number): boolean {
    let ended = false;
    for (let frame = damaged; frame < this.frames; frame += 1) {
      if (!this.#isOfThisLog(frame)) continue;
      const before = frame === 0 ? undefined : this.#stored(this.#at(frame - 1) + 16);
      // Each frame's sums build on those of the one before, so a frame can be checked without the damaged one.
      if (ended && before !== undefined && this.isWhole(frame, this.sumsAfter(frame, before))) return true;
      if (this.#bytes.readUInt32BE(this.#at(frame) + 4) !== 0) ended = true;
    }
    return false;
  }

  /** By the salts, which change whenever the log begins anew: what lies behind its end is from an earlier time. */
  #isOfThisLog(frame: number): boolean {
    const at = this.#at(frame) + 8;
    return this.#bytes.compare(this.#bytes, 16, 24, at, at + 8) === 0;
  }

  #at(frame: number): number {
    return HEADER_BYTES + frame * this.#frameBytes;
  }

  #stored(at: number): Sums {
    return { s0: this.#bytes.readUInt32BE(at), s1: this.#bytes.readUInt32BE(at + 4) };
  }

  #sum(before: Sums, at: number, length: number): Sums {
    const words = this.#words;
    let { s0, s1 } = before;
    const end = (at + length) >> 2;
    for (let index = at >> 2; index < end; index += 2) {
      s0 = (s0 + (words[index] ?? 0) + s1) >>> 0;
      s1 = (s1 + (words[index + 1] ?? 0) + s0) >>> 0;
    }
    return { s0, s1 };
  }
}
