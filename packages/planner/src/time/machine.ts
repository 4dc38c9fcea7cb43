import { type LinkClass, linkClasses, type Profile } from "./profile.ts";
import { type Task, TaskQueue } from "./task.ts";

/** Where messages pass, one after the other or at once: then they share its bandwidth evenly. */
interface LinkPort {
  readonly bandwidth: number;
  /** One that leaves by the port at which it arrives, at another rank of its class, is there twice. */
  readonly flows: Activity[];
  isChanged: boolean;
}

/** The cores of a node. Messages go first: threads that move them wake rarely and briefly, and schedulers favour such threads. */
interface SimulatedNode {
  /** Ranks that move bytes, and kernels and hosts that run. */
  transferCount: number;
  kernelCount: number;
  /** How fast each message, and each kernel and host, goes on. */
  messageRate: number;
  kernelRate: number;
  readonly activities: Set<Activity>;
  isChanged: boolean;
}

/** A kernel, a host's work, or bytes under way: so much to do, at a rate that others change. */
export class Activity implements Task {
  readonly kind: Task["kind"];
  /** The rank that computes or sends, and of a message the one that receives: by number among those of the machine. */
  readonly rank: number;
  readonly peer: number;
  /** What it is part of. */
  owner: unknown;
  endTime = 0;
  queueIndex = -1;
  /** Seconds alone, or bytes, still to do at the time `updateTime`. */
  remaining = 0;
  rate = 0;
  updateTime = 0;
  isRunning = false;
  isChanged = false;
  /** Of a message: which link, whether it does not yet move, where it passes, and its places there. */
  link: LinkClass = "self";
  isInLatency = false;
  sendPort: LinkPort | undefined = undefined;
  receivePort: LinkPort | undefined = undefined;
  sendPortIndex = -1;
  receivePortIndex = -1;

  // oxlint-disable-next-line max-params -- made by the million
  constructor(kind: Task["kind"], rank: number, peer: number, owner: unknown) {
    this.kind = kind;
    this.rank = rank;
    this.peer = peer;
    this.owner = owner;
  }
}

/** What a message is. The link distinguishes ranks that are of one class, and so have one number. */
export interface Message {
  readonly from: number;
  readonly to: number;
  readonly link: LinkClass;
  readonly bytes: number;
  readonly owner: unknown;
}

/**
 * A machine whose parts are shared: kernels and messages go on at rates that depend on what else runs, and change whenever
 * something begins or ends. Between such moments nothing needs to be looked at. What begins or ends at one moment does so
 * together: rates are worked out once, after all of it, so that no order among ranks makes a difference, not to the last bit.
 */
export class MachineSimulator {
  now = 0;
  readonly #profile: Profile;
  readonly #queue = new TaskQueue<Activity>();
  /** By rank, class and way: ranks may have one in common. */
  readonly #ports: LinkPort[];
  readonly #nodes: SimulatedNode[];
  /** Messages that move, by rank. */
  readonly #activeTransfers: Int32Array;
  /** The kernel of each rank: one at a time. */
  readonly #kernels: Activity[];
  // What changed at this moment, each once.
  readonly #changedActivities: Activity[] = [];
  readonly #changedPorts: LinkPort[] = [];
  readonly #changedNodes: SimulatedNode[] = [];

  /** `ranks`: those of whole nodes, or all there are. */
  constructor(profile: Profile, ranks: number) {
    this.#profile = profile;
    const nodes = Math.ceil(ranks / profile.ranksPerNode);
    const idleNode = { transferCount: 0, kernelCount: 0, messageRate: 1, kernelRate: 1, isChanged: false };
    this.#nodes = Array.from({ length: nodes }, () => ({ ...idleNode, activities: new Set<Activity>() }));
    this.#ports = createPorts(profile, ranks);
    this.#activeTransfers = new Int32Array(ranks);
    this.#kernels = Array.from({ length: ranks }, (_, rank) => new Activity("compute", rank, rank, undefined));
  }

  /** Runs a kernel that takes `seconds` alone; the rank must not run another. */
  compute(rank: number, seconds: number): void {
    this.#runActivity(this.#kernels[rank]!, seconds);
  }

  /** Keeps a rank's host busy for `seconds`, if it has a core to itself. */
  host(rank: number, seconds: number, owner: unknown): Activity {
    const work = new Activity("host", rank, rank, owner);
    this.#runActivity(work, seconds);
    return work;
  }

  /** Seconds, at full rate, that are left of something under way. */
  remainingSeconds(work: Activity): number {
    return work.isRunning ? Math.max(0, work.remaining - (this.now - work.updateTime) * work.rate) : 0;
  }

  /** Lets something under way end when so many seconds of it would be left. */
  truncate(work: Activity, removedSeconds: number): void {
    this.#advance(work);
    work.remaining = Math.max(0, work.remaining - removedSeconds);
    this.#markActivity(work);
  }

  /** Sends a message: after the latency, its bytes move. */
  send({ from, to, link, bytes, owner }: Message): void {
    const work = new Activity("flow", from, to, owner);
    work.remaining = bytes;
    work.link = link;
    work.sendPort = this.#ports[portIndex(from, link, 0)]!;
    const receivePort = this.#ports[portIndex(to, link, 1)]!;
    // What a rank sends to itself passes a port of both ways once.
    if (receivePort !== work.sendPort || link !== "self") work.receivePort = receivePort;
    work.isInLatency = true;
    work.endTime = this.now + this.#profile.links[link].latency;
    this.#queue.insertOrMove(work);
  }

  /** Lets time pass; the owner gets it back like anything that ends. */
  startTimer(rank: number, endTime: number, owner: unknown): void {
    const work = new Activity("timer", rank, rank, owner);
    work.endTime = endTime;
    this.#queue.insertOrMove(work);
  }

  /** Goes on to when the next kernel, message or timer ends; undefined when nothing is under way. */
  next(): Activity | undefined {
    for (;;) {
      if (this.#queue.first?.endTime !== this.now && this.#updateRates()) continue;
      const work = this.#queue.pop();
      if (!work) return undefined;
      this.now = work.endTime;
      if (work.isInLatency) {
        work.isInLatency = false;
        this.#beginTransfer(work);
        continue;
      }
      if (work.kind === "flow") this.#endTransfer(work);
      else if (work.kind !== "timer") this.#finish(work);
      return work;
    }
  }

  #runActivity(work: Activity, seconds: number): void {
    work.remaining = seconds;
    this.#adjustActivityCount(work.rank, "kernelCount", 1);
    this.#startActivity(work);
  }

  #startActivity(work: Activity): void {
    if (this.#profile.cores) {
      this.#nodeOf(work.rank).activities.add(work);
      this.#nodeOf(work.peer).activities.add(work);
    }
    work.rate = 0;
    work.updateTime = this.now;
    work.isRunning = true;
    this.#markActivity(work);
  }

  /** A kernel ends, or a host is done. */
  #finish(work: Activity): void {
    this.#cancel(work);
    this.#adjustActivityCount(work.rank, "kernelCount", -1);
  }

  /** A message begins to move. */
  #beginTransfer(work: Activity): void {
    const { sendPort, receivePort, rank, peer, link } = work;
    work.sendPortIndex = sendPort!.flows.push(work) - 1;
    if (receivePort) work.receivePortIndex = receivePort.flows.push(work) - 1;
    this.#adjustTransferCount(rank, 1);
    if (link !== "self") this.#adjustTransferCount(peer, 1);
    this.#startActivity(work);
    this.#markPort(sendPort!);
    if (receivePort) this.#markPort(receivePort);
  }

  /** A message ends. */
  #endTransfer(work: Activity): void {
    const { sendPort, receivePort, rank, peer, link } = work;
    removeFlow(sendPort!, work.sendPortIndex);
    if (receivePort) removeFlow(receivePort, work.receivePortIndex);
    this.#cancel(work);
    this.#adjustTransferCount(rank, -1);
    if (link !== "self") this.#adjustTransferCount(peer, -1);
    this.#markPort(sendPort!);
    if (receivePort) this.#markPort(receivePort);
  }

  #cancel(work: Activity): void {
    work.isRunning = false;
    if (!this.#profile.cores) return;
    this.#nodeOf(work.rank).activities.delete(work);
    this.#nodeOf(work.peer).activities.delete(work);
  }

  /** A rank moves bytes or no longer does: this changes the rate of its kernel, and of all on its cores. */
  #adjustTransferCount(rank: number, change: 1 | -1): void {
    const previousCount = this.#activeTransfers[rank]!;
    this.#activeTransfers[rank] = previousCount + change;
    if (previousCount > 0 && previousCount + change > 0) return;
    this.#adjustActivityCount(rank, "transferCount", change);
    const kernel = this.#kernels[rank]!;
    if (kernel.isRunning && this.#profile.communicationTax > 0) this.#markActivity(kernel);
  }

  #adjustActivityCount(rank: number, count: "transferCount" | "kernelCount", change: 1 | -1): void {
    if (!this.#profile.cores) return;
    const node = this.#nodeOf(rank);
    node[count] += change;
    if (node.isChanged) return;
    node.isChanged = true;
    this.#changedNodes.push(node);
  }

  /** What passes at a port has more company than before, or less. */
  #markPort(port: LinkPort): void {
    if (port.isChanged) return;
    port.isChanged = true;
    this.#changedPorts.push(port);
  }

  #markActivity(work: Activity): void {
    if (work.isChanged) return;
    work.isChanged = true;
    this.#changedActivities.push(work);
  }

  /** Works out the rates of all that changed; false if nothing did. */
  #updateRates(): boolean {
    const changedActivities = this.#changedActivities;
    if (changedActivities.length === 0 && this.#changedPorts.length === 0 && this.#changedNodes.length === 0)
      return false;
    for (const node of this.#changedNodes) {
      node.isChanged = false;
      if (this.#updateNodeRates(node)) for (const work of node.activities) this.#updateRate(work);
    }
    for (const port of this.#changedPorts) {
      port.isChanged = false;
      for (const flow of port.flows) this.#updateRate(flow);
    }
    for (const work of changedActivities) {
      work.isChanged = false;
      if (!work.isRunning) continue;
      this.#updateRate(work);
      // Its end may have moved though its rate has not.
      this.#schedule(work);
    }
    this.#changedNodes.length = 0;
    this.#changedPorts.length = 0;
    changedActivities.length = 0;
    return true;
  }

  /** Whether the rates on the cores of a node are others than before. */
  #updateNodeRates(node: SimulatedNode): boolean {
    const { perNode, efficiency = 1 } = this.#profile.cores!;
    const messageRate = Math.min(1, perNode / node.transferCount);
    const kernelRate =
      efficiency * Math.min(1, Math.max(0, perNode - node.transferCount) / Math.max(1, node.kernelCount));
    if (messageRate === node.messageRate && kernelRate === node.kernelRate) return false;
    node.messageRate = messageRate;
    node.kernelRate = kernelRate;
    return true;
  }

  /** Advances the activity to now, and sets its new rate. */
  #updateRate(work: Activity): void {
    const rate = this.#rateOf(work);
    if (rate === work.rate) return;
    this.#advance(work);
    work.rate = rate;
    this.#schedule(work);
  }

  #advance(work: Activity): void {
    work.remaining = Math.max(0, work.remaining - (this.now - work.updateTime) * work.rate);
    work.updateTime = this.now;
  }

  /** A rate of 0 means never, as things stand. */
  #schedule(work: Activity): void {
    work.endTime = work.remaining === 0 ? work.updateTime : work.updateTime + work.remaining / work.rate;
    this.#queue.insertOrMove(work);
  }

  #rateOf({ kind, rank, peer, sendPort, receivePort }: Activity): number {
    const { cores, communicationTax } = this.#profile;
    if (kind === "flow") {
      const rateFactor = cores ? Math.min(this.#nodeOf(rank).messageRate, this.#nodeOf(peer).messageRate) : 1;
      const linkShare = sendPort!.bandwidth / sendPort!.flows.length;
      return (
        rateFactor * (receivePort ? Math.min(linkShare, receivePort.bandwidth / receivePort.flows.length) : linkShare)
      );
    }
    const factor = cores ? this.#nodeOf(rank).kernelRate : 1;
    return kind === "compute" && this.#activeTransfers[rank]! > 0 ? factor * (1 - communicationTax) : factor;
  }

  #nodeOf(rank: number): SimulatedNode {
    return this.#nodes[Math.floor(rank / this.#profile.ranksPerNode)]!;
  }
}

const linkIndex: Readonly<Record<LinkClass, number>> = { self: 0, "intra-node": 1, "inter-node": 2 };

function portIndex(rank: number, kind: LinkClass, direction: 0 | 1): number {
  return (rank * 3 + linkIndex[kind]) * 2 + direction;
}

/** Every rank's ports of each class, out and in: one and the same where ranks, or ways, share it. */
function createPorts({ links, ranksPerNode }: Profile, ranks: number): LinkPort[] {
  const ports: LinkPort[] = [];
  for (const kind of linkClasses) {
    const { bandwidth, sharedBy, duplex } = links[kind];
    const createPort = (): LinkPort => ({ bandwidth, flows: [], isChanged: false });
    for (let rank = 0; rank < ranks; rank++) {
      const sharedRank = rank - ((rank % ranksPerNode) % sharedBy);
      const out = sharedRank === rank ? createPort() : ports[portIndex(sharedRank, kind, 0)]!;
      const inPort = sharedRank === rank ? (duplex ? createPort() : out) : ports[portIndex(sharedRank, kind, 1)]!;
      ports[portIndex(rank, kind, 0)] = out;
      ports[portIndex(rank, kind, 1)] = inPort;
    }
  }
  return ports;
}

/** Takes a message out of a port: the last one there takes its place. */
function removeFlow({ flows }: LinkPort, index: number): void {
  const end = flows.length - 1;
  const last = flows.pop()!;
  if (index === end) return;
  flows[index] = last;
  if (last.sendPort?.flows === flows && last.sendPortIndex === end) last.sendPortIndex = index;
  else last.receivePortIndex = index;
}
