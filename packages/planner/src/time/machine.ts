import { type Link, type LinkClass, linkClass, type Profile } from "./profile.ts";
import { type Task, TaskQueue } from "./task.ts";

/** Where messages pass, one after the other or at once: then they share its bandwidth evenly. */
interface Port {
  readonly bandwidth: number;
  readonly flows: Work[];
}

/** The cores of a node. */
interface Node {
  /** Kernels that run, and ranks that move bytes. */
  demand: number;
  factor: number;
  readonly works: Set<Work>;
}

/** A kernel, or bytes under way, that is so much work and goes on at a rate that others change. */
export interface Work extends Task {
  /** The rank that computes or sends, and of a message the one that receives. */
  readonly rank: number;
  readonly peer: number;
  /** Seconds alone, or bytes, still to do at the time `since`. */
  remaining: number;
  rate: number;
  since: number;
  /** Of a message: where it passes, and its places there. */
  ports: readonly Port[];
  readonly places: [number, number];
  /** Not yet moving. */
  latent: boolean;
  /** What it is part of. */
  readonly owner: unknown;
}

/** What a message is. */
export interface Message {
  readonly from: number;
  readonly to: number;
  readonly bytes: number;
  readonly owner: unknown;
}

/**
 * A machine whose parts are shared: kernels and messages go on at rates that depend on what else runs, and change whenever
 * something begins or ends. Between such moments nothing needs to be looked at.
 */
export class Machine {
  now = 0;
  readonly #profile: Profile;
  readonly #queue = new TaskQueue<Work>();
  readonly #ports = new Map<number, Port>();
  readonly #nodes: Node[];
  /** Messages under way by rank, and the kernel that runs there. */
  readonly #moving: Int32Array;
  readonly #kernels: (Work | undefined)[];

  constructor(profile: Profile, ranks: number) {
    this.#profile = profile;
    const nodes = Math.ceil(ranks / profile.ranksPerNode);
    this.#nodes = Array.from({ length: nodes }, () => ({ demand: 0, factor: 1, works: new Set<Work>() }));
    this.#moving = new Int32Array(ranks);
    this.#kernels = new Array<Work | undefined>(ranks).fill(undefined);
  }

  /** Runs a kernel that takes `seconds` alone. */
  compute(rank: number, seconds: number, owner: unknown): void {
    const work = this.#work({ kind: "compute", rank, peer: rank, remaining: seconds, owner });
    this.#kernels[rank] = work;
    this.#demand(rank, 1);
    this.#enter(work);
  }

  /** Sends a message: after the latency, its bytes move. */
  send({ from, to, bytes, owner }: Message): void {
    const kind = linkClass(this.#profile, from, to);
    const link = this.#profile.links[kind];
    const work = this.#work({ kind: "flow", rank: from, peer: to, remaining: bytes, owner });
    const out = this.#port(kind, link, from, true);
    const into = this.#port(kind, link, to, false);
    work.ports = out === into ? [out] : [out, into];
    this.#delay(work, link.latency);
  }

  /** Lets time pass; the owner hears of it like of any end. */
  timer(rank: number, until: number, owner: unknown): void {
    const work = this.#work({ kind: "timer", rank, peer: rank, remaining: 0, owner });
    work.at = until;
    this.#queue.set(work);
  }

  /** Goes on to when the next kernel, message or timer ends; undefined when nothing is under way. */
  next(): Work | undefined {
    for (;;) {
      const work = this.#queue.pop();
      if (!work) return undefined;
      this.now = work.at;
      if (work.latent) {
        work.latent = false;
        this.#move(work);
        continue;
      }
      if (work.kind === "compute") this.#leave(work);
      if (work.kind === "flow") this.#arrive(work);
      return work;
    }
  }

  #work(parts: Pick<Work, "kind" | "rank" | "peer" | "remaining" | "owner">): Work {
    return { ...parts, at: 0, place: -1, rate: 0, since: this.now, ports: [], places: [-1, -1], latent: false };
  }

  #delay(work: Work, seconds: number): void {
    work.latent = true;
    work.at = this.now + seconds;
    this.#queue.set(work);
  }

  #enter(work: Work): void {
    if (this.#profile.cores) {
      this.#nodeOf(work.rank).works.add(work);
      this.#nodeOf(work.peer).works.add(work);
    }
    work.since = this.now;
    this.#rerate(work);
  }

  /** A kernel ends. */
  #leave(work: Work): void {
    this.#kernels[work.rank] = undefined;
    this.#forget(work);
    this.#demand(work.rank, -1);
  }

  /** A message begins to move. */
  #move(work: Work): void {
    for (const [i, port] of work.ports.entries()) work.places[i as 0 | 1] = port.flows.push(work) - 1;
    for (const rank of new Set([work.rank, work.peer])) this.#moves(rank, 1);
    this.#enter(work);
    for (const port of work.ports) for (const other of port.flows) if (other !== work) this.#rerate(other);
  }

  /** A message ends. */
  #arrive(work: Work): void {
    for (const [i, { flows }] of work.ports.entries()) {
      const place = work.places[i as 0 | 1];
      const last = flows.pop()!;
      if (last === work) continue;
      flows[place] = last;
      last.places[last.ports.findIndex((port) => port.flows === flows) as 0 | 1] = place;
    }
    this.#forget(work);
    for (const rank of new Set([work.rank, work.peer])) this.#moves(rank, -1);
    for (const port of work.ports) for (const other of port.flows) this.#rerate(other);
  }

  #forget(work: Work): void {
    if (!this.#profile.cores) return;
    this.#nodeOf(work.rank).works.delete(work);
    this.#nodeOf(work.peer).works.delete(work);
  }

  /** A rank moves bytes or no longer does: its kernel feels it, and so do all on its cores. */
  #moves(rank: number, change: 1 | -1): void {
    const before = this.#moving[rank]! > 0;
    this.#moving[rank]! += change;
    const after = this.#moving[rank]! > 0;
    if (before === after) return;
    this.#demand(rank, change);
    const kernel = this.#kernels[rank];
    if (kernel && this.#profile.communicationTax > 0) this.#rerate(kernel);
  }

  #demand(rank: number, change: number): void {
    const { cores } = this.#profile;
    if (!cores) return;
    const node = this.#nodeOf(rank);
    node.demand += change;
    const factor = Math.min(1, cores.perNode / node.demand);
    if (factor === node.factor) return;
    node.factor = factor;
    for (const work of node.works) this.#rerate(work);
  }

  /** Does what was done so far, and looks how fast it goes on. */
  #rerate(work: Work): void {
    if (work.latent) return;
    const rate = this.#rateOf(work);
    if (rate === work.rate && work.place >= 0) return;
    work.remaining -= (this.now - work.since) * work.rate;
    work.since = this.now;
    work.rate = rate;
    work.at = this.now + Math.max(0, work.remaining) / rate;
    this.#queue.set(work);
  }

  #rateOf(work: Work): number {
    const { cores, communicationTax } = this.#profile;
    const factor = cores ? Math.min(this.#nodeOf(work.rank).factor, this.#nodeOf(work.peer).factor) : 1;
    if (work.kind === "compute") return factor * (this.#moving[work.rank]! > 0 ? 1 - communicationTax : 1);
    let rate = Number.POSITIVE_INFINITY;
    for (const { bandwidth, flows } of work.ports) rate = Math.min(rate, bandwidth / flows.length);
    return rate * factor;
  }

  #nodeOf(rank: number): Node {
    return this.#nodes[Math.floor(rank / this.#profile.ranksPerNode)]!;
  }

  #port(kind: LinkClass, link: Link, rank: number, out: boolean): Port {
    const { ranksPerNode } = this.#profile;
    const node = Math.floor(rank / ranksPerNode);
    const place = Math.floor((rank % ranksPerNode) / link.sharedBy);
    const way = link.duplex && !out ? 1 : 0;
    const key = ((node * ranksPerNode + place) * 3 + kinds[kind]) * 2 + way;
    let port = this.#ports.get(key);
    if (!port) this.#ports.set(key, (port = { bandwidth: link.bandwidth, flows: [] }));
    return port;
  }
}

const kinds: Readonly<Record<LinkClass, number>> = { self: 0, "intra-node": 1, "inter-node": 2 };
