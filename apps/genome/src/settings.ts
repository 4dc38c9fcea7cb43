import { parseChoice, parseFlags, toOptionName, UsageError } from "@mosaic/program";
import { HELD_OUT_RANGE, MOTIF_LENGTH } from "./masked-bases.ts";

const sharedDefaults = {
  method: "meta",
  topK: 2,
  ranks: 4,
  seed: 0,
  checkpointEvery: 50,
  evaluateEvery: 50,
  outputDir: "",
} as const;

/** Default settings of each task. */
const defaultsByTask: Readonly<Record<Settings["task"], Settings>> = {
  genome: {
    ...sharedDefaults,
    task: "genome",
    embedDim: 64,
    heads: 2,
    layers: 2,
    chunks: 16,
    chunkLength: 128,
    warmup: 40,
    batch: 1,
    steps: 100,
    learningRate: 3e-3,
    teacher: 0.1,
  },
  planted: {
    ...sharedDefaults,
    task: "planted",
    embedDim: 128,
    heads: 1,
    layers: 1,
    chunks: 16,
    chunkLength: 48,
    warmup: 400,
    batch: 4,
    steps: 500,
    learningRate: 2e-3,
    teacher: 10,
  },
};

const integerOptions = [
  "topK",
  "embedDim",
  "heads",
  "layers",
  "chunks",
  "chunkLength",
  "warmup",
  "ranks",
  "batch",
  "steps",
  "seed",
  "checkpointEvery",
  "evaluateEvery",
] as const satisfies readonly (keyof Settings)[];
const numberOptions = ["learningRate", "teacher"] as const satisfies readonly (keyof Settings)[];

const optionTexts: Readonly<Record<(typeof integerOptions | typeof numberOptions)[number], string>> = {
  topK: "chunks that each chunk attends to beside itself, with --method meta",
  embedDim: "embedding dimension",
  heads: "number of attention heads",
  layers: "number of layers",
  chunks: "number of chunks in a sequence",
  chunkLength: "number of bases in a chunk",
  warmup:
    "steps over which the number of chunks that each chunk attends to decreases from all to --top-k, with --method meta",
  ranks: "number of ranks",
  batch: "batch size, in sequences",
  steps: "number of training steps",
  seed: "random seed",
  checkpointEvery: "steps between checkpoints",
  evaluateEvery: "steps between evaluations",
  learningRate: "learning rate",
  teacher: "weight of the loss that trains the router on the attention mass of chunks, with --method meta",
};

/** Options of routing, which only the method "meta" has. */
const routingOptions = ["topK", "warmup", "teacher"] as const satisfies readonly (keyof Settings)[];
const isRoutingOption = (name: string): boolean => routingOptions.some((option) => option === name);

/** Help text of all options. */
export const help: string = `  --task genome|planted   predict masked bases of λ, or of repeats planted in random bases (genome)
  --method ring|meta|local   attention method (meta)
${[...integerOptions, ...numberOptions]
  .map(
    (name) =>
      `  --${toOptionName(name)} N   ${optionTexts[name]} (${Object.values(defaultsByTask)
        .map((taskDefaults) => `${taskDefaults.task}: ${taskDefaults[name]}`)
        .join(", ")})`,
  )
  .join("\n")}
  --output-dir PATH   folder of the curve and the checkpoint; training resumes from a checkpoint found there`;

/** Options that a command sets itself. They are rejected on the command line, because they would be ignored. */
type FixedOptions = Readonly<Record<string, string>>;

/** Parses the options of a training. Throws a UsageError for invalid options and for fixed ones. */
export function parseSettings(args: readonly string[], fixedOptions: FixedOptions = {}): Settings {
  const names = ["task", "method", "output-dir", ...[...integerOptions, ...numberOptions].map(toOptionName)];
  const parsedOptions = parseFlags(args, Object.fromEntries(names.map((name) => [name, { type: "string" } as const])));
  const redundantFlag = Object.keys(fixedOptions).find((flag) => parsedOptions[flag] !== undefined);
  if (redundantFlag !== undefined) {
    const receivedText = `"${parsedOptions[redundantFlag]}"`;
    throw new UsageError(
      `--${redundantFlag}: expected no value, because this command sets the option; received ${receivedText}`,
    );
  }
  const values: Readonly<Record<string, string | undefined>> = { ...parsedOptions, ...fixedOptions };
  const task = parseChoice("task", values["task"] ?? "genome", tasks);
  const taskDefaults = defaultsByTask[task];
  const parsedNumbers: Record<string, number> = {};
  for (const name of [...integerOptions, ...numberOptions]) {
    const text = values[toOptionName(name)];
    if (text !== undefined)
      parsedNumbers[name] = parseNumber(toOptionName(name), text, name in { learningRate: 0, teacher: 0 });
  }
  const method = parseChoice("method", values["method"] ?? taskDefaults.method, methods);
  const unusedOption = method === "meta" ? undefined : routingOptions.find((name) => parsedNumbers[name] !== undefined);
  if (unusedOption !== undefined) {
    throw new UsageError(
      `--${toOptionName(unusedOption)}: expected no value with --method ${method}, which has no router; received "${parsedNumbers[unusedOption]}"; omit it or use --method meta`,
    );
  }
  const settings: Settings = { ...taskDefaults, ...parsedNumbers, method };
  const outputDir =
    values["output-dir"] ?? `runs/${task}-${method}${method === "meta" ? settings.topK : ""}-${settings.seed}`;
  return checkSettings({ ...settings, outputDir });
}

/** Throws a UsageError for any option of a command that has none. */
export function checkNoOptions(command: string, args: readonly string[]): void {
  if (args.length > 0) throw new UsageError(`${command}: expected no options, received "${args.join(" ")}"`);
}

/** The command line that `parseSettings` parses into these settings. */
export function formatArgs(settings: Settings): readonly string[] {
  return Object.entries(settings)
    .filter(([name]) => settings.method === "meta" || !isRoutingOption(name))
    .flatMap(([name, value]) => [`--${toOptionName(name)}`, String(value)]);
}

const POSITIVE_SETTINGS = ["ranks", "chunks", "chunkLength", "batch", "steps", "embedDim", "heads", "layers"] as const;
/** Maximum length of a sequence. A longer sequence would be evaluated on training data. */
const MAX_LENGTH = HELD_OUT_RANGE.end - HELD_OUT_RANGE.start;

function checkSettings(settings: Settings): Settings {
  const { task, chunks, chunkLength, ranks, method, topK, embedDim, heads } = settings;
  for (const name of POSITIVE_SETTINGS) {
    if (settings[name] < 1)
      throw new UsageError(`--${toOptionName(name)}: expected at least 1, received ${settings[name]}`);
  }
  if (embedDim % heads !== 0) {
    throw new UsageError(`--embed-dim: expected a multiple of the ${heads} heads, received ${embedDim}`);
  }
  if (task === "genome" && chunks * chunkLength > MAX_LENGTH) {
    const receivedText = `${chunks} chunks of ${chunkLength}`;
    throw new UsageError(
      `--chunks: expected chunks × chunk-length ≤ ${MAX_LENGTH}, the number of held-out bases; received ${receivedText}`,
    );
  }
  if (chunks % ranks !== 0) {
    throw new UsageError(`--chunks: expected a multiple of the ${ranks} ranks, received ${chunks}`);
  }
  if (method === "meta" && topK >= chunks) {
    throw new UsageError(`--top-k: expected an integer below the number of chunks, ${chunks}; received ${topK}`);
  }
  if (task === "planted" && (chunks % 2 !== 0 || chunks < 4)) {
    throw new UsageError(
      `--chunks: expected an even number ≥ 4, because planted chunks come in pairs; received ${chunks}`,
    );
  }
  if (task === "planted" && chunkLength < MOTIF_LENGTH) {
    throw new UsageError(
      `--chunk-length: expected at least ${MOTIF_LENGTH}, the number of bases planted in each chunk; received ${chunkLength}`,
    );
  }
  return settings;
}

function parseNumber(name: string, text: string, allowsFractions: boolean): number {
  const value = Number(text);
  if (text.trim() !== "" && value >= 0 && (allowsFractions ? Number.isFinite(value) : Number.isSafeInteger(value)))
    return value;
  throw new UsageError(`--${name}: expected ${allowsFractions ? "a number" : "an integer"} ≥ 0, received "${text}"`);
}

/** Attention methods. */
const methods = ["ring", "meta", "local"] as const;
type Method = (typeof methods)[number];

/** Training tasks: bases masked in λ, or repeats planted in it. */
const tasks = ["genome", "planted"] as const;
type Task = (typeof tasks)[number];

/** Settings of the model. */
export interface ModelSettings {
  readonly method: Method;
  /** Number of chunks to which each chunk attends besides itself, with "meta". */
  readonly topK: number;
  readonly embedDim: number;
  readonly heads: number;
  readonly layers: number;
  /** Number of chunks in the whole sequence, and number of bases in each. */
  readonly chunks: number;
  readonly chunkLength: number;
  /** Number of steps over which routing is reduced from all chunks to topK. */
  readonly warmup: number;
}

/** Settings of one training. */
export interface Settings extends ModelSettings {
  readonly task: Task;
  readonly ranks: number;
  /** Number of sequences in a step. */
  readonly batch: number;
  readonly steps: number;
  readonly learningRate: number;
  /** Weight of the loss that trains the router on the attention mass of chunks. */
  readonly teacher: number;
  readonly seed: number;
  /** Steps between checkpoints, and between evaluations. */
  readonly checkpointEvery: number;
  readonly evaluateEvery: number;
  /** Folder of the curve and the checkpoint. */
  readonly outputDir: string;
}

/** Returns "ring", "local" or, for example, "meta 2". */
export function formatMethodName({ method, topK }: Pick<Settings, "method" | "topK">): string {
  return method === "meta" ? `meta ${topK}` : method;
}
