import type { Device } from "../device.ts";
import { OptionError } from "../errors.ts";
import type { Tensor } from "../tensor.ts";
import { CheckedGroup, type CollectiveCall } from "./checked-group.ts";
import type { Collectives, ConnectOptions, ProcessGroup, Traffic, Work } from "./process-group.ts";

/**
 * Returns collectives of one rank, which programs without a launcher use. All operations are copies on the device's
 * compute stream, so that code written for many ranks runs unchanged. Nothing is counted as sent.
 *
 * @example
 * ```ts
 * import { init, singleRankGroup } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), collectives: singleRankGroup(), rank: 0, worldSize: 1 });
 * ctx.world.size; // => 1
 * ```
 */
export function singleRankGroup(): Collectives {
  return {
    name: "single-rank",
    async connect({ device, size, rank }: ConnectOptions) {
      if (size === 1 && rank === 0) return new SingleRankGroup("world", device);
      throw new OptionError({
        where: "singleRankGroup",
        expected: "rank 0 of 1",
        received: `rank ${rank} of ${size}`,
        remedy: "use collectives that connect several ranks, such as local()",
      });
    },
  };
}

const completedWork: Work = { wait() {} };

class SingleRankGroup extends CheckedGroup {
  readonly name: string;
  readonly device: Device;
  readonly rank = 0;
  readonly ranks: readonly number[] = [0];
  /** Operations of a single rank wait for no other rank. */
  readonly timeout = Infinity;
  #closed = false;

  constructor(name: string, device: Device) {
    super();
    this.name = name;
    this.device = device;
  }

  protected get isClosed(): boolean {
    return this.#closed;
  }

  /**
   * Copies input to output. With a single rank, gathers, scatters and exchanges are copies, and reductions have no
   * effect.
   */
  protected post({ out, input, transfers = [] }: CollectiveCall): Work {
    if (out && input) this.#copy(out, input);
    const sends = transfers.filter((transfer) => "to" in transfer);
    const receives = transfers.filter((transfer) => "from" in transfer);
    for (const [i, { tensor }] of receives.entries()) this.#copy(tensor, sends[i]!.tensor);
    return completedWork;
  }

  protected record(): void {}

  async split(color: number, name: string = `${this.name}/${color}`): Promise<ProcessGroup> {
    this.checkSplit(color, name);
    return new SingleRankGroup(name, this.device);
  }

  traffic(): Traffic {
    return { bytesSent: 0, bytesReceived: 0, messagesSent: 0 };
  }

  startTrace(): void {
    this.checkOpen("startTrace");
  }

  async stopTrace(): Promise<[]> {
    this.checkOpen("stopTrace");
    return [];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
  }

  #copy(out: Tensor, input: Tensor): void {
    if (out.storage === input.storage && out.offset === input.offset) return;
    using flatInput = input.view({ shape: [input.size], strides: [1] });
    using flatOutput = out.view({ shape: [out.size], strides: [1] });
    this.device.kernels.copy(flatOutput, flatInput);
  }
}
