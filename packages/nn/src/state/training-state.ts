import {
  type Context,
  fromArray,
  type Module,
  MosaicError,
  OptionError,
  StateDictError,
  type Tensor,
  checkContext,
  checkModule,
  expectValue,
} from "@mosaic/core";
import type { Optimizer, OptimizerState } from "../optimizers/optimizer.ts";
import { checkPath, FileError } from "../safetensors/format.ts";
import { readSafetensors, type SafetensorsFile } from "../safetensors/read.ts";
import { writeSafetensors } from "../safetensors/write.ts";

/** What a training consists of. */
export interface TrainingState {
  readonly model: Module;
  readonly optimizer?: Optimizer;
}

/** What a checkpoint holds beside what it puts into model and optimizer. */
export interface LoadedCheckpoint {
  /** Steps that the optimizer had taken; 0 without one. */
  readonly steps: number;
  /** What `saveCheckpoint` was given. */
  readonly data: unknown;
}

/** What the metadata holds as JSON under "mosaic"; numbers survive JSON to the last bit. */
interface StateMetadata {
  readonly version: 1;
  readonly seed: number;
  readonly randomStream: number;
  readonly optimizer: Pick<OptimizerState, "kind" | "numbers"> | null;
  readonly data: unknown;
}

/**
 * Saves all that a training needs to continue bit for bit: parameters, the optimizer's state, the number of steps, the
 * state of random numbers, and `data` of your own (anything JSON can hold: an epoch, a loss curve). Parameters and
 * optimizers are equal on every rank, so rank 0 writes one file, whatever the mesh; it opens on any other. Collective:
 * resolves on every rank when the file is on the disk, whole (see `writeSafetensors`), and rejects on every rank if it
 * could not be written.
 *
 * The model's tensors are named "model." and the names of its `stateDict`, the optimizer's "optimizer." and its names.
 *
 * @throws OptionError that names the place in `data` of what JSON would drop or change: a function, NaN, a Map.
 */
export async function saveCheckpoint(
  ctx: Context,
  path: string,
  training: TrainingState & { readonly data?: unknown },
): Promise<void> {
  checkTrainingState("saveCheckpoint", ctx, { path, training });
  const { model, optimizer, data = null } = training;
  const state = optimizer?.stateDict();
  const tensors = addPrefixes({ "model.": model.stateDict(), "optimizer.": state?.tensors ?? new Map() });
  const stateMetadata: StateMetadata = {
    version: 1,
    seed: ctx.seed,
    randomStream: ctx.randomStream,
    optimizer: state ? { kind: state.kind, numbers: state.numbers } : null,
    data,
  };
  await runOnAllRanks(ctx, `saveCheckpoint: ${path}`, async () => {
    checkJsonValue("saveCheckpoint: data", data);
    const metadata = { format: "pt", mosaic: JSON.stringify(stateMetadata) };
    if (ctx.rank === 0) await writeSafetensors(path, tensors, metadata);
  });
}

function checkTrainingState(
  where: string,
  ctx: Context,
  given: { readonly path: unknown; readonly training: unknown },
): void {
  checkContext(where, ctx);
  checkPath(where, given.path);
  const { model, optimizer } = (given.training ?? {}) as Partial<TrainingState>;
  checkModule(`${where}: model`, model);
  const fits = optimizer === undefined || typeof optimizer?.loadStateDict === "function";
  expectValue(`${where}: optimizer`, fits, "an Optimizer", optimizer);
}

/** Throws an OptionError unless JSON gives back what it is given. Properties that are undefined may be missing then. */
function checkJsonValue(where: string, value: unknown, within: readonly unknown[] = []): void {
  const fail = (received: string): never => {
    throw new OptionError({
      where,
      expected: "a JSON value: null, a boolean, a finite number, a string, an array or a plain object",
      received,
      remedy: "convert or remove it",
    });
  };
  if (value === null || typeof value === "boolean" || typeof value === "string") return;
  if (typeof value === "number" && Number.isFinite(value)) return;
  if (typeof value !== "object") return fail(typeof value === "function" ? "a function" : String(value));
  if (within.includes(value)) return fail("a circular reference");
  const deeper = [...within, value];
  const [symbol] = Object.getOwnPropertySymbols(value);
  if (symbol !== undefined) return fail(`an object with ${String(symbol)}`);
  if (Array.isArray(value)) {
    const extra = Object.keys(value).find((name) => !/^\d+$/.test(name));
    if (extra !== undefined) return fail(`an array with "${extra}"`);
    for (let i = 0; i < value.length; i++) checkJsonValue(`${where}[${i}]`, value[i], deeper);
    return;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  const isPlain = prototype === null || Object.getPrototypeOf(prototype) === null;
  if (!isPlain) return fail(`a ${value.constructor.name}`);
  for (const [name, each] of Object.entries(value)) {
    if (each !== undefined) checkJsonValue(`${where}.${name}`, each, deeper);
  }
}

function addPrefixes<T>(groups: Readonly<Record<string, ReadonlyMap<string, T>>>): Map<string, T> {
  const entries = Object.entries(groups).flatMap(([prefix, group]) =>
    [...group].map(([name, tensor]): [string, T] => [prefix + name, tensor]),
  );
  return new Map(entries);
}

/**
 * Puts a checkpoint of `saveCheckpoint` into a model and an optimizer that are built like those that were saved, on as
 * many ranks as you like, and sets the context's random numbers: training then goes on bit for bit as it would have on
 * the same mesh. Every rank reads the file. All or nothing: if any rank finds a fault in the file, or a name, shape or
 * dtype that does not fit, every rank rejects and none has changed anything. Collective.
 *
 * @throws FileError for a file that is damaged or no checkpoint, StateDictError for one of another model, optimizer or seed.
 */
export async function loadCheckpoint(ctx: Context, path: string, training: TrainingState): Promise<LoadedCheckpoint> {
  checkTrainingState("loadCheckpoint", ctx, { path, training });
  let file: SafetensorsFile | undefined;
  let stateMetadata: StateMetadata | undefined;
  await runOnAllRanks(ctx, `loadCheckpoint: ${path}`, async () => {
    file = await readSafetensors(path);
    stateMetadata = parseStateMetadata(path, file);
    restoreState(ctx, { path, file, stateMetadata, dryRun: true }, training);
  });
  restoreState(ctx, { path, file: file!, stateMetadata: stateMetadata!, dryRun: false }, training);
  return { steps: stateMetadata!.optimizer?.numbers.steps ?? 0, data: stateMetadata!.data };
}

function parseStateMetadata(path: string, { metadata }: SafetensorsFile): StateMetadata {
  const stateMetadata = tryParseJson(metadata.get("mosaic"));
  if (stateMetadata?.version === 1) return stateMetadata as StateMetadata;
  throw new FileError({
    where: path,
    expected: "a checkpoint, version 1",
    received: stateMetadata ? `version ${String(stateMetadata.version)}` : "a safetensors file without training state",
    remedy: "for weights alone, use model.loadStateDict((await readSafetensors(path)).tensors)",
  });
}

function tryParseJson(text: string | undefined): Partial<StateMetadata> | undefined {
  try {
    return text === undefined ? undefined : (JSON.parse(text) as Partial<StateMetadata>);
  } catch {
    return undefined;
  }
}

interface OpenedCheckpoint {
  readonly path: string;
  readonly file: SafetensorsFile;
  readonly stateMetadata: StateMetadata;
  /** Only checks. */
  readonly dryRun: boolean;
}

function restoreState(
  ctx: Context,
  { path, file, stateMetadata, dryRun }: OpenedCheckpoint,
  { model, optimizer }: TrainingState,
): void {
  if (stateMetadata.seed !== ctx.seed) {
    throw new StateDictError({
      where: path,
      expected: `seed ${ctx.seed}, the context's`,
      received: String(stateMetadata.seed),
      remedy: `pass seed: ${stateMetadata.seed} to init`,
    });
  }
  const options = { dryRun };
  model.loadStateDict(within(file, "model."), options);
  if (optimizer) {
    if (!stateMetadata.optimizer)
      throw new StateDictError({ where: path, expected: "an optimizer's state", received: "none" });
    optimizer.loadStateDict({ ...stateMetadata.optimizer, tensors: within(file, "optimizer.") }, options);
  }
  if (!dryRun) ctx.randomStream = stateMetadata.randomStream;
}

/** The tensors whose names begin with a prefix, without it. */
function within({ tensors }: SafetensorsFile, prefix: string): SafetensorsFile["tensors"] {
  const own = [...tensors].filter(([name]) => name.startsWith(prefix));
  return new Map(own.map(([name, tensor]) => [name.slice(prefix.length), tensor]));
}

/** Runs `body` on every rank; if it fails on any, all reject: those whose body succeeded, naming the others. */
async function runOnAllRanks(ctx: Context, where: string, body: () => Promise<void>): Promise<void> {
  let failure: unknown;
  try {
    await body();
  } catch (error) {
    failure = error ?? new Error(where);
  }
  const own = Array.from({ length: ctx.size }, (_, rank) => (rank === ctx.rank && failure !== undefined ? 1 : 0));
  using flags: Tensor = fromArray(ctx, own, [ctx.size]);
  if (ctx.size > 1) ctx.world.allReduce(flags, "max", { label: where }).wait();
  const failed = Array.from(await flags.read()).flatMap((flag, rank) => (flag > 0 ? [rank] : []));
  if (failure !== undefined) throw failure;
  if (failed.length === 0) return;
  throw new MosaicError({
    where: `${where}, rank ${ctx.rank}`,
    expected: "success on every rank",
    received: `a failure on rank ${failed.join(", ")}`,
    remedy: "see the error of that rank; nothing was changed on this one",
  });
}
