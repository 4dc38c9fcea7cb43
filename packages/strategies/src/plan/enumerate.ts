import type { Coordinate } from "@mosaic/core";
import { maxRecordedRanks } from "@mosaic/planner";
import type { PlanJob } from "./job.ts";
import type { Nest, Nested } from "./nest.ts";

/** How many times what the best grid of a length sends another may send, to be worth recording: the more ranks, the less. */
function mostSentOf(ranks: number): number {
  if (ranks > maxRecordedRanks) return 1.25;
  return ranks > 32 ? 2 : Number.POSITIVE_INFINITY;
}

/**
 * Every way of this package to lay so many ranks out:
 *
 * - ring, mesh2d on every grid and in both forms, and ulysses where there are heads enough, over all ranks;
 * - ulysses around ring or mesh2d, its ranks neighbours or, with several nodes, as far apart as can be;
 * - between nodes a ring, within them a ring or mesh2d, and ulysses around both with some ranks of each node.
 *
 * Over 32 ranks, of the grids of one length those are left out that send over twice what the best of them sends. Over 1 024 ranks,
 * those that send over 1.25 times as much, and nests of more than 1 024 steps, each of which waits for a message: their latency
 * alone is longer than what others take, and recording them takes longest.
 */
export function enumerate(job: PlanJob): readonly Nest[] {
  const nests = nestsOf(job);
  return job.ranks > maxRecordedRanks ? nests.filter(({ levels }) => stepsOf(levels) <= MOST_STEPS) : nests;
}

const MOST_STEPS = 1024;

/** Blocks of keys that a rank attends to one after another. */
function stepsOf(levels: readonly Nested[]): number {
  return levels.reduce((steps, level) => {
    const isOneStep = level.kind === "ulysses" || (level.kind === "mesh2d" && level.schedule === "fused");
    return isOneStep ? steps : steps * level.length;
  }, 1);
}

function nestsOf({ ranks, nodes, gpusPerNode, shape: { numHeads, numKvHeads } }: PlanJob): readonly Nest[] {
  if (ranks === 1) return [{ levels: [], mesh: { sp: 1 } }];
  const node = { nodes, gpusPerNode, group: numHeads / numKvHeads, parts: 1, most: mostSentOf(ranks) };
  const flat = [...sequenceLevels("sp", ranks, node), ...(ranks <= numHeads ? [headLevel("sp", ranks)] : [])];
  return [
    ...flat.map((level) => nestOf([level], { sp: ranks })),
    ...composed(ranks, numHeads, node),
    ...hierarchical(numHeads, node),
  ];
}

interface Machine {
  readonly nodes: number;
  readonly gpusPerNode: number;
  /** Query heads for each key head. */
  readonly group: number;
  /** In how many parts the keys come; queries travel once for all. */
  readonly parts: number;
  /** How many times what the best grid sends a grid may send. */
  readonly most: number;
}

function composed(ranks: number, numHeads: number, machine: Machine): readonly Nest[] {
  const shares = divisorsOf(ranks).filter((share) => share > 1 && share < ranks && share <= numHeads);
  return shares.flatMap((share) => {
    const rest = ranks / share;
    const head = headLevel("head", share);
    const near = { ...machine, gpusPerNode: Math.max(1, machine.gpusPerNode / share) };
    const neighbours = sequenceLevels("seq", rest, near).map((level) =>
      nestOf([head, level], { seq: rest, head: share }),
    );
    if (machine.nodes === 1) return neighbours;
    const apart = sequenceLevels("seq", rest, machine).map((level) =>
      nestOf([head, level], { head: share, seq: rest }),
    );
    return [...neighbours, ...apart];
  });
}

function hierarchical(numHeads: number, machine: Machine): readonly Nest[] {
  const { nodes, gpusPerNode } = machine;
  if (nodes === 1 || gpusPerNode === 1) return [];
  const between: Nested = { kind: "ring", axis: "node", length: nodes };
  const shares = divisorsOf(gpusPerNode).filter((share) => share < gpusPerNode && share <= numHeads);
  return shares.flatMap((share) => {
    const rest = gpusPerNode / share;
    const within = sequenceLevels("gpu", rest, { ...machine, nodes: 1, gpusPerNode: rest, parts: nodes });
    if (share === 1) return within.map((level) => nestOf([between, level], { node: nodes, gpu: rest }));
    const mesh = { node: nodes, gpu: rest, head: share };
    return within.map((level) => nestOf([headLevel("head", share), between, level], mesh));
  });
}

function nestOf(levels: readonly Nested[], mesh: Coordinate): Nest {
  return { levels, mesh };
}

function headLevel(axis: string, length: number): Nested {
  return { kind: "ulysses", axis, length };
}

/** What shares out a sequence along an axis: a ring, and every grid by both schedules. */
function sequenceLevels(axis: string, length: number, machine: Machine): readonly Nested[] {
  const shapes = divisorsOf(length).map((rows) => ({ rows, columns: length / rows }));
  const least = Math.min(...shapes.map((shape) => volumeOf(shape, machine)));
  const worthwhile = shapes.filter((shape) => volumeOf(shape, machine) <= machine.most * least);
  const grids = worthwhile.flatMap(({ rows, columns }): readonly Nested[] => {
    const grid = { kind: "mesh2d", axis, length, shape: [rows, columns] } as const;
    // Rows within nodes and columns across them have links of their own, which two channels keep busy at once.
    const apart = machine.nodes > 1 && rows > 1 && columns > 1 && columns <= machine.gpusPerNode;
    const overlapped = { ...grid, schedule: "overlapped" } as const;
    return [{ ...grid, schedule: "fused" }, overlapped, ...(apart ? [{ ...overlapped, channels: 2 } as const] : [])];
  });
  return [{ kind: "ring", axis, length }, ...grids];
}

/**
 * What a rank of a grid sends with the full mask, forward and backward, in chunks of its queries: q, out, dOut and dq along
 * rows, k, v, dk and dv along columns. The closed form of mesh2d's messages, as if all had one width.
 */
function volumeOf({ rows, columns }: { rows: number; columns: number }, { group, parts }: Machine): number {
  return 5 * (columns - 1) + (6 / group) * parts * (rows - 1);
}

/** All divisors, from 1. */
export function divisorsOf(n: number): readonly number[] {
  return Array.from({ length: n }, (_, i) => i + 1).filter((d) => n % d === 0);
}
