import type { Branches, Link } from "./branches.ts";
import type { FrameOf } from "./frames.ts";

const MOST_KEYS = 65_536;
const MOST_BYTES = 256 * 1024 * 1024;

/**
 * Small values of a world, each put once: kept at the root, and at every agent that they pass, so that one rank's value
 * reaches thousands by one answer to each agent.
 */
export class Values {
  readonly #branches: Branches;
  readonly #values = new Map<string, Buffer>();
  readonly #waiting = new Map<string, Set<Link>>();
  #bytes = 0;

  constructor(branches: Branches) {
    this.#branches = branches;
  }

  /** A value from below. Returns why it cannot be kept, if so. */
  put({ key, value }: FrameOf<"put">): string | undefined {
    if (this.#values.has(key)) return undefined;
    if (this.#values.size >= MOST_KEYS || this.#bytes + value.length > MOST_BYTES)
      return `a world keeps at most ${MOST_KEYS} values of ${MOST_BYTES} bytes in total`;
    this.#keep(key, value);
    this.#branches.sendUp({ kind: "put", key, value });
    return undefined;
  }

  get(link: Link, { key }: FrameOf<"get">): void {
    const value = this.#values.get(key);
    if (value !== undefined) return this.#branches.send(link, { kind: "value", key, value });
    const waiting = this.#waiting.get(key);
    if (waiting !== undefined) return void waiting.add(link);
    this.#waiting.set(key, new Set([link]));
    this.#branches.sendUp({ kind: "get", key });
  }

  /** A value from above. */
  answer({ key, value }: FrameOf<"value">): void {
    if (!this.#values.has(key)) this.#keep(key, value);
  }

  #keep(key: string, value: Buffer): void {
    this.#values.set(key, value);
    this.#bytes += value.length;
    const waiting = this.#waiting.get(key);
    this.#waiting.delete(key);
    if (waiting !== undefined) this.#branches.broadcast({ kind: "value", key, value }, waiting);
  }
}
