import type { Collectives, ConnectOptions, ProcessGroup, Transfer, Work } from "./collectives.ts";
import type { Device } from "./device.ts";
import { ClosedError, CollectiveMismatchError, OptionError, ShapeError } from "./errors.ts";
import { formatShape } from "./shape.ts";
import type { Tensor } from "./tensor.ts";

/**
 * Collectives of one rank: what a program without a launcher runs on. Everything is a copy on the device's own stream,
 * so that code written for many ranks runs unchanged; nothing is counted as sent.
 *
 * @example
 * ```ts
 * import { init, solo } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), collectives: solo(), rank: 0, worldSize: 1 });
 * ctx.world.size; // => 1
 * ```
 */
export function solo(): Collectives {
  return {
    name: "solo",
    async connect({ device, size, rank }: ConnectOptions) {
      if (size === 1 && rank === 0) return new SoloGroup("world", device);
      throw new OptionError({
        where: "solo",
        expected: "rank 0 of 1",
        received: `rank ${rank} of ${size}`,
        remedy: 'connect more ranks with local() of "@mosaic/collectives-local"',
      });
    },
  };
}

const done: Work = { wait() {} };

class SoloGroup implements ProcessGroup {
  readonly name: string;
  readonly device: Device;
  readonly rank = 0;
  readonly size = 1;
  readonly ranks: readonly number[] = [0];
  #closed = false;

  constructor(name: string, device: Device) {
    this.name = name;
    this.device = device;
  }

  /** Pairs sends with receives in order. */
  sendRecv(transfers: readonly Transfer[]): Work {
    const sent = transfers.filter((transfer) => "to" in transfer);
    const received = transfers.filter((transfer) => "from" in transfer);
    for (const transfer of transfers) this.#checkPeer("to" in transfer ? transfer.to : transfer.from);
    if (sent.length !== received.length) {
      throw new CollectiveMismatchError({
        where: `${this.name}: sendRecv`,
        expected: "as many receives as sends, on a group of one rank",
        received: `${sent.length} sends and ${received.length} receives`,
      });
    }
    for (const [i, { tensor }] of received.entries()) this.#copy("sendRecv", tensor, sent[i]!.tensor);
    return done;
  }

  allGather(out: Tensor, input: Tensor): Work {
    return this.#copy("allGather", out, input);
  }

  reduceScatter(out: Tensor, input: Tensor): Work {
    return this.#copy("reduceScatter", out, input);
  }

  allReduce(x: Tensor): Work {
    return this.#inPlace("allReduce", x);
  }

  allToAll(out: Tensor, input: Tensor): Work {
    return this.#copy("allToAll", out, input);
  }

  broadcast(x: Tensor, root: number): Work {
    this.#checkPeer(root);
    return this.#inPlace("broadcast", x);
  }

  barrier(): Work {
    this.#assertOpen("barrier");
    return done;
  }

  async split(_color: number, name: string = this.name): Promise<ProcessGroup> {
    this.#assertOpen("split");
    return new SoloGroup(name, this.device);
  }

  traffic(): { bytesSent: number; bytesReceived: number; messagesSent: number } {
    return { bytesSent: 0, bytesReceived: 0, messagesSent: 0 };
  }

  startTrace(): void {
    this.#assertOpen("startTrace");
  }

  async stopTrace(): Promise<[]> {
    return [];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
  }

  #inPlace(name: string, x: Tensor): Work {
    this.#assertOpen(name);
    x.assertUsable(name);
    return done;
  }

  #copy(name: string, out: Tensor, input: Tensor): Work {
    this.#assertOpen(name);
    out.assertUsable(name);
    input.assertUsable(name);
    if (out.size !== input.size || out.dtype !== input.dtype) {
      throw new ShapeError({
        where: `${this.name}: ${name}`,
        expected: `${out.size} elements of ${out.dtype}`,
        received: `${formatShape(input.shape)} ${input.dtype}`,
      });
    }
    using flat = input.reshape([-1]).detach();
    using target = out.view({ shape: flat.shape, strides: [1] });
    this.device.kernels.copy(target, flat);
    return done;
  }

  #checkPeer(peer: number): void {
    if (peer === 0) return;
    throw new OptionError({ where: this.name, expected: "rank 0, the only one", received: `rank ${peer}` });
  }

  #assertOpen(where: string): void {
    if (!this.#closed) return;
    throw new ClosedError({ where: `${this.name}: ${where}`, expected: "an open group", received: "a closed one" });
  }
}
