import { type AttentionBackend, type Context, local, type Tensor } from "@mosaic/core";
import { type AttentionRecord, type Link, type Profile, record, simulate, type Simulation } from "../../src/index.ts";

export const ROWS = 8;
export const HEAD_DIM = 4;

/** A link on which a float32 element takes a second. */
export const slowLink: Link = { latency: 0, bandwidth: 4, sharedBy: 1, duplex: true };

const oneSecondSpeed = { flops: 4 * HEAD_DIM * ROWS * ROWS, halfSpeedRows: 0, halfSpeedKeys: 0, halfSpeedHeadDim: 0 };

/**
 * A machine for mental arithmetic: a tile of ROWS × ROWS takes a second, forward or backward, and memory takes no time.
 */
export const toyProfile: Profile = {
  name: "toy",
  ranksPerNode: 1024,
  links: { self: slowLink, "intra-node": slowLink, "inter-node": slowLink },
  kernels: {
    launch: 0,
    bandwidth: 1e30,
    matmul: 1e30,
    attend: { float32: oneSecondSpeed },
    attendBackward: { float32: { ...oneSecondSpeed, flops: 2.5 * oneSecondSpeed.flops } },
  },
  enqueue: 0,
  communicationTax: 0,
  collectives: "direct",
  channels: "rank",
};

/** Returns the toy profile with all links changed alike. */
export function profileWithLink(overrides: Partial<Link>): Profile {
  const link = { ...slowLink, ...overrides };
  return { ...toyProfile, links: { self: link, "intra-node": link, "inter-node": link } };
}

/** Operations of a rank of a scripted attention. */
export interface RankStage {
  readonly ctx: Context;
  readonly rank: number;
  /** Runs one tile, which takes a second. */
  compute(): void;
  /** Creates a tensor of `elements` elements, each of which takes a second to transfer. */
  tensor(elements: number): Tensor;
}

/** Records ranks whose forward runs a script, and whose backward does nothing. */
export function recordScript(
  mesh: Readonly<Record<string, number>>,
  script: (stage: RankStage) => void,
): AttentionRecord {
  const inner = local();
  const backend: AttentionBackend = {
    name: "scripted",
    axes: [],
    attend(ctx, call, state, kv) {
      const tensors: Tensor[] = [];
      const tensor = (elements: number): Tensor => {
        tensors.push(ctx.device.empty([elements], "float32"));
        return tensors.at(-1)!;
      };
      script({ ctx, rank: ctx.rank, compute: () => inner.attend(ctx, call, state, kv), tensor });
      for (const each of tensors) each[Symbol.dispose]();
    },
    attendBackward() {},
  };
  return record({ backend, mesh, tokens: ROWS, numHeads: 1, headDim: HEAD_DIM, dtype: "float32" });
}

/** Simulates a script on a profile. */
export function runScript(
  mesh: Readonly<Record<string, number>>,
  profile: Profile,
  script: (stage: RankStage) => void,
): Simulation {
  return simulate(recordScript(mesh, script), profile);
}

/** Returns start and end of a rank's events with this name, rounded. */
export function listTimes(simulation: Simulation, rank: number, name: string): (readonly [number, number])[] {
  const round = (x: number): number => Number(x.toFixed(9));
  return simulation.ranks[rank]!.events.filter((event) => event.name === name).map(({ start, end }) => {
    return [round(start), round(end)] as const;
  });
}
