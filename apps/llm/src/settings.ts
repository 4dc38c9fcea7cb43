import { parseFlags, toOptionName, UsageError } from "@mosaic/program";

export { UsageError };

/** Sizes of a model, and of its tokenizer. */
export interface ArchitectureSettings {
  readonly vocabulary: number;
  readonly hidden: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  /** Number of tokens in a row, and maximum length of a text. */
  readonly length: number;
  /** rope_theta: pair i of d/2 is rotated by ropeBase^(−2i/d) per position. */
  readonly ropeBase: number;
  /** initializer_range: the standard deviation of the initial embeddings. */
  readonly embeddingStd: number;
}

/** Training tasks: to predict the next token of a book, or the values of facts that are hidden in books. */
const tasks = ["text", "needles"] as const;
export type Task = (typeof tasks)[number];

/** Names of the attention backends. */
const backendNames = ["ring", "flex", "ulysses", "local"] as const;
export type BackendName = (typeof backendNames)[number];

/** Settings of a training. */
export interface TrainSettings extends ArchitectureSettings {
  readonly task: Task;
  /** Folder of the model. A training found there is resumed. */
  readonly out: string;
  /** Minutes of training over all runs. 0: limited by `steps` only. */
  readonly minutes: number;
  /** Maximum number of steps. 0: limited by `minutes` only. */
  readonly steps: number;
  readonly ranks: number;
  /** Number of ranks along "dp", which have different rows. Ranks along the other axis share rows. */
  readonly dp: number;
  /** Stage of ZeRO over the data-parallel ranks. 0: nothing is sharded. */
  readonly zero: number;
  /** Number of replicas of the sharded state. 1: sharded over all data-parallel ranks. */
  readonly replicas: number;
  readonly backend: BackendName;
  /** Number of rows in a step. */
  readonly batch: number;
  readonly learningRate: number;
  readonly seed: number;
  readonly checkpointEvery: number;
  readonly evaluateEvery: number;
}

/** Settings of a measurement of a trained model, or of a text that it generates. */
export interface ModelSettings {
  readonly model: string;
  readonly ranks: number;
  readonly backend: BackendName;
  /** Folder for pictures and results. */
  readonly out: string;
  /** Maximum length of the measured texts in tokens. 0: the model's maximum. */
  readonly length: number;
  /** Number of texts of each kind. */
  readonly trials: number;
  readonly prompt: string;
  /** Maximum number of generated tokens. */
  readonly tokens: number;
  readonly temperature: number;
  readonly seed: number;
}

/** Settings of a server. */
export interface ServeSettings {
  readonly model: string;
  readonly ranks: number;
  readonly backend: BackendName;
  readonly host: string;
  /** Port. 0: any free port. */
  readonly port: number;
  /** API key. If empty, no key is required. */
  readonly key: string;
  /** Maximum number of texts that are generated concurrently. */
  readonly batch: number;
  /** Size of the KV cache in tokens, over all texts. */
  readonly cacheTokens: number;
  /** Maximum number of waiting requests. */
  readonly queue: number;
  /** Maximum size of a request body in bytes. */
  readonly maxBody: number;
  /** Timeout of a request in seconds. */
  readonly deadline: number;
  /** Seconds in which running texts may complete after SIGTERM. */
  readonly grace: number;
  readonly seed: number;
}

/** Description and default of an option, and constraints on its value. */
interface OptionHelp {
  readonly defaultValue: string | number;
  readonly text: string;
  readonly min?: number;
  readonly allowsFractions?: boolean;
}

const backendOption: OptionHelp = { defaultValue: "ring", text: backendNames.join(", ") };
const seedOption: OptionHelp = { defaultValue: 0, text: "seed", min: 0 };

const trainOptions: Readonly<Record<keyof TrainSettings, OptionHelp>> = {
  task: { defaultValue: "text", text: `training task: ${tasks.join(", ")}` },
  out: { defaultValue: "runs/llm", text: "model folder; training resumes from a checkpoint found there" },
  minutes: {
    defaultValue: 2,
    text: "total training time over all runs, in minutes; 0: limited by --steps only",
    min: 0,
    allowsFractions: true,
  },
  steps: { defaultValue: 0, text: "maximum number of steps; 0: limited by --minutes only", min: 0 },
  ranks: { defaultValue: 4, text: "number of ranks", min: 1 },
  dp: { defaultValue: 1, text: "number of data-parallel ranks; the remaining ranks shard the sequence", min: 1 },
  zero: { defaultValue: 0, text: "ZeRO stage over dp, 1 to 3; 0: no sharding", min: 0 },
  replicas: {
    defaultValue: 1,
    text: "hybrid sharding: number of replicas of the state, each sharded over dp / replicas ranks",
    min: 1,
  },
  backend: backendOption,
  vocabulary: { defaultValue: 2048, text: "vocabulary size of the tokenizer", min: 257 },
  hidden: { defaultValue: 128, text: "hidden size", min: 2 },
  layers: { defaultValue: 4, text: "number of layers", min: 1 },
  heads: { defaultValue: 4, text: "number of query heads", min: 1 },
  kvHeads: { defaultValue: 2, text: "number of key-value heads", min: 1 },
  length: { defaultValue: 512, text: "sequence length, in tokens", min: 2 },
  ropeBase: { defaultValue: 10_000, text: "base of the rotary embedding", min: 1, allowsFractions: true },
  embeddingStd: {
    defaultValue: 0.02,
    text: "standard deviation of the initial embeddings",
    min: 0,
    allowsFractions: true,
  },
  batch: { defaultValue: 4, text: "batch size", min: 1 },
  learningRate: { defaultValue: 4e-3, text: "learning rate", min: 0, allowsFractions: true },
  seed: seedOption,
  checkpointEvery: { defaultValue: 50, text: "steps between checkpoints", min: 1 },
  evaluateEvery: { defaultValue: 50, text: "steps between evaluations on held-out books", min: 1 },
};

/** Defaults of `--task needles` that differ. */
const needleDefaults: Partial<TrainSettings> = {
  ...{ out: "runs/needles", minutes: 0, steps: 6000 },
  ...{ vocabulary: 512, hidden: 64, layers: 2, heads: 2, kvHeads: 2, length: 4096 },
  ...{ ropeBase: 10_000, embeddingStd: 0.125 },
  ...{ batch: 1, learningRate: 5e-3, checkpointEvery: 100, evaluateEvery: 200 },
};

const modelOptions: Readonly<Record<keyof ModelSettings, OptionHelp>> = {
  model: { defaultValue: "runs/llm", text: "model folder" },
  ranks: { defaultValue: 4, text: "number of ranks", min: 1 },
  backend: backendOption,
  out: { defaultValue: "", text: "output folder; default: the model folder" },
  length: { defaultValue: 0, text: "maximum sequence length to evaluate, in tokens; 0: the model's maximum", min: 0 },
  trials: {
    defaultValue: 16,
    text: "number of held-out texts (perplexity), or of trials per length and needle depth (needle)",
    min: 1,
  },
  prompt: { defaultValue: "And it came to pass in those days, that", text: "prompt to generate from" },
  tokens: { defaultValue: 120, text: "tokens to generate", min: 1 },
  temperature: {
    defaultValue: 0.8,
    text: "sampling temperature; 0: greedy decoding",
    min: 0,
    allowsFractions: true,
  },
  seed: seedOption,
};

const serveOptions: Readonly<Record<keyof ServeSettings, OptionHelp>> = {
  model: { defaultValue: "runs/llm", text: "model folder, in Hugging Face format" },
  ranks: { defaultValue: 2, text: "number of ranks", min: 1 },
  backend: backendOption,
  host: { defaultValue: "127.0.0.1", text: "address to listen on" },
  port: { defaultValue: 8000, text: "port to listen on; 0: any free port", min: 0 },
  key: { defaultValue: "", text: "API key, sent as Authorization: Bearer KEY; default: MOSAIC_LLM_KEY" },
  batch: { defaultValue: 32, text: "maximum batch size, in sequences", min: 1 },
  cacheTokens: {
    defaultValue: 16_384,
    text: "KV cache size, in tokens over all sequences, including prompts",
    min: 2,
  },
  queue: { defaultValue: 128, text: "maximum queue length; further requests receive status 429", min: 0 },
  maxBody: {
    defaultValue: 2 ** 20,
    text: "maximum size of a request body, in bytes; larger bodies receive status 413",
    min: 1,
  },
  deadline: {
    defaultValue: 300,
    text: "request timeout, in seconds; on timeout, a request receives status 504",
    min: 0.001,
    allowsFractions: true,
  },
  grace: {
    defaultValue: 30,
    text: "time for running requests to complete after SIGTERM, in seconds",
    min: 0,
    allowsFractions: true,
  },
  seed: { defaultValue: 0, text: "random seed of the ranks; requests have separate seeds", min: 0 },
};

function formatHelp(options: Readonly<Record<string, OptionHelp>>): string {
  const lines = Object.entries(options).map(([name, { defaultValue, text }]) => {
    return `  --${toOptionName(name).padEnd(18)} ${text}${defaultValue === "" ? "" : ` (${defaultValue})`}`;
  });
  return lines.join("\n");
}

const needleHelp = Object.entries(needleDefaults).map(([name, value]) => `--${toOptionName(name)} ${value}`);

/** Help text of all options. */
export const help: string = `train:\n${formatHelp(trainOptions)}\n  defaults of --task needles: ${needleHelp.join(" ")}\n\nperplexity, needle, generate:\n${formatHelp(modelOptions)}\n\nserve:\n${formatHelp(serveOptions)}`;

/** Parses options. Throws a UsageError for invalid ones. */
function parseOptions(
  args: readonly string[],
  options: Readonly<Record<string, OptionHelp>>,
  defaultsByTask: Readonly<Record<string, Readonly<Record<string, string | number>>>> = {},
): Record<string, string | number> {
  const flags = Object.fromEntries(
    Object.keys(options).map((name) => [toOptionName(name), { type: "string" } as const]),
  );
  const parsedValues = parseFlags(args, flags);
  const defaults = defaultsByTask[String(parsedValues["task"])] ?? {};
  const parsedEntries = Object.entries(options).map(([name, option]): [string, string | number] => {
    const text = parsedValues[toOptionName(name)];
    if (typeof text !== "string") return [name, defaults[name] ?? option.defaultValue];
    return [name, typeof option.defaultValue === "string" ? text : parseNumber(toOptionName(name), text, option)];
  });
  const settings = Object.fromEntries(parsedEntries);
  if (!(backendNames as readonly unknown[]).includes(settings["backend"])) {
    throw new UsageError(`--backend: expected one of ${backendNames.join(", ")}, received "${settings["backend"]}"`);
  }
  return settings;
}

function parseNumber(flag: string, text: string, { min = 0, allowsFractions = false }: OptionHelp): number {
  const value = Number(text);
  if (text.trim() !== "" && value >= min && (allowsFractions ? Number.isFinite(value) : Number.isSafeInteger(value)))
    return value;
  throw new UsageError(
    `--${flag}: expected ${allowsFractions ? "a number" : "an integer"} ≥ ${min}, received "${text}"`,
  );
}

/** Parses the settings of a training. Throws a UsageError for incompatible settings. */
export function parseTrainSettings(args: readonly string[]): TrainSettings {
  const settings = parseOptions(args, trainOptions, { needles: needleDefaults }) as unknown as TrainSettings;
  const { ranks, dp, zero, replicas, batch, heads, kvHeads, hidden, minutes, steps, backend, task } = settings;
  const rules: readonly (readonly [boolean, string, string])[] = [
    [tasks.includes(task), "--task", `one of ${tasks.join(", ")}, received "${task}"`],
    [task === "text" || minutes === 0, "--minutes", `0 with --task needles, received ${minutes}; use --steps`],
    [ranks % dp === 0, "--dp", `a divisor of the ${ranks} ranks, received ${dp}`],
    [batch % dp === 0, "--batch", `a multiple of --dp, ${dp}, received ${batch}`],
    [zero <= 3, "--zero", `0 to 3, received ${zero}`],
    [dp % replicas === 0, "--replicas", `a divisor of --dp, ${dp}, received ${replicas}`],
    [replicas === 1 || zero > 0, "--replicas", `1 without --zero, received ${replicas}`],
    [heads % kvHeads === 0, "--kv-heads", `a divisor of the ${heads} heads, received ${kvHeads}`],
    [hidden % (2 * heads) === 0, "--hidden", `a multiple of 2 × --heads, ${2 * heads}, received ${hidden}`],
    [minutes > 0 || steps > 0, "--steps", "a number > 0 without --minutes, received 0"],
    [backend !== "local" || ranks === dp, "--backend", `ring, flex or ulysses if --ranks exceeds --dp, received local`],
  ];
  const brokenRule = rules.find(([isMet]) => !isMet);
  if (brokenRule) throw new UsageError(`${brokenRule[1]}: expected ${brokenRule[2]}`);
  return settings;
}

/** Returns the mesh of a training. */
export function createTrainMesh({
  ranks,
  dp,
  replicas,
}: Pick<TrainSettings, "ranks" | "dp" | "replicas">): Readonly<Record<string, number>> {
  const sp = ranks / dp;
  return replicas === 1 ? { dp, sp } : { dp_replicate: replicas, dp_shard: dp / replicas, sp };
}

/** Parses the settings of a measurement or of text generation. */
export function parseModelSettings(args: readonly string[]): ModelSettings {
  const settings = parseOptions(args, modelOptions) as unknown as ModelSettings;
  checkLocalBackend(settings);
  return settings;
}

/** Parses the settings of a server. */
export function parseServeSettings(args: readonly string[]): ServeSettings {
  const settings = parseOptions(args, serveOptions) as unknown as ServeSettings;
  if (settings.port > 65_535) throw new UsageError(`--port: expected at most 65535, received ${settings.port}`);
  checkLocalBackend(settings);
  return settings;
}

function checkLocalBackend({ backend, ranks }: { readonly backend: BackendName; readonly ranks: number }): void {
  if (backend !== "local" || ranks === 1) return;
  throw new UsageError("--backend: expected ring, flex or ulysses if --ranks exceeds 1, received local");
}
