import { world } from "@mosaic/attention";
import {
  type AttentionRecord,
  calibrate,
  count,
  type Profile,
  record,
  simulate,
  type Simulation,
  type Timeline,
} from "@mosaic/attention/planner";
import { arrange, maskFor, placementFor } from "./backends.ts";
import { type RankSchedule, rankSchedules } from "./script.ts";
import type { Settings } from "./settings.ts";
import { withProgress } from "./watched.ts";

/** What a run will do, found out before it. */
export interface ExpectedRun {
  /** Bytes that all ranks together will send. */
  readonly bytesSent: number;
  /** What each rank will do. */
  readonly scripts: readonly RankSchedule[];
  /** When, if the machine was measured. */
  readonly prediction?: Timeline;
}

/** Runs the very same call on the planner's symbolic devices, which have shapes and no data, and reads what they wrote down. */
export function predictRun(settings: Settings): ExpectedRun {
  const { backward, profile } = settings;
  const written = recordAttention(settings);
  const sent = count(written).ranks.map((rank) => rank.forward.sent.bytes + (backward ? rank.backward.sent.bytes : 0));
  return {
    bytesSent: sent.reduce((a, b) => a + b, 0),
    scripts: rankSchedules(written, backward),
    ...(profile && { prediction: predictTimeline(simulate(written, profile), backward) }),
  };
}

/** The planner always predicts forward and backward. */
function predictTimeline(simulation: Simulation, backward: boolean): Timeline {
  if (backward) return simulation;
  const ranks = simulation.ranks.map(({ rank, at, events, forwardSeconds }) => {
    return { rank, at, events: events.filter(({ start }) => start < forwardSeconds) };
  });
  return { seconds: simulation.forwardSeconds, ranks };
}

function recordAttention(settings: Settings): AttentionRecord {
  const { tokens, numHeads, dim, dtype } = settings;
  // Head by head, as the ranks will go.
  const { backend, mesh } = arrange(settings);
  return record({
    backend: withProgress(backend, () => {}),
    mesh,
    tokens,
    numHeads,
    headDim: dim,
    mask: maskFor(settings),
    placement: placementFor(settings),
    dtype,
  });
}

/** Measures this machine for about a second, with as many ranks as will run: what the planner predicts times from. */
export async function measureProfile({ ranks, dtype, dim }: Settings): Promise<Profile> {
  const contexts = await world(ranks);
  try {
    return await calibrate({ contexts, name: "this machine", dtypes: [dtype], headDims: [dim] });
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}
