import { type LinkClass, linkClasses, type Profile } from "./profile.ts";
import { type Task, TaskQueue } from "./task.ts";

/** A port that messages pass. Concurrent messages share its bandwidth evenly. */
interface LinkPort {
  readonly bandwidth: number;
  /** A message between ranks of one class that leaves and arrives through this port is listed twice. */
  readonly flows: Activity[];
  isChanged: boolean;
}

/**
 * The cores of a node. Messages have priority, because threads that move them wake rarely and briefly, and schedulers
 * favor such threads.
 */
interface SimulatedNode {
  /** Number of ranks that move bytes, and of running kernels and hosts. */
  transferringRankCount: number;
  kernelAndHostCount: number;
  /** Rate of each message, and of each kernel and host. */
  messageRate: number;
  kernelAndHostRate: number;
  readonly activities: Set<Activity>;
  isChanged: boolean;
}

/** A kernel, a host's work, or bytes in transfer: an amount of work, at a rate that depends on other activities. */
export class Activity implements Task {
  readonly kind: Task["kind"];
  /** Index of the rank that computes or sends; `peer` is that of the rank that receives a message. */
  readonly rank: number;
  readonly peer: number;
  /** The object that it belongs to. */
  owner: unknown;
  endTime = 0;
  queueIndex = -1;
  /** Remaining work at the time `updateTime`: seconds when alone, or bytes. */
  remainingWork = 0;
  rate = 0;
  updateTime = 0;
  isRunning = false;
  isChanged = false;
  /** For a message: its link, whether it is still in its latency, its ports, and its indices there. */
  link: LinkClass = "self";
  isInLatency = false;
  sendPort: LinkPort | undefined = undefined;
  receivePort: LinkPort | undefined = undefined;
  sendPortIndex = -1;
  receivePortIndex = -1;

  // oxlint-disable-next-line max-params -- created by the million
  constructor(kind: Task["kind"], rank: number, peer: number, owner: unknown) {
    this.kind = kind;
    this.rank = rank;
    this.peer = peer;
    this.owner = owner;
  }
}

/** A message to send. Its link cannot be derived from the indices, because ranks of one class have the same index. */
export interface Message {
  readonly senderIndex: number;
  readonly receiverIndex: number;
  readonly link: LinkClass;
  readonly bytes: number;
  readonly owner: unknown;
}

/**
 * A machine with shared parts. Kernels and messages advance at rates that depend on what else runs. Rates change only
 * when something begins or ends, so nothing is computed between such times. All changes at one time are applied
 * together, and rates are computed once after them, so that the order of ranks makes no difference, not even in the
 * last bit.
 */
export class MachineSimulator {
  now = 0;
  readonly #profile: Profile;
  readonly #queue = new TaskQueue<Activity>();
  /** By rank, link class and direction. Ranks may share a port. */
  readonly #ports: LinkPort[];
  readonly #nodes: SimulatedNode[];
  /** Number of messages in transfer, by rank. */
  readonly #activeTransfers: Int32Array;
  /** The kernel of each rank, which runs one at a time. */
  readonly #kernels: Activity[];
  // Everything that changed at the current time, each once.
  readonly #changedActivities: Activity[] = [];
  readonly #changedPorts: LinkPort[] = [];
  readonly #changedNodes: SimulatedNode[] = [];

  /** `ranks` is the number of ranks of whole nodes, or of all ranks. */
  constructor(profile: Profile, ranks: number) {
    this.#profile = profile;
    const numNodes = Math.ceil(ranks / profile.ranksPerNode);
    const idleNode = {
      transferringRankCount: 0,
      kernelAndHostCount: 0,
      messageRate: 1,
      kernelAndHostRate: 1,
      isChanged: false,
    };
    this.#nodes = Array.from({ length: numNodes }, () => ({ ...idleNode, activities: new Set<Activity>() }));
    this.#ports = createPorts(profile, ranks);
    this.#activeTransfers = new Int32Array(ranks);
    this.#kernels = Array.from({ length: ranks }, (_, rank) => new Activity("compute", rank, rank, undefined));
  }

  /** Runs a kernel that takes `seconds` alone; the rank must not run another. */
  startKernel(rank: number, seconds: number): void {
    this.#runActivity(this.#kernels[rank]!, seconds);
  }

  /** Occupies a rank's host for `seconds`, if it has a core to itself. */
  startHostWork(rank: number, seconds: number, owner: unknown): Activity {
    const activity = new Activity("host", rank, rank, owner);
    this.#runActivity(activity, seconds);
    return activity;
  }

  /** Returns the remaining seconds of an activity, at full rate. */
  remainingSeconds(activity: Activity): number {
    return activity.isRunning
      ? Math.max(0, activity.remainingWork - (this.now - activity.updateTime) * activity.rate)
      : 0;
  }

  /** Shortens an activity by `removedSeconds`, at full rate. */
  truncate(activity: Activity, removedSeconds: number): void {
    this.#advance(activity);
    activity.remainingWork = Math.max(0, activity.remainingWork - removedSeconds);
    this.#markActivity(activity);
  }

  /** Sends a message. Its bytes are transferred after the latency. */
  send({ senderIndex: from, receiverIndex: to, link, bytes, owner }: Message): void {
    const activity = new Activity("flow", from, to, owner);
    activity.remainingWork = bytes;
    activity.link = link;
    activity.sendPort = this.#ports[portIndex(from, link, 0)]!;
    const receivePort = this.#ports[portIndex(to, link, 1)]!;
    // A message from a rank to itself uses a port of both directions once.
    if (receivePort !== activity.sendPort || link !== "self") activity.receivePort = receivePort;
    activity.isInLatency = true;
    activity.endTime = this.now + this.#profile.links[link].latency;
    this.#queue.insertOrMove(activity);
  }

  /** Starts a timer. `next` returns it at its end, with its owner, like other activities. */
  startTimer(rank: number, endTime: number, owner: unknown): void {
    const activity = new Activity("timer", rank, rank, owner);
    activity.endTime = endTime;
    this.#queue.insertOrMove(activity);
  }

  /**
   * Advances to the end of the next kernel, host work, message or timer; returns undefined if nothing is in progress.
   */
  next(): Activity | undefined {
    for (;;) {
      if (this.#queue.first?.endTime !== this.now && this.#updateRates()) continue;
      const activity = this.#queue.pop();
      if (!activity) return undefined;
      this.now = activity.endTime;
      if (activity.isInLatency) {
        activity.isInLatency = false;
        this.#beginTransfer(activity);
        continue;
      }
      if (activity.kind === "flow") this.#endTransfer(activity);
      else if (activity.kind !== "timer") this.#finish(activity);
      return activity;
    }
  }

  #runActivity(activity: Activity, seconds: number): void {
    activity.remainingWork = seconds;
    this.#adjustActivityCount(activity.rank, "kernelAndHostCount", 1);
    this.#startActivity(activity);
  }

  #startActivity(activity: Activity): void {
    if (this.#profile.cores) {
      this.#getNode(activity.rank).activities.add(activity);
      this.#getNode(activity.peer).activities.add(activity);
    }
    activity.rate = 0;
    activity.updateTime = this.now;
    activity.isRunning = true;
    this.#markActivity(activity);
  }

  /** Ends a kernel or a host's work. */
  #finish(activity: Activity): void {
    this.#cancel(activity);
    this.#adjustActivityCount(activity.rank, "kernelAndHostCount", -1);
  }

  /** Starts the transfer of a message. */
  #beginTransfer(activity: Activity): void {
    const { sendPort, receivePort, rank, peer, link } = activity;
    activity.sendPortIndex = sendPort!.flows.push(activity) - 1;
    if (receivePort) activity.receivePortIndex = receivePort.flows.push(activity) - 1;
    this.#adjustTransferCount(rank, 1);
    if (link !== "self") this.#adjustTransferCount(peer, 1);
    this.#startActivity(activity);
    this.#markPort(sendPort!);
    if (receivePort) this.#markPort(receivePort);
  }

  /** Ends the transfer of a message. */
  #endTransfer(activity: Activity): void {
    const { sendPort, receivePort, rank, peer, link } = activity;
    removeFlow(sendPort!, activity.sendPortIndex);
    if (receivePort) removeFlow(receivePort, activity.receivePortIndex);
    this.#cancel(activity);
    this.#adjustTransferCount(rank, -1);
    if (link !== "self") this.#adjustTransferCount(peer, -1);
    this.#markPort(sendPort!);
    if (receivePort) this.#markPort(receivePort);
  }

  #cancel(activity: Activity): void {
    activity.isRunning = false;
    if (!this.#profile.cores) return;
    this.#getNode(activity.rank).activities.delete(activity);
    this.#getNode(activity.peer).activities.delete(activity);
  }

  /**
   * Updates the number of a rank's transfers. Its first and its last one change the rate of its kernel, and of
   * everything on its cores.
   */
  #adjustTransferCount(rank: number, change: 1 | -1): void {
    const previousCount = this.#activeTransfers[rank]!;
    this.#activeTransfers[rank] = previousCount + change;
    if (previousCount > 0 && previousCount + change > 0) return;
    this.#adjustActivityCount(rank, "transferringRankCount", change);
    const kernel = this.#kernels[rank]!;
    if (kernel.isRunning && this.#profile.communicationTax > 0) this.#markActivity(kernel);
  }

  #adjustActivityCount(rank: number, counter: "transferringRankCount" | "kernelAndHostCount", change: 1 | -1): void {
    if (!this.#profile.cores) return;
    const node = this.#getNode(rank);
    node[counter] += change;
    if (node.isChanged) return;
    node.isChanged = true;
    this.#changedNodes.push(node);
  }

  /** Marks a port whose number of messages has changed. */
  #markPort(port: LinkPort): void {
    if (port.isChanged) return;
    port.isChanged = true;
    this.#changedPorts.push(port);
  }

  #markActivity(activity: Activity): void {
    if (activity.isChanged) return;
    activity.isChanged = true;
    this.#changedActivities.push(activity);
  }

  /** Computes the rates of everything that changed. Returns false if nothing did. */
  #updateRates(): boolean {
    const changedActivities = this.#changedActivities;
    if (changedActivities.length === 0 && this.#changedPorts.length === 0 && this.#changedNodes.length === 0)
      return false;
    for (const node of this.#changedNodes) {
      node.isChanged = false;
      if (this.#updateNodeRates(node)) for (const activity of node.activities) this.#updateRate(activity);
    }
    for (const port of this.#changedPorts) {
      port.isChanged = false;
      for (const flow of port.flows) this.#updateRate(flow);
    }
    for (const activity of changedActivities) {
      activity.isChanged = false;
      if (!activity.isRunning) continue;
      this.#updateRate(activity);
      // Its end time may have changed even if its rate has not.
      this.#schedule(activity);
    }
    this.#changedNodes.length = 0;
    this.#changedPorts.length = 0;
    changedActivities.length = 0;
    return true;
  }

  /** Updates the rates on the cores of a node. Returns whether they changed. */
  #updateNodeRates(node: SimulatedNode): boolean {
    const { perNode: coresPerNode, efficiency = 1 } = this.#profile.cores!;
    const messageRate = Math.min(1, coresPerNode / node.transferringRankCount);
    const kernelAndHostRate =
      efficiency *
      Math.min(1, Math.max(0, coresPerNode - node.transferringRankCount) / Math.max(1, node.kernelAndHostCount));
    if (messageRate === node.messageRate && kernelAndHostRate === node.kernelAndHostRate) return false;
    node.messageRate = messageRate;
    node.kernelAndHostRate = kernelAndHostRate;
    return true;
  }

  /** Advances the activity to now, and sets its new rate. */
  #updateRate(activity: Activity): void {
    const rate = this.#computeRate(activity);
    if (rate === activity.rate) return;
    this.#advance(activity);
    activity.rate = rate;
    this.#schedule(activity);
  }

  #advance(activity: Activity): void {
    activity.remainingWork = Math.max(0, activity.remainingWork - (this.now - activity.updateTime) * activity.rate);
    activity.updateTime = this.now;
  }

  /** Schedules the end of an activity. With a rate of 0, it never ends. */
  #schedule(activity: Activity): void {
    activity.endTime =
      activity.remainingWork === 0 ? activity.updateTime : activity.updateTime + activity.remainingWork / activity.rate;
    this.#queue.insertOrMove(activity);
  }

  #computeRate({ kind, rank, peer, sendPort, receivePort }: Activity): number {
    const { cores, communicationTax } = this.#profile;
    if (kind === "flow") {
      const rateFactor = cores ? Math.min(this.#getNode(rank).messageRate, this.#getNode(peer).messageRate) : 1;
      const linkShare = sendPort!.bandwidth / sendPort!.flows.length;
      return (
        rateFactor * (receivePort ? Math.min(linkShare, receivePort.bandwidth / receivePort.flows.length) : linkShare)
      );
    }
    const factor = cores ? this.#getNode(rank).kernelAndHostRate : 1;
    return kind === "compute" && this.#activeTransfers[rank]! > 0 ? factor * (1 - communicationTax) : factor;
  }

  #getNode(rank: number): SimulatedNode {
    return this.#nodes[Math.floor(rank / this.#profile.ranksPerNode)]!;
  }
}

const linkClassIndices: Readonly<Record<LinkClass, number>> = { self: 0, "intra-node": 1, "inter-node": 2 };

function portIndex(rank: number, kind: LinkClass, direction: 0 | 1): number {
  return (rank * 3 + linkClassIndices[kind]) * 2 + direction;
}

/** Creates every rank's ports of each class, in both directions. Ranks, or both directions, may share one. */
function createPorts({ links, ranksPerNode }: Profile, ranks: number): LinkPort[] {
  const ports: LinkPort[] = [];
  for (const kind of linkClasses) {
    const { bandwidth, sharedBy, duplex } = links[kind];
    const createPort = (): LinkPort => ({ bandwidth, flows: [], isChanged: false });
    for (let rank = 0; rank < ranks; rank++) {
      const portOwner = rank - ((rank % ranksPerNode) % sharedBy);
      const sendPort = portOwner === rank ? createPort() : ports[portIndex(portOwner, kind, 0)]!;
      const receivePort =
        portOwner === rank ? (duplex ? createPort() : sendPort) : ports[portIndex(portOwner, kind, 1)]!;
      ports[portIndex(rank, kind, 0)] = sendPort;
      ports[portIndex(rank, kind, 1)] = receivePort;
    }
  }
  return ports;
}

/** Removes a message from a port. The last message takes its index. */
function removeFlow({ flows }: LinkPort, index: number): void {
  const end = flows.length - 1;
  const last = flows.pop()!;
  if (index === end) return;
  flows[index] = last;
  if (last.sendPort?.flows === flows && last.sendPortIndex === end) last.sendPortIndex = index;
  else last.receivePortIndex = index;
}
