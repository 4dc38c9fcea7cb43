import { existsSync, readFileSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { parseProfile } from "@mosaic/attention/planner";
import { parseChoice, parseFlags, UsageError } from "@mosaic/program";
import { backendNames, gridDimensions } from "./backends.ts";
import {
  type MaskChoice,
  needsProfile,
  parseGridShape,
  type PlacementChoice,
  placementNames,
  type Settings,
} from "./job.ts";
import { maskForms, parseMask } from "./mask.ts";

const options = {
  tokens: { type: "string", default: "48502" },
  ranks: { type: "string" },
  mesh: { type: "string" },
  stages: { type: "string" },
  device: { type: "string" },
  backend: { type: "string", default: "ring" },
  causal: { type: "boolean", default: false },
  mask: { type: "string" },
  placement: { type: "string" },
  dtype: { type: "string", default: "float32" },
  backward: { type: "boolean", default: false },
  heads: { type: "string", default: "2" },
  dim: { type: "string", default: "64" },
  seed: { type: "string", default: "0" },
  json: { type: "boolean", default: false },
  svg: { type: "string", default: "mosaic-quickstart.svg" },
  dispatch: { type: "string", default: "" },
  predict: { type: "string", default: "" },
  profile: { type: "string" },
  html: { type: "string", default: "" },
  help: { type: "boolean", short: "h", default: false },
} as const;

const MAX_RANKS = 64;
const devices = ["cpu", "cuda"] as const;
const dtypes = ["float32", "bfloat16", "float16"] as const;

export const help: string = `Computes exact attention over one long sequence that is sharded over several ranks.

  npm run demo -- [options]

  --tokens N       sequence length (48502, the whole genome; longer sequences repeat it)
  --ranks N        number of processes (4, or the size of --mesh)
  --backend NAME   ${backendNames().join(", ")} (ring)
  --mesh AxB       two-dimensional mesh (default: as square as possible), for ${twoDimensionalBackends().join(", ")}
  --stages N       number of remote stages of flex, 0 to 64 (default: estimated optimum)
  --device NAME    ${devices.join(" or ")} (cuda if NCCL and one GPU per rank are available, otherwise cpu)
  --mask MASK      attention mask: ${maskForms().join(", ")} (full)
                   N documents of unequal lengths (32); causal windows or blocks of N tokens (1/16 of the sequence)
  --causal         same as --mask causal
  --placement NAME placement of the sequence: ${placementNames.join(", ")}
                   (dispatch for flex; zigzag if later tokens attend to more keys; otherwise contiguous)
  --dtype NAME     ${dtypes.join(", ")} (float32)
  --backward       also computes the gradients dq, dk, dv
  --heads N        number of attention heads (2)
  --dim N          head size, even, 2 to 256 (64)
  --seed N         random seed of embedding and projections (0)
  --svg FILE       timeline of compute and transfers by rank (mosaic-quickstart.svg; "" for none)
  --dispatch FILE  load and transfers of each rank, contiguous compared with the chosen placement (none)
  --predict FILE   timeline predicted by the planner for this machine, compared with the measurement (none)
  --profile FILE   machine profile for --predict and --backend auto, as JSON (default: this machine is measured)
  --html FILE      interactive page with the timeline, tiles, bytes by link and load (none)
  --json           prints one JSON object as the last line
  -h, --help       show this help`;

/** Parses the command line, without node and script. Returns the settings or "help", or throws a UsageError. */
export function parseSettings(args: readonly string[]): Settings | "help" {
  const values = parseFlags(args, options);
  if (values.help) return "help";
  const backend = parseChoice("backend", values.backend, backendNames());
  const heads = parseInteger("heads", values.heads, [1, 256]);
  const tokens = parseInteger("tokens", values.tokens, [1, 2 ** 24]);
  const mask = parseMaskOption(values, tokens);
  const settings: Settings = {
    tokens,
    ...parseRanks(values, backend, heads),
    ...parseStages(values, backend),
    backend,
    ...(values.device !== undefined && { device: parseChoice("device", values.device, devices) }),
    mask,
    placement: parsePlacement(values, backend, mask),
    dtype: parseChoice("dtype", values.dtype, dtypes),
    backward: values.backward,
    numHeads: heads,
    headDim: checkEven("dim", parseInteger("dim", values.dim, [2, 256])),
    seed: parseInteger("seed", values.seed, [0, 2 ** 32 - 1]),
    json: values.json,
    svgPath: checkWritable("svg", values.svg),
    dispatchPicturePath: checkWritable("dispatch", values.dispatch),
    predictionPicturePath: checkWritable("predict", values.predict),
    htmlPath: checkWritable("html", values.html),
    ...readProfile(values),
  };
  if (settings.device === "cuda" && needsProfile(settings)) {
    throw new UsageError(
      "--backend auto, --predict: expected --device cpu, because both profile the CPU; received cuda",
    );
  }
  if (settings.backend !== "local" || settings.ranks === 1) return settings;
  throw new UsageError(
    `--backend local: expected --ranks 1, because each rank attends to its local keys only; received ${settings.ranks}`,
  );
}

/** Returns the number of ranks and, for a backend with two dimensions, their shape. */
function parseRanks(
  { ranks, mesh }: { readonly ranks?: string; readonly mesh?: string },
  backend: string,
  heads: number,
): Pick<Settings, "ranks" | "shape"> {
  const dimensions = gridDimensions(backend);
  if (mesh === undefined) {
    const numRanks = parseInteger("ranks", ranks ?? "4", [1, MAX_RANKS]);
    return dimensions ? { ranks: numRanks, shape: dimensions.chooseShape(numRanks, heads) } : { ranks: numRanks };
  }
  if (!dimensions) {
    throw new UsageError(`--mesh: expected --backend ${twoDimensionalBackends().join(" or ")}, received ${backend}`);
  }
  const shape = parseGridShape(mesh);
  if (!shape) {
    throw new UsageError(`--mesh: expected ${dimensions.names.join(" × ")}, as in 2x4; received "${mesh}"`);
  }
  const numMeshRanks = shape[0] * shape[1];
  const requestedRanks = parseInteger("ranks", ranks ?? String(numMeshRanks), [1, MAX_RANKS]);
  if (requestedRanks === numMeshRanks) return { ranks: requestedRanks, shape };
  throw new UsageError(
    `--mesh: expected a shape of ${requestedRanks} ranks, received "${mesh}" with ${numMeshRanks} ranks`,
  );
}

function parseStages({ stages }: { readonly stages?: string }, backend: string): Pick<Settings, "stages"> {
  if (stages === undefined) return {};
  if (backend === "flex") return { stages: parseInteger("stages", stages, [0, 64]) };
  throw new UsageError(`--stages: expected --backend flex, received ${backend}`);
}

function parseMaskOption(
  { mask, causal }: { readonly mask?: string; readonly causal?: boolean },
  tokens: number,
): MaskChoice {
  const text = mask ?? (causal ? "causal" : "full");
  if (causal && text !== "causal") {
    throw new UsageError(`--causal: expected no other --mask, received ${text}`);
  }
  const choice = parseMask(text, tokens);
  if (choice) return choice;
  throw new UsageError(
    `--mask: expected one of ${maskForms().join(", ")}, with N from 1 to ${tokens}, the number of tokens; received "${text}"`,
  );
}

/** Returns the placement. If later tokens attend to more keys, the default gives each rank early and late tokens. */
function parsePlacement(
  { placement }: { readonly placement?: string },
  backend: string,
  { name }: MaskChoice,
): PlacementChoice {
  if (placement !== undefined) return parseChoice("placement", placement, placementNames);
  if (backend === "flex") return "dispatch";
  return name === "causal" || name === "block-causal" ? "zigzag" : "contiguous";
}

function twoDimensionalBackends(): readonly string[] {
  return backendNames().filter((name) => gridDimensions(name) !== undefined);
}

function parseInteger(name: string, text: string, [low, high]: readonly [number, number]): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value >= low && value <= high) return value;
  throw new UsageError(`--${name}: expected an integer from ${low} to ${high}, received "${text}"`);
}

function checkEven(name: string, value: number): number {
  if (value % 2 === 0) return value;
  throw new UsageError(
    `--${name}: expected an even number, because rotary embedding rotates pairs of elements; received ${value}`,
  );
}

/** Returns the path of a file whose directory exists. Checked before the run, not when the file is written. */
function checkWritable(name: string, path: string): string {
  const isDirectory = statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
  if (path === "" || (existsSync(dirname(path)) && !isDirectory)) return path;
  const received = isDirectory ? `the directory "${path}"` : `"${path}"`;
  throw new UsageError(`--${name}: expected a file in a directory that exists, received ${received}`);
}

/** Reads the profile of a machine that was measured before, so that it is not measured again. */
function readProfile({ profile }: { readonly profile?: string }): Pick<Settings, "profile"> {
  if (profile === undefined) return {};
  try {
    return { profile: parseProfile(readFileSync(profile, "utf8")) };
  } catch (error) {
    const { message } = error as Error;
    throw new UsageError(`--profile: expected a machine profile as JSON, received "${profile}": ${message}`, {
      cause: error,
    });
  }
}
