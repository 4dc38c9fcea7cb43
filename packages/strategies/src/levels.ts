import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { type AttentionBackend, local, OptionError } from "@mosaic/core";

/** Makes a backend along a mesh axis that leaves what is whole along this axis to `inner`. */
export type MakeLevel = (axis: string, inner: AttentionBackend) => AttentionBackend;

/** How the ranks along one axis work together: a name, or whatever makes such a backend. */
export type LevelStrategy = "ring" | "mesh2d" | "ulysses" | MakeLevel;

/** One axis of the mesh, and what is done along it. */
export interface Level {
  readonly axis: string;
  readonly strategy: LevelStrategy;
}

const named = {
  ring: (axis, inner) => ring({ axis, inner }),
  mesh2d: (axis, inner) => mesh2d({ axis, inner }),
  ulysses: (axis, inner) => ulysses({ axis, inner }),
} as const satisfies Record<Exclude<LevelStrategy, MakeLevel>, MakeLevel>;

/**
 * Nests levels, given outermost first. Those that exchange rows for heads go outside all others: inside, they would do it
 * anew at every step around them, and the result is the same.
 */
export function nest(where: string, levels: readonly Level[]): AttentionBackend {
  const headParallel = ({ strategy }: Level) => strategy === "ulysses";
  const order = [...levels.filter(headParallel), ...levels.filter((level) => !headParallel(level))];
  return order.reduceRight((inner, { axis, strategy }) => makerOf(where, strategy)(axis, inner), local());
}

function makerOf(where: string, strategy: LevelStrategy): MakeLevel {
  if (typeof strategy === "function") return strategy;
  if (Object.hasOwn(named, strategy)) return named[strategy];
  const names = Object.keys(named).map((name) => `"${name}"`);
  throw new OptionError({
    where,
    expected: `${names.join(", ")} or (axis, inner) => backend`,
    received: JSON.stringify(strategy),
    remedy: "choose one that reaches the keys of all ranks along its axis: the result must be exact",
  });
}
