import type { Channel } from "./channel.ts";

/** The shape of the tree: agent `i` is a child of agent `(i − 1) / fanOut`, rounded down. */
export class Directory {
  readonly #self: number;
  readonly #fanOut: number;
  /** At the root: where agents listen for children. */
  readonly #addresses = new Map<number, string>();
  /** Agents whose parent is not there yet, by the parent's number. */
  readonly #waiting = new Map<number, Channel[]>();

  constructor(self: number, fanOut: number) {
    this.#self = self;
    this.#fanOut = fanOut;
  }

  /** Where an agent belongs that has sent its hello: a child of this one, or redirected to its parent. */
  place(channel: Channel, agent: number, address: string): "child" | "redirected" | "duplicate" {
    const parent = Math.floor((agent - 1) / this.#fanOut);
    const isChild = parent === this.#self;
    if (agent === this.#self || (isChild && this.#addresses.has(agent))) return "duplicate";
    this.#addresses.set(agent, address);
    for (const waiting of this.#waiting.get(agent) ?? []) redirect(waiting, address);
    this.#waiting.delete(agent);
    if (isChild) return "child";
    const known = this.#addresses.get(parent);
    if (known !== undefined) redirect(channel, known);
    else this.#waiting.set(parent, [...(this.#waiting.get(parent) ?? []), channel]);
    return "redirected";
  }

  /** A child is gone. */
  forget(agent: number): void {
    this.#addresses.delete(agent);
  }
}

function redirect(channel: Channel, address: string): void {
  channel.send({ kind: "redirect", address });
  channel.finish();
}
