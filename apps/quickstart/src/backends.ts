import { composed, hierarchical, local, mesh2d, ring, type Strategy, ulysses } from "@mosaic/attention";
import type { Arrangement } from "./arrangement.ts";
import { choiceFor } from "./choice.ts";
import type { Settings } from "./settings.ts";
import { type Shape, shapesOf } from "./shape.ts";

/** A way to attend that this program offers. */
interface Offer {
  /** For those that arrange ranks in two dimensions. */
  readonly dimensions?: Dimensions;
  arrange(settings: Settings): Arrangement;
}

interface Dimensions {
  /** What the two numbers count. */
  readonly names: readonly [string, string];
  /** The shape where none is asked for. */
  choose(ranks: number, numHeads: number): Shape;
}

const offers: Readonly<Record<string, Offer>> = {
  ring: { arrange: ({ ranks }) => ({ backend: ring(), mesh: { sp: ranks } }) },
  mesh2d: {
    dimensions: { names: ["rows", "columns"], choose: (ranks) => shapesOf(ranks)[0]! },
    arrange: ({ ranks, shape }) => ({ backend: mesh2d({ shape: shape! }), mesh: { sp: ranks } }),
  },
  ulysses: { arrange: ({ ranks }) => ({ backend: ulysses(), mesh: { sp: ranks } }) },
  composed: {
    dimensions: { names: ["ranks for heads", "for the sequence"], choose: shareHeads },
    arrange: ({ ranks, shape }) => onItsMesh(composed({ meshShape: { head: shape![0], seq: shape![1] } }), ranks),
  },
  hierarchical: {
    dimensions: { names: ["nodes", "ranks on each"], choose: (ranks) => shapesOf(ranks)[0]! },
    arrange: ({ ranks, shape }) => onItsMesh(hierarchical({ intraNodeSize: shape![1] }), ranks),
  },
  auto: { arrange: (settings) => onItsMesh(choiceFor(settings), settings.ranks) },
  local: { arrange: ({ ranks }) => ({ backend: local(), mesh: { sp: ranks } }) },
};

export const backendNames = (): readonly string[] => Object.keys(offers);

/** The backend that the settings name, and its mesh. */
export function arrange(settings: Settings): Arrangement {
  return offers[settings.backend]!.arrange(settings);
}

function onItsMesh(backend: Strategy, ranks: number): Arrangement {
  return { backend, mesh: backend.meshFor(ranks) };
}

/** What the two dimensions of a backend count; undefined for one that has no two. */
export function dimensionsOf(name: string): Dimensions | undefined {
  return offers[name]!.dimensions;
}

/** "mesh2d, 2 rows × 4 columns". */
export function nameOf(settings: Settings): string {
  return [settings.backend, ...details(settings)].join(", ");
}

/** "2 rows × 4 columns", or what was chosen, or nothing where the backend's name states it all. */
export function details(settings: Settings): readonly string[] {
  const { backend, shape } = settings;
  if (backend === "auto") return [choiceFor(settings).plan.best.name];
  const names = dimensionsOf(backend)?.names;
  return shape && names ? [`${shape[0]} ${names[0]} × ${shape[1]} ${names[1]}`] : [];
}

/** Ranks for heads must have some, and better equally many; then the most nearly square. */
function shareHeads(ranks: number, numHeads: number): Shape {
  const fitting = shapesOf(ranks).filter(([forHeads]) => forHeads <= numHeads);
  return fitting.find(([forHeads]) => numHeads % forHeads === 0)!;
}
