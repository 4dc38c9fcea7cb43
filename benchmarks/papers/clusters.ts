import {
  type AttentionRecord,
  type AttentionSpeed,
  type KernelSpeeds,
  type Profile,
  profiles,
  simulate,
} from "@mosaic/planner";

/** Layout of a network. Properties that the papers do not state are varied. */
export interface Topology {
  readonly name: string;
  readonly ranksPerNode: number;
  /** Ports of a node to the network, shared evenly by its ranks. */
  readonly ports: number;
  /** Bandwidth of a link within a node, as a multiple of that of one port. */
  readonly intraNodeSpeedup: number;
}

export interface Cluster {
  readonly gpu: "a100" | "h100";
  readonly topology: Topology;
  /** Bytes per second of one port to the network, in each direction. */
  readonly bandwidth: number;
  /** Seconds until the first byte of a message is sent. Default: those of the named profiles. */
  readonly latency?: number;
}

const gpus = { a100: profiles["a100-ib200"], h100: profiles["h100-ib400"] } as const;

/** Returns a profile with the kernels of a named profile and the given links. */
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

/** Time of one attention call, forward and backward, on a cluster. */
export interface Timing {
  readonly seconds: number;
  /** Seconds for which compute waits for messages, mean over ranks. `waitShare` is their share of the total time. */
  readonly waitSeconds: number;
  readonly waitShare: number;
}

export function simulateTiming(record: AttentionRecord, profile: Profile): Timing {
  const { seconds, ranks } = simulate(record, profile, { keep: () => false });
  const waitSeconds = ranks.reduce((sum, rank) => sum + rank.exposedCommunicationSeconds, 0) / ranks.length;
  return { seconds, waitSeconds, waitShare: waitSeconds / seconds };
}

/** Returns the operations per second of a rank on large tiles, over one forward and one backward. */
function attentionFlops({ attend, attendBackward }: KernelSpeeds, headDim: number): number {
  const secondsPerFlop = ({ flops, halfSpeedHeadDim }: AttentionSpeed) =>
    (headDim + halfSpeedHeadDim) / headDim / flops;
  return 14 / (4 * secondsPerFlop(attend.bfloat16!) + 10 * secondsPerFlop(attendBackward.bfloat16!));
}

/** Returns bandwidth divided by kernel speed. Where latency does not matter, speedups depend only on this ratio. */
export function bytesPerMegaflop({ kernels, links }: Profile, headDim: number): number {
  return (links["inter-node"].bandwidth / attentionFlops(kernels, headDim)) * 1e6;
}

/**
 * Returns the minimizer of a function of a positive number, to 2 %. The function must have one minimum between the
 * bounds.
 */
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
