import { parseArgs } from "node:util";
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

// Predicted step times of placements beside lower bounds, of fresh draws by seed:
//
//   npm run bench:dispatch -- --seed 20261123 --passes forward

const ROWS_PER_RANK = 8192;
/** As in the cost's default: what a visible pair takes. */
const seconds = { forward: 6.5536e-11, both: 6.5536e-11 + 1.6384e-10 };

const { values } = parseArgs({
  options: { seed: { type: "string", default: "20261123" }, passes: { type: "string", default: "forward" } },
});
const passes = values.passes === "both" ? "both" : "forward";
const cost: DispatchCost = passes === "both" ? {} : { backward: 0 };

interface Case {
  readonly name: string;
  readonly ranks: number;
  readonly chunkSize: number;
  readonly mask: Mask;
}

function casesOf(seed: number): Case[] {
  const draw = generator(seed);
  const packed = (name: string, ranks: number): Mask =>
    masks.documents(drawLengths(ranks * ROWS_PER_RANK, distributions[name]!, draw), "causal");
  const first = Object.keys(distributions)[0]!;
  return [
    { name: "causal", ranks: 8, chunkSize: 2048, mask: masks.causal() },
    { name: first, ranks: 8, chunkSize: 2048, mask: packed(first, 8) },
    { name: first, ranks: 64, chunkSize: 2048, mask: packed(first, 64) },
    { name: "causal", ranks: 64, chunkSize: 512, mask: masks.causal() },
    ...Object.keys(distributions).flatMap((name) =>
      [8, 64, 256].map((ranks) => ({ name, ranks, chunkSize: 512, mask: packed(name, ranks) })),
    ),
  ];
}

function rowOf({ name, ranks, chunkSize, mask }: Case): readonly string[] {
  const length = ranks * ROWS_PER_RANK;
  const options = { mask, length, ranks, chunkSize, cost };
  const bounds = dispatchBounds(options);
  const candidates = dispatchCandidates(options);
  // Of one core's time, whatever else the machine does.
  const start = process.cpuUsage();
  const placement = dispatch(options);
  const { user, system } = process.cpuUsage(start);
  const solved = (user + system) / 1e6;
  const evaluate = (each: typeof placement): DispatchEvaluation =>
    evaluateDispatch({ mask, length, ranks, cost, placement: each });
  const named = (wanted: string) => candidates.find((each) => each.name === wanted);
  const time = (wanted: string): string => ((named(wanted)?.time ?? Number.NaN) * 1e3).toFixed(2).replace("NaN", "–");
  const [ours, greedy, zigzag] = [
    evaluate(placement),
    evaluate(named("greedy")!.placement),
    evaluate(named("zigzag")!.placement),
  ];
  const mean = ours.ranks.reduce((sum, { pairs }) => sum + pairs, 0) / ranks;
  const isComputeBound = bounds.time <= 1.001 * seconds[passes] * bounds.imbalance * mean;
  const share = (rows: number): string => (rows / ranks / length).toFixed(4);
  const missed = missedMarks({ name, ranks, isComputeBound, bounds, ours, greedy, zigzag });
  return [
    name,
    String(ranks),
    String(chunkSize),
    isComputeBound ? "compute" : "links",
    (bounds.time * 1e3).toFixed(2),
    (ours.time * 1e3).toFixed(2),
    (ours.time / bounds.time).toFixed(3),
    ...["sequential", "zigzag", "documentZigzag", "greedy"].map(time),
    bounds.imbalance.toFixed(3),
    ours.imbalance.toFixed(3),
    share(bounds.rows * ranks),
    share(ours.rows),
    share(zigzag.rows),
    share(greedy.rows),
    solved.toFixed(2),
    missed.join(", "),
  ];
}

interface Found extends Pick<Case, "name" | "ranks"> {
  readonly isComputeBound: boolean;
  readonly bounds: ReturnType<typeof dispatchBounds>;
  readonly ours: DispatchEvaluation;
  readonly greedy: DispatchEvaluation;
  readonly zigzag: DispatchEvaluation;
}

/** What was aimed at, and not reached. */
function missedMarks({ name, ranks, isComputeBound, bounds, ours, greedy, zigzag }: Found): string[] {
  const missed: string[] = [];
  if (ours.time > bounds.time * (isComputeBound ? 1.02 : 1.1)) missed.push("time");
  if (isComputeBound && ours.imbalance > Math.max(1.05, 1.02 * bounds.imbalance)) missed.push("balance");
  const most = name === "causal" ? zigzag.rows : greedy.rows * (ranks >= 64 ? 0.5 : 0.75);
  if (ours.rows > most) missed.push(`rows (${(ours.rows / (name === "causal" ? zigzag : greedy).rows).toFixed(2)})`);
  return missed;
}

const head =
  "mask|P|chunk|bound by|bound, ms|ours|/ bound|sequential|zigzag|document zigzag|greedy|imbalance bound|ours|rows bound|ours|zigzag|greedy|solver, s|missed";
console.log(`| ${head.replaceAll("|", " | ")} |\n|${head.replaceAll(/[^|]+/g, "---")}|`);
for (const each of casesOf(Number(values.seed))) console.log(`| ${rowOf(each).join(" | ")} |`);
