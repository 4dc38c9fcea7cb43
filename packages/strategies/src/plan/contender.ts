import { type AttentionBackend, type Coordinate, OptionError } from "@mosaic/core";
import { formatMesh, type Strategy } from "../strategy.ts";
import { enumerate } from "./enumerate.ts";
import { type Candidate, candidateOptions, type PlanJob, type PlanOptions } from "./job.ts";
import { backendOf, codeOf, familyOf, nameOf } from "./nest.ts";

/** A candidate, ready to be recorded. */
export interface Contender {
  readonly name: string;
  /** The same for all grids and forms of one nesting on one mesh. */
  readonly family: string;
  readonly backend: AttentionBackend;
  readonly mesh: Coordinate;
  /** An expression that makes the backend, and lines that import what it needs. */
  readonly code: string;
  readonly imports: readonly string[];
}

/** What the built-in candidates' code calls the umbrella package. */
export const SCOPE = "mosaic.";

/** All candidates: the caller's own, and those built in. */
export function contendersOf(job: PlanJob, { candidates = [], mesh }: PlanOptions): readonly Contender[] {
  const builtIn = enumerate(job).map((nest) => {
    const [backend, code] = [backendOf(nest), codeOf(nest, SCOPE)];
    return { name: nameOf(nest), family: familyOf(nest), backend, mesh: nest.mesh, code, imports: [] };
  });
  const own = candidates.map((candidate) => contenderOf(job, candidate));
  const all = [...own, ...builtIn];
  return mesh === undefined ? all : all.filter((contender) => sameMesh(contender.mesh, mesh));
}

function contenderOf(job: PlanJob, candidate: Candidate): Contender {
  candidateOptions.parse(candidate, "plan: candidate");
  const { backend, name = backend.name, code = "yourBackend", imports = [] } = candidate;
  const mesh = candidate.mesh ?? meshOf(job, backend);
  const ranks = Object.values(mesh).reduce((product, length) => product * length, 1);
  if (ranks === job.ranks) return { name, family: name, backend, mesh, code, imports };
  throw new OptionError({
    where: `plan: candidate ${name}`,
    expected: `a mesh of ${job.ranks} ranks`,
    received: formatMesh(mesh),
  });
}

function meshOf({ ranks, nodes, gpusPerNode }: PlanJob, backend: AttentionBackend): Coordinate {
  if ("meshFor" in backend) return (backend as Strategy).meshFor(ranks);
  const [first, second, ...more] = backend.axes;
  if (first === undefined && ranks === 1) return { sp: 1 };
  if (first !== undefined && second === undefined) return { [first]: ranks };
  if (first !== undefined && second !== undefined && more.length === 0)
    return { [first]: nodes, [second]: gpusPerNode };
  throw new OptionError({
    where: `plan: candidate ${backend.name}`,
    expected: "its mesh",
    received: `a backend along ${backend.axes.length === 0 ? "no axis" : backend.axes.join(", ")}`,
    remedy: `pass { backend, mesh: { …: … } } with ${ranks} ranks`,
  });
}

/** The order of the axes states which ranks are neighbours: it counts. */
function sameMesh(a: Coordinate, b: Coordinate): boolean {
  return JSON.stringify(Object.entries(a)) === JSON.stringify(Object.entries(b));
}
