// Each parser returns the value of an option, or reports what would be valid.
import { readFileSync } from "node:fs";
import { type DType, dtypeBytes, MosaicError, type PlacementName } from "@mosaic/core";
import { maxRecordedRanks, parseProfile, type Profile, profiles } from "@mosaic/planner";
import { type PlanOptions, resolveJob } from "../plan/job.ts";
import { UsageError } from "./load.ts";
import { checkMaskLength, maskUsages, parseMask } from "./mask.ts";
import { parseChoice, parseOptions } from "./options.ts";
import { parseBytes, parseCount } from "./quantity.ts";

const dtypes: readonly DType[] = Object.keys(dtypeBytes) as DType[];
const placements: readonly PlacementName[] = ["contiguous", "zigzag", "striped"];

/** Settings of one run of `mosaic-plan`. */
export interface Settings {
  readonly plan: PlanOptions;
  /** Modules that create candidates. */
  readonly backends: readonly string[];
  readonly json: boolean;
  /** Number of table rows, and whether every grid and schedule has a row. */
  readonly top: number;
  readonly all: boolean;
  /** Files for the best strategy's timeline, tile map and trace. */
  readonly svg: string | undefined;
  readonly tiles: string | undefined;
  readonly trace: string | undefined;
  /** The file for a page with all of these, and more. */
  readonly html: string | undefined;
  readonly prove: boolean;
}

const options = {
  tokens: { type: "string" },
  heads: { type: "string" },
  "kv-heads": { type: "string" },
  "head-dim": { type: "string", default: "128" },
  batch: { type: "string", default: "1" },
  dtype: { type: "string", default: "bfloat16" },
  mask: { type: "string", default: "causal" },
  placement: { type: "string" },
  nodes: { type: "string", default: "1" },
  "gpus-per-node": { type: "string", default: "8" },
  profile: { type: "string", default: "h100-ib400" },
  "memory-limit": { type: "string" },
  backend: { type: "string", multiple: true, default: [] as string[] },
  simulate: { type: "string" },
  top: { type: "string", default: "10" },
  all: { type: "boolean", default: false },
  json: { type: "boolean", default: false },
  svg: { type: "string" },
  tiles: { type: "string" },
  trace: { type: "string" },
  html: { type: "string" },
  prove: { type: "boolean", default: false },
  help: { type: "boolean", short: "h", default: false },
  version: { type: "boolean", short: "V", default: false },
} as const;

/** Wraps words into lines in the column of the help. */
function wrapWords(words: readonly string[]): string {
  const lines: string[] = [];
  for (const word of words) {
    const lastLine = lines.at(-1);
    if (lastLine !== undefined && lastLine.length + word.length < 90) lines[lines.length - 1] = `${lastLine}, ${word}`;
    else lines.push(word);
  }
  return lines.map((line, i) => `${" ".repeat(23)}${line}${i < lines.length - 1 ? "," : ""}`).join("\n");
}

export const help: string = `mosaic-plan: ranks strategies for one attention call, forward and backward, on a cluster by predicted time.

  npx mosaic-plan --tokens 1M --heads 32 --kv-heads 8 --head-dim 128 --nodes 32 --gpus-per-node 8

Attention
  --tokens N         sequence length; k, M and G are powers of 1024
  --heads N          number of query heads
  --kv-heads N       number of KV heads, a divisor of --heads (same as --heads)
  --head-dim N       head size (128)
  --batch N          number of sequences (1)
  --dtype NAME       ${dtypes.join(", ")} (bfloat16)
  --mask MASK        one of (causal)
${wrapWords(maskUsages)}
                     LENGTHS is a list such as 8k,512,4x2k; documents applies its MASK to each document. A+B is the
                     union of two masks, "A&B" their intersection: "slidingWindow:4k+causal&globalTokens:4"
  --placement NAME   ${placements.join(", ")} (zigzag if causal, else contiguous)

Cluster
  --nodes N          number of nodes (1)
  --gpus-per-node N  number of ranks per node (8)
  --profile NAME     ${Object.keys(profiles).join(", ")}, or a .json file from calibrate() (h100-ib400)
  --memory-limit N   memory limit per rank, such as 80GB or 512MiB; includes inputs, results and gradients (no limit)

Candidates
  --backend FILE     a module whose default export creates a backend: ({ ranks, nodes, … }) => backend, or
                     => { backend, mesh, name }; may be repeated
  --simulate N       number of best strategies to simulate in full (as many as take some seconds)

Output
  --top N            number of table rows (10)
  --all              list every grid and schedule, not only the best of each nesting
  --json             print one JSON object instead of table and code
  --svg FILE         write the timeline of the best strategy
  --tiles FILE       write its tile map: which rank computes which tile; up to ${maxRecordedRanks} ranks
  --trace FILE       write its timeline for Perfetto
  --html FILE        write a page with its timeline, tiles, bytes by link, memory and load
  --prove            prove that the best strategy is exact and free of deadlock
  -h, --help         show this help
  -V, --version      show the version of @mosaic/strategies

Exit code: 0 on success; 1 if no strategy runs or fits, the proof fails, or the output cannot be written; 2 if the
command line is invalid.`;

type Values = ReturnType<typeof parseOptions<typeof options>>;

/**
 * Parses the command line (without node and script). Returns "help" or "version" if it is requested; throws a UsageError.
 */
export function parseSettings(args: readonly string[]): Settings | "help" | "version" {
  const values = parseOptions("mosaic-plan", args, options);
  if (values.help) return "help";
  if (values.version) return "version";
  const { svg, tiles, trace, html, prove, json, all } = values;
  const [nodes, gpusPerNode] = [
    parseCount("nodes", values.nodes),
    parseCount("gpus-per-node", values["gpus-per-node"]),
  ];
  if (tiles !== undefined && nodes * gpusPerNode > maxRecordedRanks) {
    throw new UsageError(
      `--tiles: expected at most ${maxRecordedRanks} ranks, as each is drawn, received ${nodes * gpusPerNode}; use --svg, --trace or --html`,
    );
  }
  return {
    plan: checkPlanOptions({
      ...parseShape(values),
      nodes,
      gpusPerNode,
      profile: parseProfileOption(values.profile),
      keepEvents: svg !== undefined || trace !== undefined || html !== undefined,
      ...(values["memory-limit"] !== undefined && { memoryLimit: parseBytes("memory-limit", values["memory-limit"]) }),
      ...(values.simulate !== undefined && { simulate: parseCount("simulate", values.simulate) }),
    }),
    backends: values.backend,
    top: parseCount("top", values.top),
    all,
    json,
    svg,
    tiles,
    trace,
    html,
    prove,
  };
}

/** Throws a UsageError for numbers that `plan` rejects, such as too many ranks. */
function checkPlanOptions(plan: PlanOptions): PlanOptions {
  try {
    resolveJob("plan", plan);
    return plan;
  } catch (error) {
    if (!(error instanceof MosaicError)) throw error;
    throw new UsageError(error.message, { cause: error });
  }
}

type ShapeOptions = Pick<
  PlanOptions,
  "tokens" | "numHeads" | "numKvHeads" | "headDim" | "batch" | "dtype" | "mask" | "placement"
>;

function parseShape(values: Values): ShapeOptions {
  const numHeads = parseCount("heads", requireOption("heads", values.heads));
  const numKvHeads = values["kv-heads"] === undefined ? numHeads : parseCount("kv-heads", values["kv-heads"]);
  if (numHeads % numKvHeads !== 0) {
    throw new UsageError(`--kv-heads: expected a divisor of --heads ${numHeads}, received ${numKvHeads}`);
  }
  const tokens = parseCount("tokens", requireOption("tokens", values.tokens));
  const mask = parseMask(values.mask);
  checkMaskLength(values.mask, mask, tokens);
  return {
    tokens,
    numHeads,
    numKvHeads,
    headDim: parseCount("head-dim", values["head-dim"]),
    batch: parseCount("batch", values.batch),
    dtype: parseChoice("dtype", values.dtype, dtypes),
    mask,
    ...(values.placement !== undefined && { placement: parseChoice("placement", values.placement, placements) }),
  };
}

const optionExamples = { tokens: "128k", heads: "32" };

function requireOption(name: keyof typeof optionExamples, text: string | undefined): string {
  if (text !== undefined) return text;
  throw new UsageError(
    `--${name}: expected an integer ≥ 1, such as ${optionExamples[name]}, received nothing; mosaic-plan --help lists all options`,
  );
}

function parseProfileOption(text: string): Profile {
  if (Object.hasOwn(profiles, text)) return profiles[text as keyof typeof profiles];
  if (!text.endsWith(".json")) {
    throw new UsageError(
      `--profile: expected one of ${Object.keys(profiles).join(", ")}, or the path of a .json file, received "${text}"`,
    );
  }
  try {
    return parseProfile(readFileSync(text, "utf8"));
  } catch (error) {
    throw new UsageError(`--profile ${text}: ${(error as Error).message}`, { cause: error });
  }
}
