import {
  dispatch,
  dispatchBounds,
  dispatchCandidates,
  type DispatchCost,
  type DispatchEvaluation,
  evaluateDispatch,
} from "@mosaic/backend-flex";
import { type Mask, masks } from "@mosaic/core";
import { distributions, drawLengths, generator } from "./lengths.ts";

const ROWS_PER_RANK = 8192;
const MILLION = 2 ** 20;
/** As in the cost's default: what a visible pair takes. */
const seconds = { forward: 6.5536e-11, both: 6.5536e-11 + 1.6384e-10 };

export interface MarksOptions {
  readonly seed: number;
  readonly passes: "forward" | "both";
}

interface Case {
  readonly name: string;
  readonly ranks: number;
  readonly chunkSize: number;
  readonly length: number;
  readonly documents: number;
  readonly mask: Mask;
}

/** One mask, number of ranks and chunk size: times in seconds, rows as shares of the sequence, mean over ranks. */
export interface MarksRow extends Omit<Case, "mask"> {
  readonly seed: number;
  readonly boundBy: "compute" | "links";
  readonly bound: number;
  readonly time: number;
  readonly others: Readonly<Record<"sequential" | "zigzag" | "documentZigzag" | "greedy", number | undefined>>;
  readonly imbalanceBound: number;
  readonly imbalance: number;
  readonly rowsBound: number;
  /** Of placements whose imbalance is within 2 % of its bound. */
  readonly balancedRowsBound: number;
  readonly rows: number;
  readonly zigzagRows: number;
  readonly greedyRows: number;
  /** Of one core, to place. */
  readonly solverSeconds: number;
  /** Marks that are not met. */
  readonly missed: readonly string[];
}

function casesOf(seed: number): Case[] {
  const draw = generator(seed);
  const packed = (name: string, [ranks, chunkSize, length]: readonly [number, number, number]): Case => {
    const lengths = drawLengths(length, distributions[name]!, draw);
    const mask = masks.documents(lengths, "causal");
    return { name, ranks, chunkSize, length, documents: lengths.length, mask };
  };
  const causal = (ranks: number, chunkSize: number): Case => {
    return { name: "causal", ranks, chunkSize, length: ranks * ROWS_PER_RANK, documents: 1, mask: masks.causal() };
  };
  const first = Object.keys(distributions)[0]!;
  return [
    causal(8, 2048),
    packed(first, [8, 2048, 8 * ROWS_PER_RANK]),
    packed(first, [64, 2048, 64 * ROWS_PER_RANK]),
    causal(64, 512),
    ...Object.keys(distributions).flatMap((name) => [
      ...[8, 64, 256].map((ranks) => packed(name, [ranks, 512, ranks * ROWS_PER_RANK])),
      packed(name, [256, 512, MILLION]),
    ]),
  ];
}

/** Ours beside bounds and other placements, of fresh draws by seed. */
export function* marks({ seed, passes }: MarksOptions): Generator<MarksRow> {
  const cost: DispatchCost = passes === "both" ? {} : { backward: 0 };
  for (const each of casesOf(seed)) yield { seed, ...rowOf(each, cost, seconds[passes]) };
}

function rowOf({ mask, ...known }: Case, cost: DispatchCost, pairSeconds: number): Omit<MarksRow, "seed"> {
  const { ranks, chunkSize, length } = known;
  const options = { mask, length, ranks, chunkSize, cost };
  const bounds = dispatchBounds(options);
  const candidates = dispatchCandidates(options);
  // Of one core's time, whatever else the machine does.
  const start = process.cpuUsage();
  const placement = dispatch(options);
  const { user, system } = process.cpuUsage(start);
  const evaluate = (each: typeof placement): DispatchEvaluation =>
    evaluateDispatch({ mask, length, ranks, cost, placement: each });
  const named = (wanted: string) => candidates.find((each) => each.name === wanted);
  const ours = evaluate(placement);
  const [greedy, zigzag] = [evaluate(named("greedy")!.placement), evaluate(named("zigzag")!.placement)];
  const mean = ours.ranks.reduce((sum, { pairs }) => sum + pairs, 0) / ranks;
  const share = (rows: number): number => rows / ranks / length;
  const row = {
    ...known,
    boundBy: bounds.time <= 1.001 * pairSeconds * bounds.imbalance * mean ? "compute" : "links",
    bound: bounds.time,
    time: ours.time,
    others: {
      sequential: named("sequential")?.time,
      zigzag: named("zigzag")?.time,
      documentZigzag: named("documentZigzag")?.time,
      greedy: named("greedy")?.time,
    },
    imbalanceBound: bounds.imbalance,
    imbalance: ours.imbalance,
    rowsBound: bounds.rows / length,
    balancedRowsBound: bounds.balancedRows / length,
    rows: share(ours.rows),
    zigzagRows: share(zigzag.rows),
    greedyRows: share(greedy.rows),
    solverSeconds: (user + system) / 1e6,
  } as const;
  const best = candidates.reduce((least, { objective }) => Math.min(least, objective), Number.POSITIVE_INFINITY);
  const missed = [...missedMarks(row), ...(ours.objective > best * (1 + 1e-9) ? ["objective"] : [])];
  return { ...row, missed };
}

/** What was aimed at, and not reached. */
function missedMarks(row: Omit<MarksRow, "missed" | "seed">): string[] {
  const { name, ranks, time, bound, boundBy, imbalance, imbalanceBound, rows, greedyRows, zigzagRows } = row;
  const missed: string[] = [];
  if (time > bound * (boundBy === "compute" ? 1.02 : 1.1)) missed.push("time");
  if (boundBy === "compute" && imbalance > Math.max(1.05, 1.02 * imbalanceBound)) missed.push("balance");
  const compared = name === "causal" ? zigzagRows : greedyRows;
  const most = name === "causal" ? 1 : ranks >= 64 ? 0.5 : 0.75;
  const least = (row.balancedRowsBound / compared).toFixed(2);
  if (rows > compared * most) missed.push(`rows (${(rows / compared).toFixed(2)}; balanced ≥ ${least})`);
  return missed;
}

/** A table in Markdown. */
export function marksTable(rows: readonly MarksRow[]): string {
  const head =
    "mask|P|chunk|tokens|documents|bound by|bound, ms|ours|/ bound|sequential|zigzag|document zigzag|greedy|imbalance bound|ours|rows bound|ours|zigzag|greedy|solver, s|missed";
  const ms = (time: number | undefined): string => (time === undefined ? "–" : (time * 1e3).toFixed(2));
  const lines = rows.map((row) => [
    row.name,
    row.ranks,
    row.chunkSize,
    `${row.length / 1024}K`,
    row.documents,
    row.boundBy,
    ms(row.bound),
    ms(row.time),
    (row.time / row.bound).toFixed(3),
    ...[row.others.sequential, row.others.zigzag, row.others.documentZigzag, row.others.greedy].map(ms),
    row.imbalanceBound.toFixed(3),
    row.imbalance.toFixed(3),
    ...[row.rowsBound, row.rows, row.zigzagRows, row.greedyRows].map((rowShare) => rowShare.toFixed(4)),
    row.solverSeconds.toFixed(2),
    row.missed.join(", "),
  ]);
  return markdownTable(head.split("|"), lines);
}

/** What a run comes to: how many rows meet all marks, the others, and times of the solver. */
export function marksSummary(rows: readonly MarksRow[]): string {
  const million = rows.filter(({ length, ranks }) => ranks === 256 && length === MILLION);
  const double = rows.filter(({ length, ranks }) => ranks === 256 && length > MILLION);
  const times = (of: readonly MarksRow[]): string => {
    const sorted = of.map(({ solverSeconds }) => solverSeconds).sort((a, b) => a - b);
    return `median ${sorted[sorted.length >> 1]!.toFixed(2)} s, maximum ${sorted.at(-1)!.toFixed(2)} s`;
  };
  const whole = rows.filter(({ missed }) => missed.length === 0).length;
  return [
    `${whole} of ${rows.length} rows meet all targets.`,
    ...rows
      .filter(({ missed }) => missed.length > 0)
      .map(
        ({ seed, name, ranks, chunkSize, length, boundBy, time, bound, missed }) =>
          `- seed ${seed}, ${name}, ${ranks} ranks, chunk ${chunkSize}, ${length / 1024}K tokens, bound by ${boundBy}: ${missed.join(", ")}; time ${(time / bound).toFixed(3)} × the bound`,
      ),
    `Solver, 1 M tokens on 256 ranks: ${times(million)}; 2 M: ${times(double)}.`,
  ].join("\n");
}

export function markdownTable(head: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
  const line = (cells: readonly (string | number)[]): string => `| ${cells.join(" | ")} |`;
  return [line(head), `|${head.map(() => "---").join("|")}|`, ...rows.map(line)].join("\n");
}
