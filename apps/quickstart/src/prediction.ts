import { type Layout, ring, world } from "@mosaic/attention";
import { type Coordinate, coordinateOf, type Slice, type Traffic } from "@mosaic/attention/core";
import {
  type AttentionRecord,
  calibrate,
  count,
  flexTraffic,
  mesh2dTraffic,
  type Profile,
  record,
  ringTraffic,
  simulate,
  type Simulation,
  type Timeline,
  ulyssesTraffic,
} from "@mosaic/attention/planner";
import { configureBackend, createLayout, getMask, createPlacement } from "./backends.ts";
import { wrapWithProgress } from "./progress.ts";
import { type RankSchedule, rankSchedules } from "./rank-schedule.ts";
import type { Settings } from "./job.ts";

/** Predicted communication and schedule of a run. */
export interface ExpectedRun {
  /** Bytes that all ranks together will send. */
  readonly bytesSent: number;
  /** Schedule of each rank. */
  readonly schedules: readonly RankSchedule[];
  /** The planner's record of the run. */
  readonly record: AttentionRecord;
  /** Predicted timeline, if the machine was measured. */
  readonly prediction?: Timeline;
}

/** Runs the same call on the planner's symbolic devices, which have shapes but no data, and evaluates their record. */
export function predictRun(settings: Settings): ExpectedRun {
  const { backward, profile } = settings;
  const attentionRecord = recordAttention(settings);
  const bytesSentByRank = count(attentionRecord).ranks.map(
    (rank) => rank.forward.sent.bytes + (backward ? rank.backward.sent.bytes : 0),
  );
  return {
    bytesSent: bytesSentByRank.reduce((a, b) => a + b, 0),
    record: attentionRecord,
    schedules: rankSchedules(attentionRecord, backward),
    ...(profile && { prediction: predictTimeline(simulate(attentionRecord, profile), backward) }),
  };
}

/** Returns the predicted timeline, without the backward if not included. The planner always predicts both. */
function predictTimeline(simulation: Simulation, includesBackward: boolean): Timeline {
  if (includesBackward) return simulation;
  const ranks = simulation.ranks.map(({ rank, at, events, forwardSeconds }) => {
    return { rank, at, events: events.filter(({ start }) => start < forwardSeconds) };
  });
  return { seconds: simulation.forwardSeconds, ranks };
}

function recordAttention(settings: Settings): AttentionRecord {
  const { tokens, numHeads, headDim, dtype } = settings;
  // Head by head, as on the ranks.
  const { backend, mesh } = configureBackend(settings);
  return record({
    backend: wrapWithProgress(backend, () => {}),
    mesh,
    tokens,
    numHeads,
    headDim,
    mask: getMask(settings),
    placement: createPlacement(settings),
    dtype,
  });
}

/** Measures this machine for a few seconds, with the number of ranks of the run, as input of the planner. */
export async function measureProfile({ ranks, dtype, headDim }: Settings): Promise<Profile> {
  const contexts = await world(ranks);
  try {
    return await calibrate({ contexts, name: "this machine", dtypes: [dtype], headDims: [headDim], repetitions: 3 });
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

/** One rank's call, as the formulas require it. */
interface FormulaInput {
  readonly settings: Settings;
  readonly mesh: Coordinate;
  readonly call: {
    readonly at: Coordinate;
    readonly mask: readonly Slice[];
    readonly queries: Layout;
    readonly keys: Layout;
  };
}

interface PassTraffic {
  readonly forward: Traffic;
  readonly backward: Traffic;
}

const formulas: Readonly<Record<string, (input: FormulaInput) => readonly PassTraffic[]>> = {
  local: () => [],
  ring: (input) => [ringTraffic({ ...input, ...getRowFormat(input, input.settings.numHeads) })],
  mesh2d: (input) => [mesh2dTraffic({ ...input, ...attentionSizes(input.settings), shape: input.settings.shape! })],
  ulysses: (input) => [ulyssesTraffic({ ...input, ...attentionSizes(input.settings) })],
  flex: (input) => [flexTraffic({ ...input, ...attentionSizes(input.settings) })],
  composed: ulyssesRingTraffic,
  hierarchical: hierarchicalTraffic,
};

/**
 * Returns the bytes that all ranks together must send, by the formulas of the backends, without running them. Undefined
 * for an automatic choice, which may be any nested backend.
 */
export function closedFormTraffic(settings: Settings): number | undefined {
  const formula = formulas[settings.backend];
  if (!formula) return undefined;
  const configuration = configureBackend(settings);
  const { mesh } = configuration;
  const layout = createLayout(settings, configuration);
  const mask = getMask(settings).slices(settings.tokens, settings.tokens);
  let bytes = 0;
  for (let rank = 0; rank < settings.ranks; rank++) {
    const call = { at: coordinateOf(rank, mesh), mask, queries: layout, keys: layout };
    for (const { forward, backward } of formula({ settings, mesh, call })) {
      bytes += forward.bytesSent + (settings.backward ? backward.bytesSent : 0);
    }
  }
  return bytes;
}

/** Returns the traffic of the all-to-all along "head", and then of the ring along "seq" for the heads of this rank. */
function ulyssesRingTraffic(input: FormulaInput): readonly PassTraffic[] {
  const { settings, mesh, call } = input;
  const { head, ...at } = call.at as { head: number; seq: number };
  const [ranks, { numHeads }] = [mesh["head"]!, settings];
  const headsOnRank = Math.floor(numHeads / ranks) + (head < numHeads % ranks ? 1 : 0);
  const inner = ring({ axis: "seq" });
  return [
    ulyssesTraffic({ ...input, ...attentionSizes(settings), axis: "head", inner }),
    ringTraffic({ ...input, ...getRowFormat(input, headsOnRank), axis: "seq", call: { ...call, at } }),
  ];
}

/**
 * Returns the traffic of a ring of nodes and, at each of its steps, of a ring within the node for the received rows.
 */
function hierarchicalTraffic(input: FormulaInput): readonly PassTraffic[] {
  const rowFormat = getRowFormat(input, input.settings.numHeads);
  const nodes = Array.from({ length: input.mesh["node"]! }, (_, node) => ({ ...input.call.at, node }));
  return [
    ringTraffic({ ...input, ...rowFormat, axis: "node", inner: ring({ axis: "gpu" }) }),
    ...nodes.map((sourceNode) => ringTraffic({ ...input, ...rowFormat, axis: "gpu", from: sourceNode })),
  ];
}

function getRowFormat(
  { settings: { headDim, dtype } }: FormulaInput,
  numHeads: number,
): Pick<Settings, "dtype"> & { width: number } {
  return { width: numHeads * headDim, dtype };
}

function attentionSizes({ numHeads, headDim, dtype }: Settings) {
  return { batch: 1, numHeads, numKvHeads: numHeads, headDim, dtype } as const;
}
