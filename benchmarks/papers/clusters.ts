import {
  type AttentionRecord,
  type AttentionSpeed,
  type KernelSpeeds,
  type Profile,
  profiles,
  simulate,
} from "@mosaic/planner";

/** How a network is laid out. What the papers leave open is varied. */
export interface Topology {
  readonly name: string;
  readonly ranksPerNode: number;
  /** Ports of a node to the network, shared evenly by its ranks. */
  readonly ports: number;
  /** How many times faster than such a port a link within a node is. */
  readonly intraNodeSpeedup: number;
}

export interface Cluster {
  readonly gpu: "a100" | "h100";
  readonly topology: Topology;
  /** Bytes per second and way of one port to the network. */
  readonly bandwidth: number;
  /** Seconds until a message's first byte moves; those of the named profiles if absent. */
  readonly latency?: number;
}

const gpus = { a100: profiles["a100-ib200"], h100: profiles["h100-ib400"] } as const;

/** Kernels are those of a named profile; links are as given. */
export function createProfile({ gpu, topology, bandwidth, latency }: Cluster): Profile {
  const baseProfile = gpus[gpu];
  const { name, ranksPerNode, ports, intraNodeSpeedup } = topology;
  const latencyOverride = latency === undefined ? {} : { latency };
  const interNodeLink = {
    ...baseProfile.links["inter-node"],
    ...latencyOverride,
    bandwidth,
    sharedBy: ranksPerNode / ports,
  };
  const intraNodeLink = {
    ...baseProfile.links["intra-node"],
    ...latencyOverride,
    bandwidth: bandwidth * intraNodeSpeedup,
  };
  const links = { ...baseProfile.links, "intra-node": intraNodeLink, "inter-node": interNodeLink };
  return { ...baseProfile, name: `${gpu}, ${name}`, ranksPerNode, links };
}

/** One attention, forward and backward, on a cluster. */
export interface Timing {
  readonly seconds: number;
  /** How long the mean rank's compute stands still for messages, and as a share of all its time. */
  readonly waitSeconds: number;
  readonly waitShare: number;
}

export function simulateTiming(record: AttentionRecord, profile: Profile): Timing {
  const { seconds, ranks } = simulate(record, profile, { keep: () => false });
  const waitSeconds = ranks.reduce((sum, rank) => sum + rank.exposedCommunicationSeconds, 0) / ranks.length;
  return { seconds, waitSeconds, waitShare: waitSeconds / seconds };
}

/** What a rank computes on large tiles, forward and backward as they come, in operations per second. */
function attentionFlops({ attend, attendBackward }: KernelSpeeds, headDim: number): number {
  const secondsPerFlop = ({ flops, halfDim }: AttentionSpeed) => (headDim + halfDim) / headDim / flops;
  return 14 / (4 * secondsPerFlop(attend.bfloat16!) + 10 * secondsPerFlop(attendBackward.bfloat16!));
}

/** Bandwidth over kernel speed: all that speedups depend on, where latency does not matter. */
export function bytesPerMegaflop({ kernels, links }: Profile, headDim: number): number {
  return (links["inter-node"].bandwidth / attentionFlops(kernels, headDim)) * 1e6;
}

/** Where the least of a function of a positive number lies, to 2 %, if it has one valley between the ends. */
export function minimizeScalar(objective: (x: number) => number, [low, high]: readonly [number, number]): number {
  const goldenRatio = (Math.sqrt(5) - 1) / 2;
  let [lower, upper] = [Math.log(low), Math.log(high)];
  const evaluatePoint = (logX: number) => ({ at: logX, value: objective(Math.exp(logX)) });
  let leftPoint = evaluatePoint(upper - goldenRatio * (upper - lower));
  let rightPoint = evaluatePoint(lower + goldenRatio * (upper - lower));
  while (upper - lower > 0.02) {
    if (leftPoint.value < rightPoint.value) {
      upper = rightPoint.at;
      [leftPoint, rightPoint] = [evaluatePoint(upper - goldenRatio * (upper - lower)), leftPoint];
    } else {
      lower = leftPoint.at;
      [leftPoint, rightPoint] = [rightPoint, evaluatePoint(lower + goldenRatio * (upper - lower))];
    }
  }
  return Math.exp((lower + upper) / 2);
}
