import type {
  AllToAllOptions,
  CallOptions,
  Collectives,
  ConnectOptions,
  GatherOptions,
  ProcessGroup,
  ReduceOp,
  Transfer,
  Work,
} from "./collectives.ts";
import type { Device } from "./device.ts";
import { ClosedError, CollectiveMismatchError, OptionError } from "./errors.ts";
import {
  type Caller,
  checkOperand,
  checkReduceOp,
  checkSameDType,
  checkSize,
  sharesOf,
} from "./native/collectives/checks.ts";
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
  sendRecv(transfers: readonly Transfer[], options?: CallOptions): Work {
    const caller = this.#caller("sendRecv", options);
    for (const transfer of transfers) {
      this.#checkPeer(caller, "to" in transfer ? transfer.to : transfer.from);
      checkOperand(caller, transfer.tensor);
    }
    const sent = transfers.filter((transfer) => "to" in transfer);
    const received = transfers.filter((transfer) => "from" in transfer);
    if (sent.length !== received.length) {
      throw new CollectiveMismatchError({
        where: caller.where,
        expected: "as many receives as sends, on a group of one rank",
        received: `${sent.length} sends and ${received.length} receives`,
      });
    }
    const pairs = received.map(({ tensor }, i) => ({ out: tensor, input: sent[i]!.tensor }));
    for (const { out, input } of pairs) checkPair(caller, out, input);
    for (const { out, input } of pairs) this.#copy(out, input);
    return done;
  }

  allGather(out: Tensor, input: Tensor, options?: GatherOptions): Work {
    return this.#whole("allGather", options, { out, input, counts: [options?.counts] });
  }

  // oxlint-disable-next-line max-params -- the contract's
  reduceScatter(out: Tensor, input: Tensor, op: ReduceOp = "sum", options?: GatherOptions): Work {
    checkReduceOp(this.#caller("reduceScatter", options), op);
    return this.#whole("reduceScatter", options, { out, input, counts: [options?.counts] });
  }

  allReduce(x: Tensor, op: ReduceOp = "sum", options?: CallOptions): Work {
    const caller = this.#caller("allReduce", options);
    checkReduceOp(caller, op);
    checkOperand(caller, x);
    return done;
  }

  allToAll(out: Tensor, input: Tensor, options?: AllToAllOptions): Work {
    return this.#whole("allToAll", options, { out, input, counts: [options?.send, options?.receive] });
  }

  broadcast(x: Tensor, root: number, options?: CallOptions): Work {
    const caller = this.#caller("broadcast", options);
    this.#checkPeer(caller, root);
    checkOperand(caller, x);
    return done;
  }

  barrier(options?: CallOptions): Work {
    this.#caller("barrier", options);
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

  /** One rank's share is the whole: what any gathering or scattering comes to. */
  #whole(operation: string, options: CallOptions | undefined, { out, input, counts }: Moved): Work {
    const caller = this.#caller(operation, options);
    checkOperand(caller, out);
    checkOperand(caller, input);
    for (const given of counts) checkSize(caller, "input", input, sharesOf(caller, input.size, given)[0]!);
    checkPair(caller, out, input);
    this.#copy(out, input);
    return done;
  }

  #copy(out: Tensor, input: Tensor): void {
    using from = input.view({ shape: [input.size], strides: [1] });
    using to = out.view({ shape: [out.size], strides: [1] });
    this.device.kernels.copy(to, from);
  }

  #checkPeer({ where }: Caller, peer: number): void {
    if (peer === 0) return;
    throw new OptionError({ where, expected: "rank 0, the only one", received: `rank ${peer}` });
  }

  #caller(operation: string, options?: CallOptions): Caller {
    this.#assertOpen(operation);
    const who = options?.label === undefined ? "" : `${options.label}, `;
    return { where: `${who}${operation} (${this.name})`, device: this.device, size: 1 };
  }

  #assertOpen(where: string): void {
    if (!this.#closed) return;
    throw new ClosedError({ where: `${where} (${this.name})`, expected: "an open group", received: "a closed one" });
  }
}

interface Moved {
  readonly out: Tensor;
  readonly input: Tensor;
  /** Shares, as far as they are given. */
  readonly counts: readonly (readonly number[] | undefined)[];
}

function checkPair(caller: Caller, out: Tensor, input: Tensor): void {
  checkSameDType(caller, out, input);
  checkSize(caller, "out", out, input.size);
}
