import type { AttentionBackend } from "../../src/attention/backend.ts";
import type { GatherOptions, ProcessGroup, ReduceOp, Transfer, Work } from "../../src/collectives/process-group.ts";
import type { Context } from "../../src/context.ts";
import { init } from "../../src/init.ts";
import type { Coordinate } from "../../src/mesh.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice } from "./device.ts";
import { Scheduler } from "./stream.ts";

/** One rank's part in a collective. */
interface Contribution {
  readonly device: ReferenceDevice;
  readonly label: string;
  readonly input?: Tensor;
  readonly transfers?: readonly Transfer[];
  /** Given every rank's input, once all have contributed. */
  finish?(inputs: readonly (readonly number[])[]): void;
}

/** What the members of one group share. */
class Rendezvous {
  readonly size: number;
  readonly done: boolean[] = [];
  readonly #parts: Contribution[][] = [];
  readonly #children = new Map<string, Rendezvous>();

  constructor(size: number) {
    this.size = size;
  }

  /** The last to contribute does the work of all. */
  contribute(call: number, rank: number, part: Contribution): void {
    const parts = (this.#parts[call] ??= []);
    parts[rank] = part;
    if (Object.keys(parts).length < this.size) return;
    const labels = [...new Set(parts.map(({ label }) => label))];
    if (labels.length > 1) throw new Error(`ranks differ in call ${call}: ${labels.join(", ")}`);
    const inputs = parts.map(({ device, input }) => (input ? device.load(input) : []));
    deliver(parts);
    for (const { finish } of parts) finish?.(inputs);
    this.done[call] = true;
  }

  /** The rendezvous of those that name the same key. */
  splitOff(key: string, size: number): Rendezvous {
    const known = this.#children.get(key) ?? new Rendezvous(size);
    this.#children.set(key, known);
    return known;
  }
}

/** Every message read before any is written. */
function deliver(parts: readonly Contribution[]): void {
  const messages = parts.map(({ device, transfers = [] }) =>
    transfers.flatMap((each) => ("to" in each ? [{ to: each.to, values: device.load(each.tensor) }] : [])),
  );
  for (const [rank, { device, transfers = [] }] of parts.entries()) {
    for (const each of transfers) {
      if (!("from" in each)) continue;
      const first = messages[each.from]!.findIndex(({ to }) => to === rank);
      device.store(each.tensor, messages[each.from]!.splice(first, 1)[0]!.values);
    }
  }
}

const reductions: Readonly<Record<ReduceOp, (values: readonly number[]) => number>> = {
  sum: (values) => values.reduce((a, b) => a + b, 0),
  mean: (values) => values.reduce((a, b) => a + b, 0) / values.length,
  max: (values) => Math.max(...values),
};

function reduced(inputs: readonly (readonly number[])[], op: ReduceOp): number[] {
  return inputs[0]!.map((_, i) => reductions[op](inputs.map((each) => each[i]!)));
}

/** The shape of the whole world, so that members of a part have their ranks. */
class ReferenceGroup implements ProcessGroup {
  readonly name: string;
  readonly rank: number;
  readonly ranks: readonly number[];
  readonly hosts?: readonly number[];
  readonly device: ReferenceDevice;
  readonly #rendezvous: Rendezvous;
  readonly #colors: (color: number, call: number) => Promise<number[]>;
  #calls = 0;
  #splits = 0;
  sent = 0;

  constructor(options: {
    name: string;
    rank: number;
    ranks: readonly number[];
    hosts: readonly number[] | undefined;
    device: ReferenceDevice;
    rendezvous: Rendezvous;
    colors: (color: number, call: number) => Promise<number[]>;
  }) {
    this.name = options.name;
    this.rank = options.rank;
    this.ranks = options.ranks;
    if (options.hosts) this.hosts = options.hosts;
    this.device = options.device;
    this.#rendezvous = options.rendezvous;
    this.#colors = options.colors;
  }

  get size(): number {
    return this.ranks.length;
  }

  #post(part: Omit<Contribution, "device">): Work {
    const call = this.#calls++;
    const held = [part.input, ...(part.transfers ?? []).map(({ tensor }) => tensor)].filter((x) => x !== undefined);
    for (const x of held) {
      x.assertNotDisposed(part.label);
      if (!x.isContiguous) throw new Error(`${part.label}: tensors must be contiguous`);
      x.storage.retain();
    }
    this.device.stream.submit(() => {
      this.#rendezvous.contribute(call, this.rank, { ...part, device: this.device });
      return true;
    });
    // Freed in stream order, so only once this collective is done.
    const wait = () => this.#rendezvous.done[call] === true;
    return {
      wait: () => {
        this.device.stream.submit(wait);
        for (const x of held.splice(0)) x.storage.release();
      },
    };
  }

  sendRecv(transfers: readonly Transfer[]): Work {
    for (const each of transfers) if ("to" in each) this.sent += each.tensor.size;
    return this.#post({ label: "sendRecv", transfers });
  }

  allGather(out: Tensor, input: Tensor, { counts }: GatherOptions = {}): Work {
    if (counts && counts[this.rank] !== input.size)
      throw new Error(`allGather: ${input.size}, not ${counts[this.rank]}`);
    return this.#post({ label: "allGather", input, finish: (inputs) => this.device.store(out, inputs.flat()) });
  }

  reduceScatter(out: Tensor, input: Tensor, op: ReduceOp = "sum"): Work {
    const finish = (inputs: readonly (readonly number[])[]) =>
      this.device.store(out, reduced(inputs, op).slice(this.rank * out.size, (this.rank + 1) * out.size));
    return this.#post({ label: "reduceScatter", input, finish });
  }

  allReduce(x: Tensor, op: ReduceOp = "sum"): Work {
    return this.#post({
      label: `allReduce ${op}`,
      input: x,
      finish: (inputs) => this.device.store(x, reduced(inputs, op)),
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
    const colors = await this.#colors(color, call);
    const members = colors.flatMap((each, rank) => (each === color ? [rank] : []));
    return new ReferenceGroup({
      name,
      rank: members.indexOf(this.rank),
      ranks: members.map((rank) => this.ranks[rank]!),
      hosts: this.hosts && members.map((rank) => this.hosts![rank]!),
      device: this.device,
      rendezvous: this.#rendezvous.splitOff(`${call}:${color}`, members.length),
      colors: () => Promise.reject(new Error("no test splits twice")),
    });
  }

  traffic(): { bytesSent: number; bytesReceived: number; messagesSent: number } {
    return { bytesSent: this.sent * 4, bytesReceived: 0, messagesSent: 0 };
  }

  markStep(): void {}
  startTrace(): void {}

  async stopTrace(): Promise<[]> {
    return [];
  }

  async [Symbol.asyncDispose](): Promise<void> {}
}

/** Every rank's color, once all have named theirs. */
function splitTable(size: number): (rank: number) => (color: number, call: number) => Promise<number[]> {
  const votes: { colors: number[]; count: number; resolve(): void; all: Promise<void> }[] = [];
  return (rank) => async (color, call) => {
    if (!votes[call]) {
      let resolve = () => {};
      const all = new Promise<void>((done) => (resolve = done));
      votes[call] = { colors: [], count: 0, resolve, all };
    }
    const vote = votes[call];
    vote.colors[rank] = color;
    if (++vote.count === size) vote.resolve();
    await vote.all;
    return vote.colors;
  };
}

export interface WorldOptions {
  readonly mesh?: Coordinate;
  readonly spSize?: number;
  readonly backends?: readonly AttentionBackend[];
  readonly double?: boolean;
  readonly seed?: number;
  /** By rank. */
  readonly hosts?: readonly number[];
}

/** Contexts of `size` ranks on reference devices, driven by one thread. */
export function referenceWorld(
  size: number,
  { double = false, hosts, ...options }: WorldOptions = {},
): Promise<Context[]> {
  const scheduler = new Scheduler();
  const rendezvous = new Rendezvous(size);
  const collectColors = splitTable(size);
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
        colors: collectColors(rank),
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
