import { dispatch, dispatchCandidates, documentZigzag, flex } from "@mosaic/backend-flex";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { type AttentionBackend, type Coordinate, type Mask, masks, type Placement, zigzag } from "@mosaic/core";
import { predict, type Profile, profiles } from "@mosaic/planner";
import { dispatchCost, stageCost } from "@mosaic/strategies/plan";
import { distributions, drawLengths, createUniformGenerator } from "./lengths.ts";
import { markdownTable } from "./marks.ts";

export const ROWS_PER_RANK = 8192;
export const headOptions = { numHeads: 64, numKvHeads: 8, headDim: 128 } as const;

/**
 * The planner's H100 profile: with 8 GPUs per node connected by NVLink, or with one GPU per node and its port of 400
 * Gbit/s.
 */
export const linkProfiles: Readonly<Record<"flat" | "two-level", Profile>> = {
  flat: { ...profiles["h100-ib400"], name: "h100-ib400, one rank per node", ranksPerNode: 1 },
  "two-level": profiles["h100-ib400"],
};
export type TopologyName = keyof typeof linkProfiles;

/** Seconds of one strategy, from the planner's simulation of the backend's own code. */
export interface ComparisonRow {
  readonly mask: string;
  readonly documents: number;
  readonly ranks: number;
  readonly links: TopologyName;
  readonly family: string;
  /** Name of the variant. If the family has several, it is the fastest. */
  readonly way: string;
  readonly forward: number;
  readonly backward: number;
}

interface Strategy {
  readonly family: string;
  readonly name: string;
  readonly backend: AttentionBackend;
  readonly mesh: Coordinate;
  readonly placement: Placement;
}

/**
 * Maximum of documents × ranks for zigzag per document. More take minutes to record, because each rank has two spans of
 * each document.
 */
const MAX_DOCUMENT_RANKS = 8192;

const maskNames = ["causal", "log-normal 7.2, 1.6", "GitHub", "ArXiv", "mixed 0.7K, 36K"] as const;

/** Yields the fastest strategy of each family per mask, number of ranks and kind of links. */
export function* compare(seed: number, rankCounts: readonly number[]): Generator<ComparisonRow> {
  const draw = createUniformGenerator(seed);
  for (const name of maskNames) {
    for (const ranks of rankCounts) {
      const tokens = ranks * ROWS_PER_RANK;
      const lengths = name === "causal" ? [tokens] : drawLengths(tokens, distributions[name]!, draw);
      const mask = name === "causal" ? masks.causal() : masks.documents(lengths, "causal");
      for (const links of ["flat", "two-level"] as const) {
        const bestRowByFamily = new Map<string, ComparisonRow>();
        for (const strategy of strategies({ mask, lengths, ranks, links })) {
          const { family, name: strategyName, ...runOptions } = strategy;
          const options = {
            ...headOptions,
            tokens,
            mask,
            ...hostAssignment(linkProfiles[links], ranks),
            ...runOptions,
          };
          const { forwardSeconds, backwardSeconds } = predict(options, linkProfiles[links], { keep: () => false });
          const times = { forward: forwardSeconds, backward: backwardSeconds };
          const bestRow = bestRowByFamily.get(family);
          if (bestRow && bestRow.forward + bestRow.backward <= forwardSeconds + backwardSeconds) continue;
          bestRowByFamily.set(family, {
            mask: name,
            documents: lengths.length,
            ranks,
            links,
            family,
            way: strategyName,
            ...times,
          });
        }
        yield* bestRowByFamily.values();
      }
    }
  }
}

interface ComparisonProblem {
  readonly mask: Mask;
  readonly lengths: readonly number[];
  readonly ranks: number;
  readonly links: TopologyName;
}

function* strategies({ mask, lengths, ranks, links }: ComparisonProblem): Generator<Strategy> {
  const profile = linkProfiles[links];
  const problem = { ...headOptions, profile, ranks };
  const [cost, flexCost] = [dispatchCost(problem), stageCost(problem)];
  const length = ranks * ROWS_PER_RANK;
  const flatMesh = { sp: ranks };
  const createNestedMesh = (inner: number): Coordinate => ({ node: ranks / inner, gpu: inner });
  const createNestedRing = (head?: string): AttentionBackend => {
    const nestedRing = ring({ axis: "node", inner: ring({ axis: "gpu" }) });
    return head === undefined ? nestedRing : ulysses({ axis: head, inner: nestedRing });
  };
  for (const chunkSize of [512, 1024]) {
    const dispatchStrategy = {
      family: "flex, dispatch",
      placement: dispatch({ mask, length, ranks, chunkSize, cost }),
    };
    const innerFlex = flex({ axis: "gpu", cost: flexCost });
    const nestedFlex = flex({ axis: "node", cost: flexCost, inner: innerFlex });
    yield {
      ...dispatchStrategy,
      name: `chunks of ${chunkSize}, flex`,
      backend: flex({ cost: flexCost }),
      mesh: flatMesh,
    };
    for (const degree of [1, 2, 4]) {
      const name = `chunks of ${chunkSize}, flex of ${degree} stages`;
      yield { ...dispatchStrategy, name, backend: flex({ stages: degree, cost: flexCost }), mesh: flatMesh };
    }
    yield {
      ...dispatchStrategy,
      name: `chunks of ${chunkSize}, flex across nodes, inner flex of 8 ranks`,
      backend: nestedFlex,
      mesh: createNestedMesh(8),
    };
  }
  for (const hp of [2, 4, 8]) {
    const [numHeads, numKvHeads] = [headOptions.numHeads / hp, headOptions.numKvHeads / hp];
    const ranksPerHost = Math.max(1, profile.ranksPerNode / hp);
    const headParallelCost = { ...dispatchCost({ ...problem, numHeads, numKvHeads }), ranksPerHost };
    const placement = subdivide(
      dispatch({ mask, length, ranks: ranks / hp, chunkSize: 512, cost: headParallelCost }),
      hp,
    );
    const backend = ulysses({ axis: "hp", inner: flex({ axis: "sp", cost: flexCost }) });
    const mesh = { sp: ranks / hp, hp };
    yield { family: "Ulysses × flex, dispatch", name: `ulysses ${hp} × flex ${ranks / hp}`, backend, mesh, placement };
  }
  const chunkSize = Math.min(2048, ROWS_PER_RANK / 8);
  const greedyCandidate = dispatchCandidates({ mask, length, ranks, chunkSize, cost }).find(
    ({ name }) => name === "greedy",
  )!;
  const magiStrategy = { family: "MagiAttention", placement: greedyCandidate.placement };
  for (const degree of [1, 2, 4]) {
    yield {
      ...magiStrategy,
      name: `degree ${degree}`,
      backend: flex({ stages: degree, cost: flexCost }),
      mesh: flatMesh,
    };
  }
  const contiguous: Placement = {
    name: "contiguous",
    spans: (i) => [{ start: i * ROWS_PER_RANK, length: ROWS_PER_RANK, step: 1 }],
  };
  yield { family: "ring, contiguous", name: "ring", backend: ring(), mesh: flatMesh, placement: contiguous };
  yield { family: "ring, zigzag", name: "ring", backend: ring(), mesh: flatMesh, placement: zigzag() };
  if (lengths.length * ranks <= MAX_DOCUMENT_RANKS) {
    const placement = documentZigzag(lengths);
    yield { family: "ring, zigzag per document", name: "ring", backend: ring(), mesh: flatMesh, placement };
  }
  yield { family: "Ulysses", name: `ulysses ${ranks}`, backend: ulysses(), mesh: flatMesh, placement: contiguous };
  for (const hp of [2, 4, 8]) {
    const backend = ulysses({ axis: "hp", inner: ring({ axis: "sp" }) });
    const mesh = { sp: ranks / hp, hp };
    yield { family: "USP", name: `ulysses ${hp} × ring ${ranks / hp}`, backend, mesh, placement: zigzag() };
  }
  for (const hp of [1, 2, 4]) {
    const [backend, gpusPerGroup] = [hp === 1 ? createNestedRing() : createNestedRing("hp"), 8 / hp];
    const mesh = { node: ranks / 8, gpu: gpusPerGroup, ...(hp === 1 ? {} : { hp }) };
    const name = `${hp === 1 ? "" : `ulysses ${hp} × `}rings ${ranks / 8} · ${gpusPerGroup}`;
    yield { family: "LoongTrain, double ring", name, backend, mesh, placement: zigzag() };
  }
}

/** Splits each shard of a placement, whose shards are equal, into `partsPerRank` consecutive equal parts. */
function subdivide(placement: Placement, partsPerRank: number): Placement {
  return {
    name: `${placement.name} in ${partsPerRank}`,
    spans(index, count, length) {
      const firstPosition = (index % partsPerRank) * ROWS_PER_RANK;
      let precedingPositions = 0;
      return placement.spans(Math.floor(index / partsPerRank), count / partsPerRank, length).flatMap((span) => {
        const [start, end] = [
          Math.max(precedingPositions, firstPosition),
          Math.min(precedingPositions + span.length, firstPosition + ROWS_PER_RANK),
        ];
        const clippedSpan = { ...span, start: span.start + start - precedingPositions, length: end - start };
        precedingPositions += span.length;
        return clippedSpan.length > 0 ? [clippedSpan] : [];
      });
    },
  };
}

/** Returns the node of each rank, or no hosts if every node has one rank. */
export function hostAssignment({ ranksPerNode }: Profile, ranks: number): { readonly hosts?: readonly number[] } {
  return ranksPerNode === 1
    ? {}
    : { hosts: Array.from({ length: ranks }, (_, rank) => Math.floor(rank / ranksPerNode)) };
}

const formatMilliseconds = (seconds: number): string => (seconds * 1e3).toFixed(2);

/**
 * Returns a Markdown table: forward + backward of each family in ms, and the time of the best baseline divided by ours.
 */
export function comparisonTable(rows: readonly ComparisonRow[]): string {
  const families = [...new Set(rows.map(({ family }) => family))];
  const groupLines = groupRows(rows).map((group) => {
    const { mask, documents, ranks, links } = group[0]!;
    const cells = families.map((family) => {
      const row = group.find((candidate) => candidate.family === family);
      return row ? `${formatMilliseconds(row.forward)} + ${formatMilliseconds(row.backward)}` : "–";
    });
    return [mask, documents, ranks, links, ...cells, speedupOverBaselines(group).toFixed(2)];
  });
  return markdownTable(["mask", "documents", "P", "links", ...families, "best baseline / ours"], groupLines);
}

/** Returns the time of the fastest baseline divided by the time of the fastest strategy that uses `dispatch`. */
function speedupOverBaselines(group: readonly ComparisonRow[]): number {
  const minSeconds = (rows: readonly ComparisonRow[]): number =>
    rows.reduce((seconds, { forward, backward }) => Math.min(seconds, forward + backward), Number.POSITIVE_INFINITY);
  return minSeconds(group.filter((row) => !usesDispatch(row))) / minSeconds(group.filter(usesDispatch));
}

/** Whether a strategy uses a placement of `dispatch`. */
export function usesDispatch({ family }: ComparisonRow): boolean {
  return family.endsWith("dispatch");
}

/** Groups rows by mask, number of ranks and kind of links. Our strategies come first, as in `rows`. */
export function groupRows(rows: readonly ComparisonRow[]): ComparisonRow[][] {
  const groups = new Map<string, ComparisonRow[]>();
  for (const row of rows) {
    const key = [row.mask, row.ranks, row.links].join("|");
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  return [...groups.values()];
}
