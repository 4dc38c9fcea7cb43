import { randomUUID } from "node:crypto";
import { mkdir } from "node:fs/promises";
import { dirname } from "node:path";
import { type Context, type Module, StateDictError, checkContext, checkModule, expectValue } from "@mosaic/core";
import type { Optimizer, OptimizerState } from "../optimizers/optimizer.ts";
import { checkPath, FileError } from "../safetensors/format.ts";
import { readSafetensors, type SafetensorsFile } from "../safetensors/read.ts";
import { stageSafetensors, type TensorMap, writeSafetensors } from "../safetensors/write.ts";
import { awaitHostTensors, hostStateDict, loadModelState } from "../sharding/sharded-state.ts";
import { checkJsonValue, parseStateMetadata, type StateMetadata, getStepCount } from "./checkpoint-file.ts";
import {
  type CheckpointRequest,
  type CheckpointOptions,
  checkpointOptions,
  fetchNewestCheckpoint,
  type FoundCheckpoint,
  groupByHost,
  hostName,
  inspectHosts,
  publishOnHosts,
} from "./host-copies.ts";
import { runOnAllRanks } from "./rank-messages.ts";

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

/** Which training a model is in, for checkpoints of several hosts. */
const trainingIds = new WeakMap<Module, string>();

/**
 * Saves all that a training needs to continue bit for bit: parameters, the optimizer's state, the number of steps, the
 * state of random numbers, and `data` of your own (anything JSON can hold: an epoch, a loss curve). Parameters and
 * optimizers are equal on every rank, or gathered if they are sharded, so rank 0 writes one file, whatever the mesh; it opens on any other. Collective:
 * resolves on every rank when the file is on the disk, whole (see `writeSafetensors`), and rejects on every rank if it
 * could not be written.
 *
 * With `copies: "perHost"` the first rank of each host writes the same file, with rank 0's `data`, under a temporary name; only when
 * all hosts have it on the disk, with the same bytes, do all rename it.
 *
 * The model's tensors are named "model." and the names of its `stateDict`, the optimizer's "optimizer." and its names.
 *
 * @throws OptionError that names the place in `data` of what JSON would drop or change: a function, NaN, a Map; FileError, with
 * `copies: "perHost"`, where the parameters of two hosts differ.
 */
export async function saveCheckpoint(
  ctx: Context,
  path: string,
  training: TrainingState & { readonly data?: unknown },
  options?: CheckpointOptions,
): Promise<void> {
  checkTrainingState("saveCheckpoint", ctx, { path, training });
  const call = createCheckpointRequest("saveCheckpoint", path, options);
  const { model, data = null } = training;
  const { state, tensors } = collectState(ctx, training, call);
  const stateMetadata: StateMetadata = {
    version: 1,
    seed: ctx.seed,
    randomStream: ctx.randomStream,
    optimizer: state ? { kind: state.kind, numbers: state.numbers } : null,
    data,
  };
  const formatMetadata = (): string => {
    checkJsonValue("saveCheckpoint: data", data);
    if (call.options.copies === "shared") return JSON.stringify(stateMetadata);
    const trainingId = trainingIds.get(model) ?? randomUUID();
    trainingIds.set(model, trainingId);
    return JSON.stringify({ ...stateMetadata, trainingId });
  };
  if (call.options.copies === "perHost") return saveOnHosts(ctx, call, { model, tensors, formatMetadata });
  await runOnAllRanks(ctx, call.where, async () => {
    const metadataJson = formatMetadata();
    if (ctx.rank !== 0) return null;
    await createFolder(call);
    await writeSafetensors(path, await tensors, { format: "pt", mosaic: metadataJson });
    return null;
  });
}

function createCheckpointRequest(
  name: string,
  path: string,
  options: CheckpointOptions | undefined,
): CheckpointRequest {
  return { where: `${name}: ${path}`, path, options: checkpointOptions.parse(options, name) };
}

interface CollectedState {
  readonly state: Pick<OptimizerState, "kind" | "numbers"> | undefined;
  /** With the values at the call of `collectState`, on ranks that write a file. */
  readonly tensors: Promise<TensorMap>;
}

/**
 * What is saved: ranks that write read it at once, so that training may go on. Of a sharded model all ranks gather, one tensor after
 * the other.
 */
function collectState(ctx: Context, { model, optimizer }: TrainingState, call: CheckpointRequest): CollectedState {
  const shouldReadValues = ctx.rank === 0 || call.options.copies === "perHost";
  const state = optimizer?.hostStateDict(shouldReadValues);
  const pendingTensors = addPrefixes({
    "model.": hostStateDict(model, shouldReadValues),
    "optimizer.": state?.tensors ?? new Map(),
  });
  const tensors = awaitHostTensors(pendingTensors);
  // Where nothing is written a device that fails reports so itself.
  tensors.catch(() => {});
  return { state, tensors };
}

interface SavedCheckpoint {
  readonly model: Module;
  readonly tensors: CollectedState["tensors"];
  readonly formatMetadata: () => string;
}

async function saveOnHosts(
  ctx: Context,
  call: CheckpointRequest,
  { model, tensors, formatMetadata }: SavedCheckpoint,
): Promise<void> {
  const descriptions = await runOnAllRanks(ctx, call.where, () => {
    const text = formatMetadata();
    return { host: hostName(call.options), text: ctx.rank === 0 ? text : "" };
  });
  const metadataJson = descriptions[0]!.text;
  trainingIds.set(model, (JSON.parse(metadataJson) as StateMetadata).trainingId!);
  const hosts = groupByHost(descriptions.map(({ host }) => host));
  const stateTensors = await tensors;
  await publishOnHosts(ctx, call, hosts, async (observe) => {
    await createFolder(call);
    return stageSafetensors(call.path, stateTensors, { format: "pt", mosaic: metadataJson }, observe);
  });
}

/** The folder of a checkpoint, and those above it. */
async function createFolder({ where, path }: CheckpointRequest): Promise<void> {
  try {
    await mkdir(dirname(path), { recursive: true });
  } catch (error) {
    const received = (error as Error).message;
    throw new FileError({ where, expected: "a folder that exists or can be created", received }, { cause: error });
  }
}

function checkTrainingState(
  where: string,
  ctx: Context,
  args: { readonly path: unknown; readonly training: unknown },
): void {
  checkContext(where, ctx);
  checkPath(where, args.path);
  const { model, optimizer } = (args.training ?? {}) as Partial<TrainingState>;
  checkModule(`${where}: model`, model);
  const isValidOptimizer = optimizer === undefined || typeof optimizer?.loadStateDict === "function";
  expectValue(`${where}: optimizer`, isValidOptimizer, "an Optimizer", optimizer);
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
 * With `copies: "perHost"` or `"rank0"` a file on one host is enough. The newest step that is complete on any host is loaded by all
 * ranks: hosts that lack it receive it from one that has it, and compare the SHA-256 of what arrived with that of the file. With
 * `"perHost"` they keep it as theirs.
 *
 * @throws FileError for a file that is damaged or no checkpoint, and where hosts hold different contents of the same step, or
 * checkpoints of different trainings; StateDictError for one of another model, optimizer or seed.
 */
export async function loadCheckpoint(
  ctx: Context,
  path: string,
  training: TrainingState,
  options?: CheckpointOptions,
): Promise<LoadedCheckpoint> {
  checkTrainingState("loadCheckpoint", ctx, { path, training });
  const call = createCheckpointRequest("loadCheckpoint", path, options);
  if (call.options.copies === "shared") return loadFile(ctx, call, training);
  const localCopy = await fetchNewestCheckpoint(ctx, call);
  try {
    return await loadFile(ctx, { ...call, path: localCopy.path }, training);
  } finally {
    await localCopy.release();
  }
}

async function readCheckpoint(where: string, path: string): Promise<SafetensorsFile> {
  try {
    return await readSafetensors(path);
  } catch (error) {
    if (!["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
    const remedy = "correct the path, or call findCheckpoint first, which returns undefined if there is no checkpoint";
    throw new FileError({ where, expected: "a checkpoint", received: "no such file", remedy }, { cause: error });
  }
}

async function loadFile(
  ctx: Context,
  { where, path }: CheckpointRequest,
  training: TrainingState,
): Promise<LoadedCheckpoint> {
  let file: SafetensorsFile | undefined;
  let stateMetadata: StateMetadata | undefined;
  await runOnAllRanks(ctx, where, async () => {
    file = await readCheckpoint(where, path);
    stateMetadata = parseStateMetadata(path, file.metadata);
    restoreState(ctx, { path, file, stateMetadata, dryRun: true }, training);
    return null;
  });
  restoreState(ctx, { path, file: file!, stateMetadata: stateMetadata!, dryRun: false }, training);
  const { trainingId, data } = stateMetadata!;
  if (trainingId !== undefined) trainingIds.set(training.model, trainingId);
  return { steps: getStepCount(stateMetadata!), data };
}

/**
 * The newest complete checkpoint under a path, or undefined where no host has any: whether there is something to resume, which all
 * ranks answer alike, where `existsSync` may differ between hosts. Nothing is loaded. Collective.
 *
 * @throws FileError where there are only damaged files, or where hosts have checkpoints of different trainings.
 * @example
 * ```ts
 * import { init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { findCheckpoint, saveCheckpoint } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using model = new Linear(ctx, 4, 2);
 * const path = `/tmp/mosaic-find-${process.pid}.safetensors`;
 * await findCheckpoint(ctx, path); // => undefined
 * await saveCheckpoint(ctx, path, { model }, { copies: "perHost", host: "n0" });
 * await findCheckpoint(ctx, path, { copies: "perHost", host: "n0" }); // => { steps: 0, hosts: ["n0"] }
 * ```
 */
export async function findCheckpoint(
  ctx: Context,
  path: string,
  options?: CheckpointOptions,
): Promise<FoundCheckpoint | undefined> {
  checkContext("findCheckpoint", ctx);
  checkPath("findCheckpoint", path);
  const { newestCheckpoint, replicas } = await inspectHosts(
    ctx,
    createCheckpointRequest("findCheckpoint", path, options),
  );
  return newestCheckpoint && { steps: newestCheckpoint.steps, hosts: replicas.map(({ name }) => name) };
}

interface OpenCheckpoint {
  readonly path: string;
  readonly file: SafetensorsFile;
  readonly stateMetadata: StateMetadata;
  /** Only checks. */
  readonly dryRun: boolean;
}

function restoreState(
  ctx: Context,
  { path, file, stateMetadata, dryRun }: OpenCheckpoint,
  { model, optimizer }: TrainingState,
): void {
  if (stateMetadata.seed !== ctx.seed) {
    throw new StateDictError({
      where: path,
      expected: `seed ${ctx.seed}, the seed of the context`,
      received: String(stateMetadata.seed),
      remedy: `pass seed: ${stateMetadata.seed} to init`,
    });
  }
  const options = { dryRun };
  loadModelState(model, selectByPrefix(file, "model."), options);
  if (optimizer) {
    if (!stateMetadata.optimizer)
      throw new StateDictError({ where: path, expected: "an optimizer's state", received: "none" });
    optimizer.loadStateDict({ ...stateMetadata.optimizer, tensors: selectByPrefix(file, "optimizer.") }, options);
  }
  if (!dryRun) ctx.randomStream = stateMetadata.randomStream;
}

/** The tensors whose names begin with a prefix, without it. */
function selectByPrefix({ tensors }: SafetensorsFile, prefix: string): SafetensorsFile["tensors"] {
  const prefixedTensors = [...tensors].filter(([name]) => name.startsWith(prefix));
  return new Map(prefixedTensors.map(([name, tensor]) => [name.slice(prefix.length), tensor]));
}
