import type { AttentionBackend } from "../../src/attention/backend.ts";
import type { GatherOptions, ProcessGroup, ReduceOp, Transfer, Work } from "../../src/collectives/process-group.ts";
import type { Context } from "../../src/context.ts";
import { init } from "../../src/init.ts";
import type { Coordinate } from "../../src/mesh.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice } from "./device.ts";
import { Scheduler } from "./stream.ts";

/** One rank's contribution to a collective. */
interface Contribution {
  readonly device: ReferenceDevice;
  readonly label: string;
  readonly input?: Tensor;
  readonly transfers?: readonly Transfer[];
  /** Called with the inputs of all ranks when all have contributed. */
  finish?(inputs: readonly (readonly number[])[]): void;
}

/** State that the members of a group share. */
class Rendezvous {
  readonly size: number;
  readonly isCallDone: boolean[] = [];
  readonly #contributions: Contribution[][] = [];
  readonly #children = new Map<string, Rendezvous>();

  constructor(size: number) {
    this.size = size;
  }

  /** Adds a contribution. The last rank to contribute performs the collective for all. */
  contribute(call: number, rank: number, contribution: Contribution): void {
    const contributions = (this.#contributions[call] ??= []);
    contributions[rank] = contribution;
    if (Object.keys(contributions).length < this.size) return;
    const labels = [...new Set(contributions.map(({ label }) => label))];
    if (labels.length > 1) throw new Error(`ranks differ in call ${call}: ${labels.join(", ")}`);
    const inputs = contributions.map(({ device, input }) => (input ? device.load(input) : []));
    deliver(contributions);
    for (const { finish } of contributions) finish?.(inputs);
    this.isCallDone[call] = true;
  }

  /** Returns the rendezvous of all members with the same key. */
  getSubgroup(key: string, size: number): Rendezvous {
    const subgroup = this.#children.get(key) ?? new Rendezvous(size);
    this.#children.set(key, subgroup);
    return subgroup;
  }
}

/** Delivers messages. All are read before any is written. */
function deliver(contributions: readonly Contribution[]): void {
  const messages = contributions.map(({ device, transfers = [] }) =>
    transfers.flatMap((each) => ("to" in each ? [{ to: each.to, values: device.load(each.tensor) }] : [])),
  );
  for (const [rank, { device, transfers = [] }] of contributions.entries()) {
    for (const transfer of transfers) {
      if (!("from" in transfer)) continue;
      const messageIndex = messages[transfer.from]!.findIndex(({ to }) => to === rank);
      device.store(transfer.tensor, messages[transfer.from]!.splice(messageIndex, 1)[0]!.values);
    }
  }
}

const reductions: Readonly<Record<ReduceOp, (values: readonly number[]) => number>> = {
  sum: (values) => values.reduce((a, b) => a + b, 0),
  mean: (values) => values.reduce((a, b) => a + b, 0) / values.length,
  max: (values) => Math.max(...values),
};

function reduceInputs(inputs: readonly (readonly number[])[], op: ReduceOp): number[] {
  return inputs[0]!.map((_, i) => reductions[op](inputs.map((each) => each[i]!)));
}

/** A process group on reference devices. */
class ReferenceGroup implements ProcessGroup {
  readonly name: string;
  readonly rank: number;
  readonly ranks: readonly number[];
  readonly hosts?: readonly number[];
  readonly timeout = Infinity;
  readonly device: ReferenceDevice;
  readonly #rendezvous: Rendezvous;
  readonly #exchangeColors: (color: number, call: number) => Promise<number[]>;
  #calls = 0;
  #splits = 0;
  elementsSent = 0;

  constructor(options: {
    name: string;
    rank: number;
    ranks: readonly number[];
    hosts: readonly number[] | undefined;
    device: ReferenceDevice;
    rendezvous: Rendezvous;
    exchangeColors: (color: number, call: number) => Promise<number[]>;
  }) {
    this.name = options.name;
    this.rank = options.rank;
    this.ranks = options.ranks;
    if (options.hosts) this.hosts = options.hosts;
    this.device = options.device;
    this.#rendezvous = options.rendezvous;
    this.#exchangeColors = options.exchangeColors;
  }

  get size(): number {
    return this.ranks.length;
  }

  #post(contribution: Omit<Contribution, "device">): Work {
    const call = this.#calls++;
    const heldTensors = [contribution.input, ...(contribution.transfers ?? []).map(({ tensor }) => tensor)].filter(
      (x) => x !== undefined,
    );
    for (const x of heldTensors) {
      x.assertNotDisposed(contribution.label);
      if (!x.isContiguous) throw new Error(`${contribution.label}: tensors must be contiguous`);
      x.storage.retain();
    }
    this.device.stream.submit(() => {
      this.#rendezvous.contribute(call, this.rank, { ...contribution, device: this.device });
      return true;
    });
    // Memory is freed in stream order, and therefore after this collective is done.
    const isComplete = () => this.#rendezvous.isCallDone[call] === true;
    return {
      wait: () => {
        this.device.stream.submit(isComplete);
        for (const x of heldTensors.splice(0)) x.storage.release();
      },
    };
  }

  sendRecv(transfers: readonly Transfer[]): Work {
    for (const transfer of transfers) if ("to" in transfer) this.elementsSent += transfer.tensor.size;
    return this.#post({ label: "sendRecv", transfers });
  }

  allGather(out: Tensor, input: Tensor, { counts }: GatherOptions = {}): Work {
    if (counts && counts[this.rank] !== input.size)
      throw new Error(`allGather: ${input.size}, not ${counts[this.rank]}`);
    return this.#post({ label: "allGather", input, finish: (inputs) => this.device.store(out, inputs.flat()) });
  }

  reduceScatter(out: Tensor, input: Tensor, op: ReduceOp = "sum"): Work {
    const finish = (inputs: readonly (readonly number[])[]) =>
      this.device.store(out, reduceInputs(inputs, op).slice(this.rank * out.size, (this.rank + 1) * out.size));
    return this.#post({ label: "reduceScatter", input, finish });
  }

  allReduce(x: Tensor, op: ReduceOp = "sum"): Work {
    return this.#post({
      label: `allReduce ${op}`,
      input: x,
      finish: (inputs) => this.device.store(x, reduceInputs(inputs, op)),
    });
  }

  allToAll(): Work {
    throw new Error("no test needs allToAll");
  }

  broadcast(x: Tensor, root: number): Work {
    return this.#post({
      label: `broadcast ${root}`,
      input: x,
      finish: (inputs) => this.device.store(x, inputs[root]!),
    });
  }

  groupCast(): Work {
    throw new Error("no test needs groupCast");
  }

  groupReduce(): Work {
    throw new Error("no test needs groupReduce");
  }

  barrier(): Work {
    return this.#post({ label: "barrier" });
  }

  recordCall(): void {}

  async split(color: number, name = "split"): Promise<ProcessGroup> {
    const call = this.#splits++;
    const colors = await this.#exchangeColors(color, call);
    const members = colors.flatMap((each, rank) => (each === color ? [rank] : []));
    return new ReferenceGroup({
      name,
      rank: members.indexOf(this.rank),
      ranks: members.map((rank) => this.ranks[rank]!),
      hosts: this.hosts && members.map((rank) => this.hosts![rank]!),
      device: this.device,
      rendezvous: this.#rendezvous.getSubgroup(`${call}:${color}`, members.length),
      exchangeColors: () => Promise.reject(new Error("no test splits twice")),
    });
  }

  traffic(): { bytesSent: number; bytesReceived: number; messagesSent: number } {
    return { bytesSent: this.elementsSent * 4, bytesReceived: 0, messagesSent: 0 };
  }

  markStep(): void {}
  startTrace(): void {}

  async stopTrace(): Promise<[]> {
    return [];
  }

  async [Symbol.asyncDispose](): Promise<void> {}
}

/** Returns a function that resolves to the colors of all ranks when all have passed theirs. */
function createColorExchange(size: number): (rank: number) => (color: number, call: number) => Promise<number[]> {
  const colorVotes: { colors: number[]; count: number; resolve(): void; allVoted: Promise<void> }[] = [];
  return (rank) => async (color, call) => {
    if (!colorVotes[call]) {
      let resolve = () => {};
      const allVoted = new Promise<void>((resolveVote) => (resolve = resolveVote));
      colorVotes[call] = { colors: [], count: 0, resolve, allVoted };
    }
    const vote = colorVotes[call];
    vote.colors[rank] = color;
    if (++vote.count === size) vote.resolve();
    await vote.allVoted;
    return vote.colors;
  };
}

export interface WorldOptions {
  readonly mesh?: Coordinate;
  readonly spSize?: number;
  readonly backends?: readonly AttentionBackend[];
  readonly double?: boolean;
  readonly seed?: number;
  /** Host of each rank. */
  readonly hosts?: readonly number[];
}

/** Creates contexts of `size` ranks on reference devices, driven by one thread. */
export function referenceWorld(
  size: number,
  { double = false, hosts, ...options }: WorldOptions = {},
): Promise<Context[]> {
  const scheduler = new Scheduler();
  const rendezvous = new Rendezvous(size);
  const createExchange = createColorExchange(size);
  const ranks = Array.from({ length: size }, (_, rank) => rank);
  return Promise.all(
    ranks.map((rank) => {
      const device = new ReferenceDevice({ double, scheduler, index: rank });
      const world = new ReferenceGroup({
        name: "world",
        rank,
        ranks,
        hosts,
        device,
        rendezvous,
        exchangeColors: createExchange(rank),
      });
      return init({
        device,
        rank,
        worldSize: size,
        collectives: { name: "reference", connect: async () => world },
        ...options,
      });
    }),
  );
}
