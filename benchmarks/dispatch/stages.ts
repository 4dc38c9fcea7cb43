import { dispatch, flex } from "@mosaic/backend-flex";
import { type Mask, masks } from "@mosaic/core";
import { predict } from "@mosaic/planner";
import { dispatchCost, stageCost } from "@mosaic/strategies/plan";
import { headOptions, hostAssignment, type TopologyName, linkProfiles, ROWS_PER_RANK } from "./comparison.ts";
import { distributions, drawLengths, createUniformGenerator } from "./lengths.ts";
import { markdownTable } from "./marks.ts";

const stageCounts = [0, 1, 2, 4, 8, 16] as const;
const packedDistributions = [
  "log-normal 7.2, 1.6",
  "GitHub",
  "ArXiv",
  "mixed 0.7K, 36K",
  "Pareto 1.5 from 1024",
  "Books3",
];

/** Simulated seconds of one pass, with the number of stages that flex chooses and with fixed numbers of stages. */
export interface StagesRow {
  readonly mask: string;
  readonly ranks: number;
  readonly links: TopologyName;
  readonly pass: "forward" | "backward";
  readonly autoSeconds: number;
  readonly secondsByStageCount: readonly number[];
}

/** Yields times with chosen and with fixed numbers of stages, for every mask, number of ranks and kind of links. */
export function* predictStageTimes(seed: number, rankCounts: readonly number[]): Generator<StagesRow> {
  for (const ranks of rankCounts) {
    const tokens = ranks * ROWS_PER_RANK;
    for (const [name, mask] of createMasks(seed, tokens)) {
      const cost = dispatchCost({ ...headOptions, profile: linkProfiles.flat, ranks });
      const placement = dispatch({ mask, length: tokens, ranks, chunkSize: 512, cost });
      for (const links of ["flat", "two-level"] as const) {
        const profile = linkProfiles[links];
        const predictions = [undefined, ...stageCounts].map((stages) => {
          const backend = flex({
            cost: stageCost({ ...headOptions, profile, ranks }),
            ...(stages !== undefined && { stages }),
          });
          const attentionOptions = {
            ...headOptions,
            tokens,
            mask,
            placement,
            backend,
            mesh: { sp: ranks },
            ...hostAssignment(profile, ranks),
          };
          return predict(attentionOptions, profile, { keep: () => false });
        });
        for (const pass of ["forward", "backward"] as const) {
          const [autoSeconds, ...secondsByStageCount] = predictions.map((result) => result[`${pass}Seconds`]) as [
            number,
            ...number[],
          ];
          yield { mask: name, ranks, links, pass, autoSeconds, secondsByStageCount };
        }
      }
    }
  }
}

function createMasks(seed: number, tokens: number): [string, Mask][] {
  const draw = createUniformGenerator(seed);
  const createDocumentMask = (name: string): Mask =>
    masks.documents(drawLengths(tokens, distributions[name]!, draw), "causal");
  return [
    ["full", masks.full()],
    ["causal", masks.causal()],
    ["window of 4096", masks.slidingWindow(4096)],
    ["blocks of 4096, causal", masks.blockCausal(4096)],
    ...packedDistributions.map((name): [string, Mask] => [name, createDocumentMask(name)]),
  ];
}

/**
 * Returns a Markdown table in ms, and the number of rows in which the choice is within 5 % of the best fixed number.
 */
export function stagesTable(rows: readonly StagesRow[]): string {
  const formatMilliseconds = (seconds: number): string => (seconds * 1e3).toFixed(2);
  const autoToBestRatio = ({ autoSeconds, secondsByStageCount }: StagesRow): number =>
    autoSeconds / Math.min(...secondsByStageCount);
  const lines = rows.map((row) => {
    const { mask, ranks, links, pass, autoSeconds, secondsByStageCount } = row;
    return [
      mask,
      ranks,
      links,
      pass,
      formatMilliseconds(autoSeconds),
      ...secondsByStageCount.map(formatMilliseconds),
      autoToBestRatio(row).toFixed(3),
    ];
  });
  const head = ["mask", "P", "links", "pass", "chosen", ...stageCounts.map(String), "chosen / best fixed"];
  const numNearOptimal = rows.filter((row) => autoToBestRatio(row) <= 1.05).length;
  const maxRatio = rows.reduce((max, row) => Math.max(max, autoToBestRatio(row)), 0);
  return `${markdownTable(head, lines)}\n\n${numNearOptimal} of ${rows.length} within 5 % of the best fixed number of stages; largest ratio ${maxRatio.toFixed(3)}.`;
}
