import type { CollectiveCall, Device, Tensor, Work } from "@mosaic/core";
import { encode } from "./call.ts";
import type { CollectivesEngine } from "./engine.ts";

/** One rank: what all of its groups post through. Keeps operands alive while they are used. */
export class NativeRank {
  readonly device: Device;
  readonly engine: CollectivesEngine;
  /** Posted, and neither known to be over nor waited for; in order. */
  #pending: Pending[] = [];
  #closing: Promise<void> | undefined;

  constructor(device: Device, engine: CollectivesEngine) {
    this.device = device;
    this.engine = engine;
  }

  get isClosed(): boolean {
    return this.#closing !== undefined;
  }

  post(group: number, call: CollectiveCall, label: string): Work {
    this.#letGo();
    const number = this.engine.post(group, encode(call), label);
    const pending = new Pending(this.engine, number, operandsOf(call));
    this.#pending.push(pending);
    return pending;
  }

  /** Gives back what operations held that are over. Most were given back by `wait` already. */
  #letGo(): void {
    if (this.#pending.length === 0) return;
    const completed = this.engine.completed();
    const running = this.#pending.findIndex(({ number }) => number > completed);
    for (const over of this.#pending.splice(0, running < 0 ? this.#pending.length : running)) over.release();
  }

  /** Finishes what was posted, then leaves. Twice is fine. */
  close(): Promise<void> {
    this.#closing ??= this.engine.close().finally(() => this.#letGo());
    return this.#closing;
  }
}

function operandsOf({ out, input, transfers = [] }: CollectiveCall): Tensor[] {
  return [out, input, ...transfers.map(({ tensor }) => tensor)].filter((tensor) => tensor !== undefined);
}

class Pending implements Work {
  readonly number: number;
  readonly #engine: CollectivesEngine;
  #held: Tensor["storage"][];
  #waited = false;

  constructor(engine: CollectivesEngine, number: number, operands: readonly Tensor[]) {
    this.number = number;
    this.#engine = engine;
    this.#held = operands.map(({ storage }) => storage);
    for (const storage of this.#held) storage.retain();
  }

  wait(): void {
    if (this.#waited) return;
    this.#waited = true;
    this.#engine.wait(this.number);
    // Memory returns in stream order, and the stream now waits: whoever gets it next comes after this operation.
    this.release();
  }

  release(): void {
    for (const storage of this.#held) storage.release();
    this.#held = [];
  }
}
