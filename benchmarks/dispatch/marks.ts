import {
  dispatch,
  dispatchBounds,
  dispatchCandidates,
  type DispatchCost,
  type DispatchEvaluation,
  evaluateDispatch,
} from "@mosaic/backend-flex";
import { type Mask, masks } from "@mosaic/core";
import { distributions, drawLengths, createUniformGenerator } from "./lengths.ts";

const ROWS_PER_RANK = 8192;
const MEBI = 2 ** 20;
/** Seconds per visible pair, as in the default cost. */
const secondsPerPair = { forward: 6.5536e-11, both: 6.5536e-11 + 1.6384e-10 };

export interface TargetsOptions {
  readonly seed: number;
  readonly passes: "forward" | "both";
}

interface ProblemCase {
  readonly name: string;
  readonly ranks: number;
  readonly chunkSize: number;
  readonly length: number;
  readonly documents: number;
  readonly mask: Mask;
}

/**
 * Results for one mask, number of ranks and chunk size. Times are in seconds. Rows are shares of the sequence, averaged
 * over ranks.
 */
export interface TargetsRow extends Omit<ProblemCase, "mask"> {
  readonly seed: number;
  readonly boundBy: "compute" | "links";
  readonly bound: number;
  readonly time: number;
  readonly others: Readonly<Record<"sequential" | "zigzag" | "documentZigzag" | "greedy", number | undefined>>;
  readonly imbalanceBound: number;
  readonly imbalance: number;
  readonly rowsBound: number;
  /** Lower bound on rows for placements whose imbalance is within 2 % of its bound. */
  readonly balancedRowsBound: number;
  readonly rows: number;
  readonly zigzagRows: number;
  readonly greedyRows: number;
  /** CPU seconds of the solver. */
  readonly solverSeconds: number;
  /** Targets that are not met. */
  readonly missed: readonly string[];
}

function createCases(seed: number): ProblemCase[] {
  const draw = createUniformGenerator(seed);
  const createPackedCase = (
    name: string,
    [ranks, chunkSize, length]: readonly [number, number, number],
  ): ProblemCase => {
    const lengths = drawLengths(length, distributions[name]!, draw);
    const mask = masks.documents(lengths, "causal");
    return { name, ranks, chunkSize, length, documents: lengths.length, mask };
  };
  const createCausalCase = (ranks: number, chunkSize: number): ProblemCase => {
    return { name: "causal", ranks, chunkSize, length: ranks * ROWS_PER_RANK, documents: 1, mask: masks.causal() };
  };
  const firstDistributionName = Object.keys(distributions)[0]!;
  return [
    createCausalCase(8, 2048),
    createPackedCase(firstDistributionName, [8, 2048, 8 * ROWS_PER_RANK]),
    createPackedCase(firstDistributionName, [64, 2048, 64 * ROWS_PER_RANK]),
    createCausalCase(64, 512),
    ...Object.keys(distributions).flatMap((name) => [
      ...[8, 64, 256].map((ranks) => createPackedCase(name, [ranks, 512, ranks * ROWS_PER_RANK])),
      createPackedCase(name, [256, 512, MEBI]),
    ]),
  ];
}

/** Yields results of `dispatch`, bounds and other placements, on masks drawn with the seed. */
export function* measureTargets({ seed, passes }: TargetsOptions): Generator<TargetsRow> {
  const cost: DispatchCost = passes === "both" ? {} : { backward: 0 };
  for (const problemCase of createCases(seed)) yield { seed, ...measureRow(problemCase, cost, secondsPerPair[passes]) };
}

function measureRow(
  { mask, ...caseFields }: ProblemCase,
  cost: DispatchCost,
  pairSeconds: number,
): Omit<TargetsRow, "seed"> {
  const { ranks, chunkSize, length } = caseFields;
  const options = { mask, length, ranks, chunkSize, cost };
  const bounds = dispatchBounds(options);
  const candidates = dispatchCandidates(options);
  // CPU time, which does not include other load on the machine.
  const startUsage = process.cpuUsage();
  const placement = dispatch(options);
  const { user, system } = process.cpuUsage(startUsage);
  const evaluate = (candidate: typeof placement): DispatchEvaluation =>
    evaluateDispatch({ mask, length, ranks, cost, placement: candidate });
  const findCandidate = (candidateName: string) => candidates.find((candidate) => candidate.name === candidateName);
  const dispatchResult = evaluate(placement);
  const [greedyResult, zigzagResult] = [
    evaluate(findCandidate("greedy")!.placement),
    evaluate(findCandidate("zigzag")!.placement),
  ];
  const meanPairs = dispatchResult.ranks.reduce((sum, { pairs }) => sum + pairs, 0) / ranks;
  const shareOfSequence = (rows: number): number => rows / ranks / length;
  const row = {
    ...caseFields,
    boundBy: bounds.time <= 1.001 * pairSeconds * bounds.imbalance * meanPairs ? "compute" : "links",
    bound: bounds.time,
    time: dispatchResult.time,
    others: {
      sequential: findCandidate("sequential")?.time,
      zigzag: findCandidate("zigzag")?.time,
      documentZigzag: findCandidate("documentZigzag")?.time,
      greedy: findCandidate("greedy")?.time,
    },
    imbalanceBound: bounds.imbalance,
    imbalance: dispatchResult.imbalance,
    rowsBound: bounds.rows / length,
    balancedRowsBound: bounds.balancedRows / length,
    rows: shareOfSequence(dispatchResult.rows),
    zigzagRows: shareOfSequence(zigzagResult.rows),
    greedyRows: shareOfSequence(greedyResult.rows),
    solverSeconds: (user + system) / 1e6,
  } as const;
  const minObjective = candidates.reduce((min, { objective }) => Math.min(min, objective), Number.POSITIVE_INFINITY);
  const missedNames = [
    ...findMissedTargets(row),
    ...(dispatchResult.objective > minObjective * (1 + 1e-9) ? ["objective"] : []),
  ];
  return { ...row, missed: missedNames };
}

/** Returns the targets that a row does not meet. */
function findMissedTargets(row: Omit<TargetsRow, "missed" | "seed">): string[] {
  const { name, ranks, time, bound, boundBy, imbalance, imbalanceBound, rows, greedyRows, zigzagRows } = row;
  const missedNames: string[] = [];
  if (time > bound * (boundBy === "compute" ? 1.02 : 1.1)) missedNames.push("time");
  if (boundBy === "compute" && imbalance > Math.max(1.05, 1.02 * imbalanceBound)) missedNames.push("balance");
  const baselineRows = name === "causal" ? zigzagRows : greedyRows;
  const maxRatio = name === "causal" ? 1 : ranks >= 64 ? 0.5 : 0.75;
  const minRatioText = (row.balancedRowsBound / baselineRows).toFixed(2);
  if (rows > baselineRows * maxRatio)
    missedNames.push(`rows (${(rows / baselineRows).toFixed(2)}; balanced ≥ ${minRatioText})`);
  return missedNames;
}

/** Returns the rows as a Markdown table. */
export function targetsTable(rows: readonly TargetsRow[]): string {
  const head =
    "mask|P|chunk|tokens|documents|bound by|bound, ms|ours, ms|ours / bound|sequential, ms|zigzag, ms|document zigzag, ms|greedy, ms|imbalance bound|imbalance|rows bound|rows, ours|rows, zigzag|rows, greedy|solver, s|missed";
  const formatMilliseconds = (time: number | undefined): string => (time === undefined ? "–" : (time * 1e3).toFixed(2));
  const lines = rows.map((row) => [
    row.name,
    row.ranks,
    row.chunkSize,
    `${row.length / 1024}K`,
    row.documents,
    row.boundBy,
    formatMilliseconds(row.bound),
    formatMilliseconds(row.time),
    (row.time / row.bound).toFixed(3),
    ...[row.others.sequential, row.others.zigzag, row.others.documentZigzag, row.others.greedy].map(formatMilliseconds),
    row.imbalanceBound.toFixed(3),
    row.imbalance.toFixed(3),
    ...[row.rowsBound, row.rows, row.zigzagRows, row.greedyRows].map((rowShare) => rowShare.toFixed(4)),
    row.solverSeconds.toFixed(2),
    row.missed.join(", "),
  ]);
  return markdownTable(head.split("|"), lines);
}

/** Summarizes a run: the number of rows that meet all targets, the other rows, and times of the solver. */
export function targetsSummary(rows: readonly TargetsRow[]): string {
  const rowsOf1MTokens = rows.filter(({ length, ranks }) => ranks === 256 && length === MEBI);
  const rowsOf2MTokens = rows.filter(({ length, ranks }) => ranks === 256 && length > MEBI);
  const formatTimes = (timedRows: readonly TargetsRow[]): string => {
    const sortedSeconds = timedRows.map(({ solverSeconds }) => solverSeconds).sort((a, b) => a - b);
    return `median ${sortedSeconds[sortedSeconds.length >> 1]!.toFixed(2)} s, maximum ${sortedSeconds.at(-1)!.toFixed(2)} s`;
  };
  const numPassed = rows.filter(({ missed }) => missed.length === 0).length;
  return [
    `${numPassed} of ${rows.length} rows meet all targets.`,
    ...rows
      .filter(({ missed }) => missed.length > 0)
      .map(
        ({ seed, name, ranks, chunkSize, length, boundBy, time, bound, missed }) =>
          `- seed ${seed}, ${name}, ${ranks} ranks, chunk ${chunkSize}, ${length / 1024}K tokens, bound by ${boundBy}: missed targets ${missed.join(", ")}; time ${(time / bound).toFixed(3)} × the bound`,
      ),
    `Time of the solver, 1 M tokens on 256 ranks: ${formatTimes(rowsOf1MTokens)}; 2 M tokens: ${formatTimes(rowsOf2MTokens)}.`,
  ].join("\n");
}

export function markdownTable(head: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
  const formatLine = (cells: readonly (string | number)[]): string => `| ${cells.join(" | ")} |`;
  return [formatLine(head), `|${head.map(() => "---").join("|")}|`, ...rows.map(formatLine)].join("\n");
}
