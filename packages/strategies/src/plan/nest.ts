import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { type AttentionBackend, type Coordinate, local } from "@mosaic/core";

/** One backend of a nest, along one axis of the mesh. */
export type Nested =
  | { readonly kind: "ring" | "ulysses"; readonly axis: string; readonly length: number }
  | Mesh2DLevel;

interface Mesh2DLevel {
  readonly kind: "mesh2d";
  readonly axis: string;
  readonly length: number;
  readonly shape: readonly [rows: number, columns: number];
  readonly schedule: "fused" | "overlapped";
  readonly channels?: 2;
}

/** Backends within one another, outermost first, and the mesh that their axes form. */
export interface Nest {
  readonly levels: readonly Nested[];
  readonly mesh: Coordinate;
}

/** The backend itself. */
export function backendOf({ levels }: Nest): AttentionBackend {
  return levels.reduceRight((inner, level) => makeLevel(level, inner), local());
}

function makeLevel(level: Nested, inner: AttentionBackend): AttentionBackend {
  const { axis } = level;
  if (level.kind !== "mesh2d") return (level.kind === "ring" ? ring : ulysses)({ axis, inner });
  const { shape, schedule, channels = 1 } = level;
  return mesh2d({ axis, inner, shape, schedule, channels });
}

/** What tables call it: "ulysses 8 × mesh2d 4·8 fused". */
export function nameOf({ levels }: Nest): string {
  const names = levels.map((level) => {
    if (level.kind !== "mesh2d") return `${level.kind} ${level.length}`;
    return `mesh2d ${level.shape.join("·")} ${level.schedule}${level.channels ? ", 2 channels" : ""}`;
  });
  return names.length === 0 ? "local" : names.join(" × ");
}

/** What nests have in common that differ only in grids and schedules. */
export function familyOf({ levels, mesh }: Nest): string {
  const names = levels.map(({ kind, axis }) => `${kind} ${axis}`);
  return `${names.join(" × ")} on ${JSON.stringify(mesh)}`;
}

/** An expression that makes the backend from what is in `scope`. */
export function codeOf({ levels }: Nest, scope: string): string {
  if (levels.length === 0) return `${scope}local()`;
  return levels.reduceRight((inner, level) => {
    const options = [`axis: "${level.axis}"`];
    if (level.kind === "mesh2d") {
      options.push(`shape: [${level.shape.join(", ")}]`, `schedule: "${level.schedule}"`);
      if (level.channels) options.push(`channels: ${level.channels}`);
    }
    if (inner !== "") options.push(`inner: ${inner}`);
    return `${scope}${level.kind}({ ${options.join(", ")} })`;
  }, "");
}
