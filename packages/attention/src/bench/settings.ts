import { type DType, dtypeBytes, type Mask, type PlacementName } from "@mosaic/core";
import {
  checkMaskLength,
  maskUsages,
  parseChoice,
  parseCount,
  parseMask,
  parseOptions,
  UsageError,
} from "@mosaic/strategies/command-line";

/** Settings of one run of `mosaic-bench`. */
export interface BenchSettings {
  readonly seqLengths: readonly number[];
  /** The first backend is the baseline of the comparison. */
  readonly backends: readonly string[];
  readonly ranks: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly dtype: DType;
  readonly mask: Mask;
  readonly placement: PlacementName;
  readonly backward: boolean;
  /** Number of rounds, each with one measurement of each backend. One additional round is warm-up. */
  readonly repetitions: number;
  readonly json: boolean;
  readonly svg: string | undefined;
}

const backendNames = ["local", "ring", "mesh2d", "ulysses", "flex"] as const;
const placementNames = ["contiguous", "zigzag", "striped"] as const;
const dtypeNames = Object.keys(dtypeBytes) as DType[];

const options = {
  "seq-lengths": { type: "string", default: "1k,4k" },
  backends: { type: "string", default: "local,ring" },
  ranks: { type: "string", default: "2" },
  heads: { type: "string", default: "8" },
  "kv-heads": { type: "string" },
  "head-dim": { type: "string", default: "64" },
  dtype: { type: "string", default: "float32" },
  mask: { type: "string", default: "causal" },
  placement: { type: "string" },
  backward: { type: "boolean", default: false },
  repetitions: { type: "string", default: "5" },
  json: { type: "boolean", default: false },
  svg: { type: "string" },
  help: { type: "boolean", short: "h", default: false },
  version: { type: "boolean", short: "V", default: false },
} as const;

export const help = `mosaic-bench: measures the time of attention with each backend on this machine's CPU, side by side in one run.

  npx mosaic-bench --seq-lengths 1k,4k,16k --backends local,ring,ulysses --ranks 4 [options]

  --seq-lengths A,B  sequence lengths; k, M and G are powers of 1024 (1k,4k)
  --backends A,B     any of ${backendNames.join(", ")}; the first one is the baseline (local,ring).
                     local is one device with the threads of all ranks
  --ranks N          number of ranks; all run in this process and share its cores (2)
  --heads N          number of query heads (8)
  --kv-heads N       number of KV heads, a divisor of --heads (same as --heads)
  --head-dim N       head size (64)
  --dtype NAME       ${dtypeNames.join(", ")} (float32)
  --mask MASK        a mask of mosaic-plan: ${maskUsages.slice(0, 5).join(", ")}, … (causal)
  --placement NAME   ${placementNames.join(", ")} (zigzag if the mask is causal, else contiguous)
  --backward         measure the forward and the backward
  --repetitions N    number of rounds; the median is reported (5)
  --json             print one JSON object instead of the table
  --svg FILE         write a chart
  -h, --help         show this help
  -V, --version      show the version of @mosaic/attention

Exit code: 0 on success; 1 if a backend cannot run; 2 if the command line is invalid.`;

/**
 * Parses the command line (without node and script). Returns "help" or "version" if it is requested. Throws a
 * UsageError.
 */
export function parseBenchSettings(args: readonly string[]): BenchSettings | "help" | "version" {
  const values = parseOptions("mosaic-bench", args, options);
  if (values.help) return "help";
  if (values.version) return "version";
  const numHeads = parseCount("heads", values.heads);
  const numKvHeads = values["kv-heads"] === undefined ? numHeads : parseCount("kv-heads", values["kv-heads"]);
  if (numHeads % numKvHeads !== 0)
    throw new UsageError(`--kv-heads: expected a divisor of --heads ${numHeads}, received ${numKvHeads}`);
  const mask = parseMask(values.mask);
  const seqLengths = values["seq-lengths"].split(",").map((length) => parseCount("seq-lengths", length));
  for (const length of seqLengths) checkMaskLength(values.mask, mask, length);
  return {
    seqLengths,
    backends: values.backends.split(",").map((name) => parseChoice("backends", name, backendNames)),
    ranks: parseCount("ranks", values.ranks),
    numHeads,
    numKvHeads,
    headDim: parseCount("head-dim", values["head-dim"]),
    dtype: parseChoice("dtype", values.dtype, dtypeNames),
    mask,
    placement: parseChoice(
      "placement",
      values.placement ?? (values.mask === "causal" ? "zigzag" : "contiguous"),
      placementNames,
    ),
    backward: values.backward,
    repetitions: parseCount("repetitions", values.repetitions),
    json: values.json,
    svg: values.svg,
  };
}
