import {
  type AttentionBackend,
  composed,
  contiguous,
  dispatch,
  flex,
  hierarchical,
  type Layout,
  layoutOf,
  local,
  type Mask,
  mesh2d,
  type Placement,
  ring,
  type Strategy,
  striped,
  ulysses,
  zigzag,
} from "@mosaic/attention";
import { type Coordinate, dtypeBytes, OptionError } from "@mosaic/attention/core";
import { auto, type AutoStrategy, dispatchCost, type FlexCostOptions, stageCost } from "@mosaic/attention/planner";
import { gridShapes, type PlacementChoice, type Settings, type GridShape } from "./job.ts";
import { createMask } from "./mask.ts";

const cachedPlans = new WeakMap<Settings, AutoStrategy>();

/** Returns the planner's choice for settings with a profile. It is computed once, and is the same on every rank. */
export function planAutomatically(settings: Settings): AutoStrategy {
  const { tokens, numHeads, headDim, dtype, ranks, profile } = settings;
  if (!profile)
    throw new OptionError({
      where: "auto",
      expected: "a machine profile",
      received: "none",
      remedy: "measure a profile with calibrate()",
    });
  let cachedPlan = cachedPlans.get(settings);
  if (!cachedPlan) {
    const problem = {
      tokens,
      numHeads,
      headDim,
      dtype,
      mask: getMask(settings),
      placement: createPlacement(settings),
    };
    cachedPlan = auto({ ...problem, gpusPerNode: ranks, profile, simulate: 3 });
    cachedPlans.set(settings, cachedPlan);
  }
  return cachedPlan;
}

/** A backend that this program offers. */
interface BackendEntry {
  /** Dimensions of a backend that arranges ranks in two dimensions. */
  readonly dimensions?: Dimensions;
  configureBackend(settings: Settings): BackendConfiguration;
}

interface Dimensions {
  /** Names of the two dimensions. */
  readonly names: readonly [string, string];
  /** Returns the default shape. */
  chooseShape(ranks: number, numHeads: number): GridShape;
}

const backendTable: Readonly<Record<string, BackendEntry>> = {
  ring: { configureBackend: ({ ranks }) => ({ backend: ring(), mesh: { sp: ranks } }) },
  mesh2d: {
    dimensions: { names: ["rows", "columns"], chooseShape: (ranks) => gridShapes(ranks)[0]! },
    configureBackend: ({ ranks, shape }) => ({ backend: mesh2d({ shape: shape! }), mesh: { sp: ranks } }),
  },
  ulysses: { configureBackend: ({ ranks }) => ({ backend: ulysses(), mesh: { sp: ranks } }) },
  flex: {
    configureBackend: (settings) => {
      const { ranks, stages } = settings;
      const backend = flex({ cost: stageCost(flexCostOptions(settings)), ...(stages !== undefined && { stages }) });
      return { backend, mesh: { sp: ranks } };
    },
  },
  composed: {
    dimensions: { names: ["ranks for heads", "for the sequence"], chooseShape: chooseHeadShape },
    configureBackend: ({ ranks, shape }) =>
      createConfiguration(composed({ meshShape: { head: shape![0], seq: shape![1] } }), ranks),
  },
  hierarchical: {
    dimensions: { names: ["nodes", "ranks on each"], chooseShape: (ranks) => gridShapes(ranks)[0]! },
    configureBackend: ({ ranks, shape }) => createConfiguration(hierarchical({ intraNodeSize: shape![1] }), ranks),
  },
  auto: { configureBackend: (settings) => createConfiguration(planAutomatically(settings), settings.ranks) },
  local: { configureBackend: ({ ranks }) => ({ backend: local(), mesh: { sp: ranks } }) },
};

export const backendNames = (): readonly string[] => Object.keys(backendTable);

/** Returns the backend that the settings name, and its mesh. */
export function configureBackend(settings: Settings): BackendConfiguration {
  return backendTable[settings.backend]!.configureBackend(settings);
}

function createConfiguration(backend: Strategy, ranks: number): BackendConfiguration {
  return { backend, mesh: backend.meshFor(ranks) };
}

/** Returns the two dimensions of a backend, or undefined for a backend without two dimensions. */
export function gridDimensions(name: string): Dimensions | undefined {
  return backendTable[name]!.dimensions;
}

/** Returns for example "mesh2d, 2 rows × 4 columns". */
export function describeBackend(settings: Settings): string {
  return [settings.backend, ...describeShape(settings)].join(", ");
}

/** Returns for example "2 rows × 4 columns", or the planner's choice, or nothing for a backend without a shape. */
export function describeShape(settings: Settings): readonly string[] {
  const { backend, shape } = settings;
  if (backend === "auto") return [planAutomatically(settings).plan.best.name];
  const names = gridDimensions(backend)?.names;
  return shape && names ? [`${shape[0]} ${names[0]} × ${shape[1]} ${names[1]}`] : [];
}

/** Returns the most nearly square shape whose head ranks all have the same number of heads. */
function chooseHeadShape(ranks: number, numHeads: number): GridShape {
  const fittingShapes = gridShapes(ranks).filter(([headRanks]) => headRanks <= numHeads);
  return fittingShapes.find(([headRanks]) => numHeads % headRanks === 0)!;
}

/** Returns the layout: the tokens of each rank. */
export function createLayout(settings: Settings, { backend, mesh }: BackendConfiguration): Layout {
  return layoutOf({ mesh, axes: backend.axes, placement: createPlacement(settings), length: settings.tokens });
}

const placementFactories: Readonly<Record<PlacementChoice, (settings: Settings) => Placement>> = {
  contiguous: () => contiguous(),
  zigzag,
  striped,
  dispatch: (settings) => {
    const { tokens, ranks, backward } = settings;
    const cost = { ...dispatchCost(flexCostOptions(settings)), backward: backward ? 1 : 0 };
    return dispatch({ mask: getMask(settings), length: tokens, ranks, cost });
  },
};

/** Returns the placement of the sequence. It is the same on every rank. */
export function createPlacement(settings: Settings): Placement {
  return placementFactories[settings.placement](settings);
}

const maskCache = new WeakMap<Settings, Mask>();

/** Returns the mask: one object for the same settings, because data derived from a mask is cached by object. */
export function getMask(settings: Settings): Mask {
  let mask = maskCache.get(settings);
  if (!mask) maskCache.set(settings, (mask = createMask(settings.mask, settings.tokens)));
  return mask;
}

/** Returns the machine and the attention from which the costs of flex and of dispatch follow. */
function flexCostOptions({ device, ranks, numHeads, headDim, dtype }: Settings): FlexCostOptions {
  return { profile: device === "cuda" ? "h100-ib400" : "cpu-local", ranks, numHeads, headDim, dtype };
}

/** Returns the bytes of k and v of one token. */
export function keyValueBytesPerToken({
  numHeads,
  headDim,
  dtype,
}: Pick<Settings, "numHeads" | "headDim" | "dtype">): number {
  return 2 * numHeads * headDim * dtypeBytes[dtype];
}

/** A backend and its mesh of ranks. */
interface BackendConfiguration {
  readonly backend: AttentionBackend;
  readonly mesh: Coordinate;
}
