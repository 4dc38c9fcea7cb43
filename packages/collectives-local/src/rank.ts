import type { Device, Tensor, Work } from "@mosaic/core";
import { type Call, encode } from "./call.ts";
import { type Member, native, nativeLater } from "./native.ts";

/** One rank's engine: what all of its groups post through. Keeps operands alive while they are used. */
export class Rank {
  readonly device: Device;
  readonly member: Member;
  /** Posted, and neither known to be over nor waited for; in order. */
  #pending: Pending[] = [];
  #closing: Promise<void> | undefined;

  constructor(device: Device, member: Member) {
    this.device = device;
    this.member = member;
  }

  get isClosed(): boolean {
    return this.#closing !== undefined;
  }

  post(group: number, call: Call, label: string): Work {
    this.#letGo();
    const number = native((addon) => addon.post(this.member, group, encode(call), label));
    const pending = new Pending(this.member, number, operandsOf(call));
    this.#pending.push(pending);
    return pending;
  }

  /** Gives back what operations held that are over. Most were given back by `wait` already. */
  #letGo(): void {
    if (this.#pending.length === 0) return;
    const completed = native((addon) => addon.completed(this.member));
    const running = this.#pending.findIndex(({ number }) => number > completed);
    for (const over of this.#pending.splice(0, running < 0 ? this.#pending.length : running)) over.release();
  }

  /** Finishes what was posted, then leaves. Twice is fine. */
  close(): Promise<void> {
    this.#closing ??= nativeLater((addon) => addon.close(this.member)).finally(() => this.#letGo());
    return this.#closing;
  }
}

function operandsOf({ out, input, transfers = [] }: Call): Tensor[] {
  return [out, input, ...transfers.map(({ tensor }) => tensor)].filter((tensor) => tensor !== undefined);
}

class Pending implements Work {
  readonly number: number;
  readonly #member: Member;
  #held: Tensor["storage"][];
  #waited = false;

  constructor(member: Member, number: number, operands: readonly Tensor[]) {
    this.number = number;
    this.#member = member;
    this.#held = operands.map(({ storage }) => storage);
    for (const storage of this.#held) storage.retain();
  }

  wait(): void {
    if (this.#waited) return;
    this.#waited = true;
    native((addon) => addon.wait(this.#member, this.number));
    // Memory returns in stream order, and the stream now waits: whoever gets it next comes after this operation.
    this.release();
  }

  release(): void {
    for (const storage of this.#held) storage.release();
    this.#held = [];
  }
}
