import type { Bench, Contender, Effort } from "./bench.ts";
import { type Families, openFamilies, torchContender } from "./contenders.ts";
import { Peer } from "../src/peers.ts";
import type { Sizes } from "./problem.ts";

export interface SessionOptions {
  readonly sizes: Sizes;
  readonly effort: Effort;
  readonly device: "cuda" | "cpu";
  /** How PyTorch's side is started; none: ours alone. */
  readonly peer: readonly string[] | undefined;
  /** The backends of PyTorch to ask. */
  readonly backends: readonly string[];
}

/** One run of the benchmark: opens card and peer when they are first needed, and closes them. */
export class Session implements Bench, AsyncDisposable {
  readonly sizes: Sizes;
  readonly effort: Effort;
  readonly device: "cuda" | "cpu";
  readonly #options: SessionOptions;
  #families: Families | undefined;
  #peer: Peer | undefined;

  constructor(options: SessionOptions) {
    this.sizes = options.sizes;
    this.effort = options.effort;
    this.device = options.device;
    this.#options = options;
  }

  async contenders(): Promise<readonly Contender[]> {
    this.#families ??= await openFamilies(this.device);
    const peer = this.peer();
    const theirs = peer ? this.#options.backends.map((backend) => torchContender(peer, backend)) : [];
    return [...this.#families.contenders, ...theirs];
  }

  peer(): Peer | undefined {
    if (this.#peer?.hasEnded) this.#peer = undefined;
    if (this.#options.peer) this.#peer ??= new Peer(this.#options.peer);
    return this.#peer;
  }

  async close(): Promise<void> {
    this.#peer?.[Symbol.dispose]();
    this.#peer = undefined;
    await this.#families?.[Symbol.asyncDispose]();
    this.#families = undefined;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
