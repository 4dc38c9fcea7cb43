import type {
  AllToAllOptions,
  CallOptions,
  GatherOptions,
  ProcessGroup,
  ReduceOp,
  Traffic,
  Transfer,
  Work,
} from "../../collectives.ts";
import type { Device } from "../../device.ts";
import { ClosedError, OptionError } from "../../errors.ts";
import type { Tensor } from "../../tensor.ts";
import type { TraceEvent } from "../../trace.ts";
import type { Call } from "./call.ts";
import {
  type Caller,
  checkOperand,
  checkRank,
  checkReduceOp,
  checkSameDType,
  checkSelfTransfers,
  checkSize,
  sharesOf,
} from "./checks.ts";
import type { NativeRank } from "./rank.ts";

/** Where a group stands among those of its rank. */
export interface Place {
  readonly name: string;
  /** Its number in native code; 0 is the world, whose closing closes the rank. */
  readonly index: number;
  readonly rank: number;
  readonly ranks: readonly number[];
}

/** A group of ranks whose operations native code carries out: checks here, before anything is posted, everything else there. */
export class NativeGroup implements ProcessGroup {
  readonly name: string;
  readonly rank: number;
  readonly ranks: readonly number[];
  readonly #self: NativeRank;
  readonly #index: number;
  #closed = false;

  constructor(self: NativeRank, { name, index, rank, ranks }: Place) {
    this.#self = self;
    this.#index = index;
    this.name = name;
    this.rank = rank;
    this.ranks = ranks;
  }

  /** The group of all ranks, for the one that has just joined. */
  static world(self: NativeRank, { rank, size }: { readonly rank: number; readonly size: number }): NativeGroup {
    return new NativeGroup(self, { name: "world", index: 0, rank, ranks: Array.from({ length: size }, (_, i) => i) });
  }

  get size(): number {
    return this.ranks.length;
  }

  get device(): Device {
    return this.#self.device;
  }

  sendRecv(transfers: readonly Transfer[], options?: CallOptions): Work {
    const caller = this.#caller("sendRecv", options);
    for (const transfer of transfers) {
      checkRank(caller, "to" in transfer ? transfer.to : transfer.from);
      checkOperand(caller, transfer.tensor);
    }
    checkSelfTransfers(caller, this.rank, transfers);
    return this.#post({ op: "sendRecv", transfers }, options);
  }

  allGather(out: Tensor, input: Tensor, options?: GatherOptions): Work {
    const caller = this.#operands("allGather", options, out, input);
    const send = sharesOf(caller, out.size, options?.counts);
    checkSize(caller, "out", out, sum(send));
    checkSize(caller, "input", input, send[this.rank]!);
    return this.#post({ op: "allGather", out, input, send, ragged: !!options?.counts }, options);
  }

  reduceScatter(out: Tensor, input: Tensor, op: ReduceOp = "sum", options?: GatherOptions): Work {
    const caller = this.#operands("reduceScatter", options, out, input);
    checkReduceOp(caller, op);
    const send = sharesOf(caller, input.size, options?.counts);
    checkSize(caller, "input", input, sum(send));
    checkSize(caller, "out", out, send[this.rank]!);
    return this.#post({ op: "reduceScatter", out, input, send, reduce: op, ragged: !!options?.counts }, options);
  }

  allReduce(x: Tensor, op: ReduceOp = "sum", options?: CallOptions): Work {
    const caller = this.#operands("allReduce", options, x);
    checkReduceOp(caller, op);
    return this.#post({ op: "allReduce", out: x, reduce: op }, options);
  }

  allToAll(out: Tensor, input: Tensor, options?: AllToAllOptions): Work {
    const caller = this.#operands("allToAll", options, out, input);
    const send = sharesOf(caller, input.size, options?.send);
    const receive = sharesOf(caller, out.size, options?.receive);
    checkSize(caller, "input", input, sum(send));
    checkSize(caller, "out", out, sum(receive));
    if (send[this.rank] !== receive[this.rank]) {
      throw new OptionError({
        where: caller.where,
        expected: `to receive from itself the ${send[this.rank]} elements that it sends to itself`,
        received: String(receive[this.rank]),
      });
    }
    const ragged = !!(options?.send ?? options?.receive);
    return this.#post({ op: "allToAll", out, input, send, receive, ragged }, options);
  }

  broadcast(x: Tensor, root: number, options?: CallOptions): Work {
    checkRank(this.#operands("broadcast", options, x), root);
    return this.#post({ op: "broadcast", out: x, root }, options);
  }

  barrier(options?: CallOptions): Work {
    this.#assertOpen("barrier");
    return this.#post({ op: "barrier" }, options);
  }

  async split(color: number, name: string = `${this.name}/${color}`): Promise<ProcessGroup> {
    const { where } = this.#caller("split");
    if (!Number.isSafeInteger(color)) {
      throw new OptionError({ where, expected: "a color that is a whole number", received: String(color) });
    }
    const place = await this.#self.engine.split(this.#index, color, name);
    return new NativeGroup(this.#self, { name, ...place });
  }

  traffic(): Traffic {
    const [bytesSent, bytesReceived, messagesSent] = this.#self.engine.traffic(this.#index);
    return { bytesSent, bytesReceived, messagesSent };
  }

  startTrace(): void {
    this.#assertOpen("startTrace");
    this.#self.engine.startTrace();
  }

  async stopTrace(): Promise<readonly TraceEvent[]> {
    this.#assertOpen("stopTrace");
    return this.#self.engine.stopTrace();
  }

  /** The world takes its rank along: what was posted is finished first. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
    if (this.#index === 0) await this.#self.close();
  }

  #post(call: Call, options: CallOptions | undefined): Work {
    return this.#self.post(this.#index, call, options?.label ?? "");
  }

  #operands(operation: string, options: CallOptions | undefined, ...tensors: readonly [Tensor, Tensor?]): Caller {
    const caller = this.#caller(operation, options);
    const [out, input] = tensors;
    checkOperand(caller, out);
    if (input) {
      checkOperand(caller, input);
      checkSameDType(caller, out, input);
    }
    return caller;
  }

  #caller(operation: string, options?: CallOptions): Caller {
    this.#assertOpen(operation);
    const who = options?.label === undefined ? "" : `${options.label}, `;
    const where = `${who}rank ${this.ranks[this.rank]}: ${operation} (${this.name})`;
    return { where, device: this.#self.device, size: this.size };
  }

  #assertOpen(operation: string): void {
    if (!this.#closed && !this.#self.isClosed) return;
    throw new ClosedError({
      where: `${operation} (${this.name})`,
      expected: "an open group",
      received: "one that was closed",
      remedy: "finish all communication before the group goes out of scope",
    });
  }
}

function sum(counts: readonly number[]): number {
  return counts.reduce((a, b) => a + b, 0);
}
