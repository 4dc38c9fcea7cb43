import { flex, type StageCost } from "@mosaic/backend-flex";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { type AttentionBackend, type Coordinate, local, OptionError } from "@mosaic/core";
import { maxRecordedRanks } from "@mosaic/planner";
import { formatMesh } from "../mesh-order.ts";
import type { Strategy } from "../strategy.ts";
import { stageCost } from "./flex-costs.ts";
import { type Candidate, candidateOptions, type PlanJob, type PlanOptions } from "./job.ts";

/** One backend of a nest, along one axis of the mesh. */
type NestingLevel = FlatLevel | FlexLevel | Mesh2DLevel;

interface FlatLevel {
  readonly kind: keyof typeof flatBackends;
  readonly axis: string;
  readonly length: number;
}

const flatBackends = { ring, ulysses } as const;

interface FlexLevel {
  readonly kind: "flex";
  readonly axis: string;
  readonly length: number;
  readonly cost: StageCost;
}

interface Mesh2DLevel {
  readonly kind: "mesh2d";
  readonly axis: string;
  readonly length: number;
  readonly shape: readonly [rows: number, columns: number];
  readonly schedule: "fused" | "overlapped";
  readonly channels?: 2;
}

/** Nested backends, outermost first, and the mesh that their axes form. */
interface NestedLevels {
  readonly levels: readonly NestingLevel[];
  readonly mesh: Coordinate;
}

/** Creates the backend. */
function createBackend({ levels }: NestedLevels): AttentionBackend {
  return levels.reduceRight((inner, level) => createLevelBackend(level, inner), local());
}

function createLevelBackend(level: NestingLevel, inner: AttentionBackend): AttentionBackend {
  const { axis } = level;
  if (level.kind === "flex") return flex({ axis, inner, cost: level.cost });
  if (level.kind !== "mesh2d") return flatBackends[level.kind]({ axis, inner });
  const { shape, schedule, channels = 1 } = level;
  return mesh2d({ axis, inner, shape, schedule, channels });
}

/** Returns the name in tables: "ulysses 8 × mesh2d 4·8 fused". */
function formatName({ levels }: NestedLevels): string {
  const names = levels.map((level) => {
    if (level.kind !== "mesh2d") return `${level.kind} ${level.length}`;
    return `mesh2d ${level.shape.join("·")} ${level.schedule}${level.channels ? ", 2 channels" : ""}`;
  });
  return names.length === 0 ? "local" : names.join(" × ");
}

/** Returns a name that is equal for nests that differ only in grids and schedules. */
function formatFamily({ levels, mesh }: NestedLevels): string {
  const names = levels.map(({ kind, axis }) => `${kind} ${axis}`);
  return `${names.join(" × ")} on ${JSON.stringify(mesh)}`;
}

/** Returns an expression that creates the backend. `scope` prefixes its function names. */
function formatCode({ levels }: NestedLevels, scope: string): string {
  if (levels.length === 0) return `${scope}local()`;
  return levels.reduceRight((inner, level) => {
    const options = [`axis: "${level.axis}"`];
    if (level.kind === "mesh2d") {
      options.push(`shape: [${level.shape.join(", ")}]`, `schedule: "${level.schedule}"`);
      if (level.channels) options.push(`channels: ${level.channels}`);
    }
    if (level.kind === "flex") options.push(`cost: ${formatCost(level.cost)}`);
    if (inner !== "") options.push(`inner: ${inner}`);
    return `${scope}${level.kind}({ ${options.join(", ")} })`;
  }, "");
}

function formatCost(cost: StageCost): string {
  const fields = Object.entries(cost).map(([name, value]) => `${name}: ${value}`);
  return `{ ${fields.join(", ")} }`;
}

/**
 * Returns the maximum traffic of a grid that is worth recording, relative to the best grid of its length. It falls with
 * more ranks.
 */
function getMaxRelativeVolume(ranks: number): number {
  if (ranks > maxRecordedRanks) return 1.25;
  return ranks > 32 ? 2 : Number.POSITIVE_INFINITY;
}

/**
 * Returns every way of this package to arrange the ranks:
 *
 * - ring, flex, mesh2d on every grid and in both forms, and ulysses if there are enough heads, over all ranks;
 * - ulysses around ring, flex or mesh2d, with its ranks adjacent or, with several nodes, as far apart as possible;
 * - a ring between nodes with a ring, flex or mesh2d within them, and ulysses around both with some ranks of each
 *   node.
 *
 * Above 32 ranks, grids that send over twice as much as the best grid of the same length are omitted. Above 1 024
 * ranks, the limit is 1.25 times as much, and two kinds are omitted: nests of more than 1 024 steps, because each
 * step waits for a message, so that their latency alone exceeds the time of others, and they take longest to record;
 * and flex, because its ranks do not form classes.
 */
function enumerateNestings(job: PlanJob): readonly NestedLevels[] {
  const nestings = listNestings(job);
  return job.ranks > maxRecordedRanks ? nestings.filter(({ levels }) => countSteps(levels) <= MAX_STEPS) : nestings;
}

const MAX_STEPS = 1024;

/** Returns the number of blocks of keys that a rank attends to one after another. */
function countSteps(levels: readonly NestingLevel[]): number {
  return levels.reduce((steps, level) => {
    const isSingleStep =
      level.kind === "ulysses" || level.kind === "flex" || (level.kind === "mesh2d" && level.schedule === "fused");
    return isSingleStep ? steps : steps * level.length;
  }, 1);
}

function listNestings(job: PlanJob): readonly NestedLevels[] {
  const { ranks, nodes, gpusPerNode, profile, shape } = job;
  const { numHeads, numKvHeads, headDim, dtype } = shape;
  if (ranks === 1) return [{ levels: [], mesh: { sp: 1 } }];
  const node = {
    nodes,
    gpusPerNode,
    queriesPerKvHead: numHeads / numKvHeads,
    numKvParts: 1,
    maxRelativeVolume: getMaxRelativeVolume(ranks),
    isEveryRankRecorded: ranks <= maxRecordedRanks,
    getFlexCost: (numNodes: number) =>
      stageCost({ numHeads, numKvHeads, headDim, dtype, profile, ranks: numNodes === 1 ? gpusPerNode : ranks }),
  };
  const flatLevels = [
    ...listSequenceLevels("sp", ranks, node),
    ...(ranks <= numHeads ? [createHeadLevel("sp", ranks)] : []),
  ];
  return [
    ...flatLevels.map((level) => createNesting([level], { sp: ranks })),
    ...listComposedNestings(ranks, numHeads, node),
    ...listHierarchicalNestings(numHeads, node),
  ];
}

interface SearchSpace {
  readonly nodes: number;
  readonly gpusPerNode: number;
  /** Query heads for each KV head. */
  readonly queriesPerKvHead: number;
  /** Number of parts in which the keys arrive. Queries are sent once for all parts. */
  readonly numKvParts: number;
  /** Maximum traffic of a grid, relative to the best grid. */
  readonly maxRelativeVolume: number;
  /** Whether every rank is recorded. Flex requires this: no two of its ranks do the same, so that it has no classes. */
  readonly isEveryRankRecorded: boolean;
  /** Returns the cost model of flex on ranks of one or several nodes. */
  readonly getFlexCost: (numNodes: number) => StageCost;
}

function listComposedNestings(ranks: number, numHeads: number, space: SearchSpace): readonly NestedLevels[] {
  const headRankCounts = listDivisors(ranks).filter(
    (headRanks) => headRanks > 1 && headRanks < ranks && headRanks <= numHeads,
  );
  return headRankCounts.flatMap((headRanks) => {
    const seqRanks = ranks / headRanks;
    const head = createHeadLevel("head", headRanks);
    const neighborSpace = { ...space, gpusPerNode: Math.max(1, space.gpusPerNode / headRanks) };
    const neighborNestings = listSequenceLevels("seq", seqRanks, neighborSpace).map((level) =>
      createNesting([head, level], { seq: seqRanks, head: headRanks }),
    );
    if (space.nodes === 1) return neighborNestings;
    const separateNestings = listSequenceLevels("seq", seqRanks, space).map((level) =>
      createNesting([head, level], { head: headRanks, seq: seqRanks }),
    );
    return [...neighborNestings, ...separateNestings];
  });
}

function listHierarchicalNestings(numHeads: number, space: SearchSpace): readonly NestedLevels[] {
  const { nodes, gpusPerNode } = space;
  if (nodes === 1 || gpusPerNode === 1) return [];
  const nodeLevel: NestingLevel = { kind: "ring", axis: "node", length: nodes };
  const headRankCounts = listDivisors(gpusPerNode).filter(
    (headRanks) => headRanks < gpusPerNode && headRanks <= numHeads,
  );
  return headRankCounts.flatMap((headRanks) => {
    const gpuRanks = gpusPerNode / headRanks;
    const intraNodeLevels = listSequenceLevels("gpu", gpuRanks, {
      ...space,
      nodes: 1,
      gpusPerNode: gpuRanks,
      numKvParts: nodes,
    });
    if (headRanks === 1)
      return intraNodeLevels.map((level) => createNesting([nodeLevel, level], { node: nodes, gpu: gpuRanks }));
    const mesh = { node: nodes, gpu: gpuRanks, head: headRanks };
    return intraNodeLevels.map((level) => createNesting([createHeadLevel("head", headRanks), nodeLevel, level], mesh));
  });
}

function createNesting(levels: readonly NestingLevel[], mesh: Coordinate): NestedLevels {
  return { levels, mesh };
}

function createHeadLevel(axis: string, length: number): NestingLevel {
  return { kind: "ulysses", axis, length };
}

/** Returns the levels that split a sequence along an axis: a ring, flex, and every grid with both schedules. */
function listSequenceLevels(axis: string, length: number, space: SearchSpace): readonly NestingLevel[] {
  const gridShapes = listDivisors(length).map((rows) => ({ rows, columns: length / rows }));
  const minVolume = Math.min(...gridShapes.map((shape) => computeCommunicationVolume(shape, space)));
  const efficientShapes = gridShapes.filter(
    (shape) => computeCommunicationVolume(shape, space) <= space.maxRelativeVolume * minVolume,
  );
  const grids = efficientShapes.flatMap(({ rows, columns }): readonly NestingLevel[] => {
    const grid = { kind: "mesh2d", axis, length, shape: [rows, columns] } as const;
    // Rows within nodes and columns across nodes use separate links, which two channels keep busy at the same time.
    const hasSeparateLinks = space.nodes > 1 && rows > 1 && columns > 1 && columns <= space.gpusPerNode;
    const overlappedGrid = { ...grid, schedule: "overlapped" } as const;
    return [
      { ...grid, schedule: "fused" },
      overlappedGrid,
      ...(hasSeparateLinks ? [{ ...overlappedGrid, channels: 2 } as const] : []),
    ];
  });
  const flexLevels = space.isEveryRankRecorded
    ? [{ kind: "flex", axis, length, cost: space.getFlexCost(space.nodes) } as const]
    : [];
  return [{ kind: "ring", axis, length }, ...flexLevels, ...grids];
}

/**
 * Returns what a rank of a grid sends under the full mask, forward and backward, in chunks of its queries: q, out, dOut
 * and dq along rows, k, v, dk and dv along columns. This is the closed form of mesh2d's messages, as if all had one
 * width.
 */
function computeCommunicationVolume(
  { rows, columns }: { rows: number; columns: number },
  { queriesPerKvHead, numKvParts: parts }: SearchSpace,
): number {
  return 5 * (columns - 1) + (6 / queriesPerKvHead) * parts * (rows - 1);
}

/** Returns all divisors in ascending order. */
export function listDivisors(n: number): readonly number[] {
  return Array.from({ length: n }, (_, i) => i + 1).filter((d) => n % d === 0);
}

/** A candidate, ready to be recorded. */
export interface StrategyCandidate {
  readonly name: string;
  /** Equal for all grids and forms of one nesting on one mesh. */
  readonly family: string;
  readonly backend: AttentionBackend;
  readonly mesh: Coordinate;
  /** An expression that creates the backend, and the import lines that it needs. */
  readonly code: string;
  readonly imports: readonly string[];
}

/** Prefix of names from the umbrella package in the code of built-in candidates. */
export const UMBRELLA_NAMESPACE = "mosaic.";

/** Returns all candidates: the caller's own, and those built in. */
export function createCandidates(job: PlanJob, { candidates = [], mesh }: PlanOptions): readonly StrategyCandidate[] {
  const builtInCandidates = enumerateNestings(job).map((nesting) => {
    const [backend, code] = [createBackend(nesting), formatCode(nesting, UMBRELLA_NAMESPACE)];
    return { name: formatName(nesting), family: formatFamily(nesting), backend, mesh: nesting.mesh, code, imports: [] };
  });
  const ownCandidates = candidates.map((candidate) => resolveCandidate(job, candidate));
  const allCandidates = [...ownCandidates, ...builtInCandidates];
  if (mesh === undefined) return allCandidates;
  const matchingCandidates = allCandidates.filter((strategy) => isSameMesh(strategy.mesh, mesh));
  if (matchingCandidates.length > 0) return matchingCandidates;
  throw new OptionError({
    where: "plan: mesh",
    expected: `one of ${[...new Set(allCandidates.map((candidate) => formatMesh(candidate.mesh)))].join(", ")}`,
    received: formatMesh(mesh),
    remedy: `pass a mesh of ${job.ranks} ranks with axes in the order of one of these, or a candidate that runs on it`,
  });
}

function resolveCandidate(job: PlanJob, candidate: Candidate): StrategyCandidate {
  candidateOptions.parse(candidate, "plan: candidate");
  const { backend, name = backend.name, code = "yourBackend", imports = [] } = candidate;
  const mesh = candidate.mesh ?? createDefaultMesh(job, backend);
  const ranks = Object.values(mesh).reduce((product, length) => product * length, 1);
  const where = `plan: candidate ${name}`;
  if (ranks !== job.ranks)
    throw new OptionError({ where, expected: `a mesh of ${job.ranks} ranks`, received: formatMesh(mesh) });
  // Ranks that differ along other axes would have different sequences, so that there would be more than the job has.
  const otherAxes = Object.keys(mesh).filter((axis) => mesh[axis]! > 1 && !backend.axes.includes(axis));
  if (otherAxes.length === 0) return { name, family: name, backend, mesh, code, imports };
  throw new OptionError({
    where,
    expected: "a mesh whose ranks all share each sequence, along the backend's axes",
    received: `${formatMesh(mesh)} and a backend along ${formatAxes(backend)}`,
    remedy: "plan for the ranks that share one sequence, and put the others on a data-parallel axis, dp",
  });
}

function formatAxes({ axes }: AttentionBackend): string {
  return axes.length === 0 ? "no axis" : axes.join(", ");
}

function createDefaultMesh({ ranks, nodes, gpusPerNode }: PlanJob, backend: AttentionBackend): Coordinate {
  if ("meshFor" in backend) return (backend as Strategy).meshFor(ranks);
  const [firstAxis, secondAxis, ...moreAxes] = backend.axes;
  if (firstAxis === undefined && ranks === 1) return { sp: 1 };
  if (firstAxis !== undefined && secondAxis === undefined) return { [firstAxis]: ranks };
  if (firstAxis !== undefined && secondAxis !== undefined && moreAxes.length === 0)
    return { [firstAxis]: nodes, [secondAxis]: gpusPerNode };
  throw new OptionError({
    where: `plan: candidate ${backend.name}`,
    expected: "a candidate with a mesh",
    received: `a backend along ${formatAxes(backend)}`,
    remedy: `pass { backend, mesh: { …: … } } with ${ranks} ranks`,
  });
}

/** Whether two meshes are equal, including the order of axes, which determines the ranks that are neighbors. */
function isSameMesh(a: Coordinate, b: Coordinate): boolean {
  return JSON.stringify(Object.entries(a)) === JSON.stringify(Object.entries(b));
}
