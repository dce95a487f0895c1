/** The bytes of the bodies of held turns together, with their bound (spec 3, Bodies). */
export class HeldBodies {
  readonly bytesMax: number;
  #bytes = 0;

  constructor(bytesMax: number) {
    this.bytesMax = bytesMax;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Whether one more body fits. A turn that came back from an engine is held whether it fits or not. */
  fits(bytes: number): boolean {
    return this.#bytes + bytes <= this.bytesMax;
  }

  add(bytes: number): void {
    this.#bytes += bytes;
  }

  remove(bytes: number): void {
    this.#bytes -= bytes;
  }
}
