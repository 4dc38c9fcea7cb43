import { randomUUID } from "node:crypto";
import { mkdir } from "node:fs/promises";
import { dirname } from "node:path";
import {
  type Context,
  type Module,
  checkContext,
  checkJsonValue,
  checkModule,
  expectValue,
  runOnAllRanks,
} from "@mosaic/core";
import type { OptimizerState } from "../optimizers/optimizer.ts";
import { checkPath, FileError } from "../safetensors/format.ts";
import { isMissing } from "../safetensors/read.ts";
import { openReader, type SafetensorsReader } from "../safetensors/reader.ts";
import type { StagedFile } from "../safetensors/staged-file.ts";
import { listUnits } from "../sharding/flat-parameters.ts";
import {
  awaitHostTensors,
  listModelEntries,
  readModelState,
  type ShardedEntry,
  startEntryCopies,
  startHostCopies,
} from "../sharding/sharded-state.ts";
import type { TensorSource } from "../sharding/tensor-chunks.ts";
import { checkState, type OpenCheckpoint, type TrainingState } from "./check-state.ts";
import { parseStateMetadata, type StateMetadata, getStepCount } from "./checkpoint-file.ts";
import {
  type CheckpointRequest,
  type CheckpointOptions,
  checkpointOptions,
  fetchNewestCheckpoint,
  type FoundCheckpoint,
  groupByHost,
  hostName,
  inspectHosts,
  MISSING_REMEDY,
  publishOnHosts,
} from "./host-copies.ts";
import { checkSamePath } from "./same-path.ts";
import { ChunkWriter, SnapshotWriter, type StateWriter } from "./state-writer.ts";

/** Contents of a checkpoint other than the states of model and optimizer. */
export interface LoadedCheckpoint {
  /** Number of steps of the optimizer; 0 without an optimizer. */
  readonly steps: number;
  /** The `data` that was passed to `saveCheckpoint`. */
  readonly data: unknown;
}

/** The ID of the training run of each model, for checkpoints on several hosts. */
const trainingIds = new WeakMap<Module, string>();

/**
 * Saves everything that training needs to continue bit for bit: parameters, the optimizer's state, the number of steps,
 * the state of the random number generator, and custom `data` (any JSON value, such as an epoch or a loss curve).
 * Parameters and optimizers are equal on every rank, or gathered if they are sharded, so rank 0 writes one file on any
 * mesh, which can be loaded on any other. Collective: resolves on every rank when the complete file is on disk (see
 * `writeSafetensors`), and rejects on every rank if it could not be written. On several ranks, await it before the next
 * collective, because it communicates until it resolves.
 *
 * By default, the host memory of the ranks that write holds the whole state as float32 until the promise resolves. With
 * `snapshot: false`, it holds 2 MiB at a time, and the device of a sharded model one gathered tensor. Training must
 * then not continue before the promise resolves. The same holds for a model sharded by `fullyShard`, whose tensors are
 * read after the ranks have compared their arguments.
 *
 * With `copies: "perHost"`, the first rank of each host writes the same file, with the `data` of rank 0, under a
 * temporary name. The files are renamed only when all hosts have them on disk with equal bytes.
 *
 * Names of tensors are "model." and the name in the model's `stateDict`, or "optimizer." and the name in the
 * optimizer's.
 *
 * @example
 * ```ts
 * import { mkdtemp } from "node:fs/promises";
 * import { tmpdir } from "node:os";
 * import { join } from "node:path";
 * import { init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { AdamW, saveCheckpoint } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using model = new Linear(ctx, 4, 2);
 * using optimizer = new AdamW(model);
 * const path = join(await mkdtemp(join(tmpdir(), "mosaic-")), "training.safetensors");
 * await saveCheckpoint(ctx, path, { model, optimizer, data: { epoch: 2 } });
 * await saveCheckpoint(ctx, path, { model, data: { loss: NaN } }); // throws loss
 * ```
 * @throws OptionError that names the path of a value in `data` that JSON would drop or change: a function, NaN, a Map;
 * OptionError, with `copies: "shared"`, if ranks pass different paths; OptionError, with `snapshot: false`, if a
 * parameter or an optimizer state is modified before it was written; FileError, with `copies: "perHost"`, if the
 * parameters of two hosts differ.
 */
export async function saveCheckpoint(
  ctx: Context,
  path: string,
  training: TrainingState & { readonly data?: unknown },
  options?: CheckpointOptions,
): Promise<void> {
  const request = { ctx, path, options, check: () => checkTrainingState("saveCheckpoint", training) };
  return runRequest("saveCheckpoint", request, (call) => save(ctx, call, training));
}

async function save(
  ctx: Context,
  call: CheckpointRequest,
  training: TrainingState & { readonly data?: unknown },
): Promise<void> {
  const { path } = call;
  const { model, data = null } = training;
  const { state, startWriter } = collectState(ctx, training, call);
  const stateMetadata: StateMetadata = {
    version: 1,
    seed: ctx.seed,
    randomStream: ctx.randomStream,
    optimizer: state ?? null,
    data,
  };
  const formatMetadata = (): string => {
    checkJsonValue("saveCheckpoint: data", data);
    if (call.options.copies === "shared") return JSON.stringify(stateMetadata);
    const trainingId = trainingIds.get(model) ?? randomUUID();
    trainingIds.set(model, trainingId);
    return JSON.stringify({ ...stateMetadata, trainingId });
  };
  if (call.options.copies === "perHost") return saveOnHosts(ctx, call, { startWriter, formatMetadata });
  // `data` is formatted before the first await, so that the file has its contents at the call.
  let metadataJson = "";
  const paths = await runOnAllRanks(ctx, call.where, () => {
    metadataJson = formatMetadata();
    return path;
  });
  if (call.options.copies === "shared") checkSamePath("saveCheckpoint: path", paths);
  const writer = startWriter();
  await runOnAllRanks(ctx, call.where, async () => {
    if (ctx.rank !== 0) return writer.participate();
    const stagedFile = await stageState(call, writer, { metadataJson });
    await stagedFile.publish();
  });
}

interface RequestArguments {
  readonly ctx: Context;
  readonly path: string;
  readonly options: CheckpointOptions | undefined;
  /** Throws an error for other arguments that are invalid. */
  readonly check?: () => void;
}

/**
 * Runs a collective call if its arguments are valid. Otherwise this rank sends its error in the first exchange of the
 * call, so that the ranks with valid arguments reject instead of waiting for it.
 */
async function runRequest<T>(
  name: string,
  { ctx, path, options, check }: RequestArguments,
  body: (call: CheckpointRequest) => Promise<T>,
): Promise<T> {
  checkContext(name, ctx);
  let call: CheckpointRequest;
  try {
    checkPath(name, path);
    check?.();
    call = { where: `${name}: ${path}`, path, options: checkpointOptions.parse(options, name) };
  } catch (error) {
    const sendError = (): never => {
      throw error;
    };
    await runOnAllRanks(ctx, name, sendError).catch(() => {});
    throw error;
  }
  return body(call);
}

interface CollectedState {
  readonly state: Pick<OptimizerState, "kind" | "numbers"> | undefined;
  /** Returns the writer. Called once, after the first exchange of the call. */
  readonly startWriter: () => StateWriter;
}

/**
 * Collects the state to save. For a snapshot, ranks that write start to read it at once, so that it may change later.
 * For a sharded model, all ranks gather the tensors, one after the other, after the exchange that checks the arguments
 * of all ranks.
 */
function collectState(ctx: Context, { model, optimizer }: TrainingState, call: CheckpointRequest): CollectedState {
  const optimizerState = optimizer?.shardedStateDict();
  const entries = optimizerState?.entries ?? [];
  const state = optimizerState && { kind: optimizerState.kind, numbers: optimizerState.numbers };
  if (!call.options.snapshot) {
    const addPrefix = (prefix: string, each: readonly ShardedEntry[]): ShardedEntry[] =>
      each.map((entry) => ({ ...entry, name: prefix + entry.name }));
    const allEntries = [...addPrefix("model.", listModelEntries(model)), ...addPrefix("optimizer.", entries)];
    const writer = new ChunkWriter(call.where, allEntries);
    return { state, startWriter: () => writer };
  }
  const shouldReadValues = ctx.rank === 0 || call.options.copies === "perHost";
  const startSnapshot = (): StateWriter => {
    const pendingTensors = addPrefixes({
      "optimizer.": startEntryCopies(entries, shouldReadValues),
      "model.": startHostCopies(model.stateDict(), shouldReadValues),
    });
    const tensors = awaitHostTensors(pendingTensors);
    // On ranks that write nothing, a failure of the device is reported by the device itself.
    tensors.catch(() => {});
    return new SnapshotWriter(tensors);
  };
  if (listUnits(model.parameters()).length > 0) return { state, startWriter: startSnapshot };
  const writer = startSnapshot();
  return { state, startWriter: () => writer };
}

/** Writes the file of a checkpoint under a temporary name. */
async function stageState(
  call: CheckpointRequest,
  writer: StateWriter,
  { metadataJson, onWrite }: { readonly metadataJson: string; readonly onWrite?: (bytes: Uint8Array) => void },
): Promise<StagedFile> {
  try {
    await createFolder(call);
  } catch (error) {
    await writer.participate();
    throw error;
  }
  return writer.stage({ path: call.path, metadata: { format: "pt", mosaic: metadataJson }, onWrite });
}

interface SavedCheckpoint {
  readonly startWriter: () => StateWriter;
  readonly formatMetadata: () => string;
}

async function saveOnHosts(
  ctx: Context,
  call: CheckpointRequest,
  { startWriter, formatMetadata }: SavedCheckpoint,
): Promise<void> {
  const descriptions = await runOnAllRanks(ctx, call.where, () => {
    const text = formatMetadata();
    return { host: hostName(call.options), text: ctx.rank === 0 ? text : "" };
  });
  const writer = startWriter();
  const metadataJson = descriptions[0]!.text;
  const hosts = groupByHost(descriptions.map(({ host }) => host));
  await publishOnHosts(ctx, call, hosts, {
    stageToFile: (onWrite) => stageState(call, writer, { metadataJson, onWrite }),
    participate: () => writer.participate(),
  });
}

/** Creates the folder of a checkpoint and its parents. */
async function createFolder({ where, path }: CheckpointRequest): Promise<void> {
  try {
    await mkdir(dirname(path), { recursive: true });
  } catch (error) {
    const received = (error as Error).message;
    throw new FileError({ where, expected: "a folder that exists or can be created", received }, { cause: error });
  }
}

function checkTrainingState(where: string, training: unknown): void {
  const { model, optimizer } = (training ?? {}) as Partial<TrainingState>;
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
 * Loads a checkpoint of `saveCheckpoint` into a model and an optimizer that are constructed like the saved ones, on any
 * number of ranks, and restores the context's random number generator. On the same mesh, training continues bit for
 * bit. If any rank finds a damaged file, or a name, shape or dtype that does not match, every rank rejects and nothing
 * is changed on any rank. Collective.
 *
 * The header is checked before anything is changed. Then every rank reads the values a chunk of 2 MiB at a time into
 * its tensors, of sharded tensors only its own part. The host needs a few MiB in addition to the model and the
 * optimizer. If reading fails after that check, because the disk fails or the file is truncated meanwhile, every rank
 * rejects, and some tensors have the values of the checkpoint.
 *
 * With `copies: "perHost"` or `"rank0"`, a file on one host is sufficient. All ranks load the newest step that is
 * complete on any host. Hosts that lack it receive it from a host that has it, and compare the SHA-256 of the received
 * bytes with that of the file. With `"perHost"`, they keep the file.
 *
 * @example
 * ```ts
 * import { mkdtemp } from "node:fs/promises";
 * import { tmpdir } from "node:os";
 * import { join } from "node:path";
 * import { init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { AdamW, loadCheckpoint, saveCheckpoint } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using model = new Linear(ctx, 4, 2);
 * using optimizer = new AdamW(model);
 * const path = join(await mkdtemp(join(tmpdir(), "mosaic-")), "training.safetensors");
 * await saveCheckpoint(ctx, path, { model, optimizer, data: { epoch: 2 } });
 * await loadCheckpoint(ctx, path, { model, optimizer }); // => { steps: 0, data: { epoch: 2 } }
 * ```
 * @throws FileError for a file that is damaged or not a checkpoint, and if hosts have different contents of the same
 * step or checkpoints of different training runs; StateDictError for a checkpoint of another model, optimizer or seed.
 */
export async function loadCheckpoint(
  ctx: Context,
  path: string,
  training: TrainingState,
  options?: CheckpointOptions,
): Promise<LoadedCheckpoint> {
  const request = { ctx, path, options, check: () => checkTrainingState("loadCheckpoint", training) };
  return runRequest("loadCheckpoint", request, (call) => load(ctx, call, training));
}

async function load(ctx: Context, call: CheckpointRequest, training: TrainingState): Promise<LoadedCheckpoint> {
  if (call.options.copies === "shared") return loadFile(ctx, call, training);
  const localCopy = await fetchNewestCheckpoint(ctx, call);
  try {
    return await loadFile(ctx, { ...call, path: localCopy.path }, training);
  } finally {
    await localCopy.release();
  }
}

async function openCheckpoint(where: string, path: string): Promise<SafetensorsReader> {
  try {
    return await openReader(path, { opening: where, reading: where });
  } catch (error) {
    if (!isMissing((error as Error).cause)) throw error;
    const details = { where, expected: "a checkpoint", received: "no such file", remedy: MISSING_REMEDY };
    throw new FileError(details, { cause: error });
  }
}

async function loadFile(
  ctx: Context,
  { where, path }: CheckpointRequest,
  training: TrainingState,
): Promise<LoadedCheckpoint> {
  let file: SafetensorsReader | undefined;
  let stateMetadata: StateMetadata | undefined;
  try {
    await runOnAllRanks(ctx, where, async () => {
      file = await openCheckpoint(where, path);
      stateMetadata = parseStateMetadata(where, file.metadata);
      checkState(ctx, { where, file, stateMetadata }, training);
    });
    const checkpoint = { where, file: file!, stateMetadata: stateMetadata! };
    await runOnAllRanks(ctx, where, () => readState(checkpoint, training));
  } finally {
    await file?.close();
  }
  const { trainingId, data, randomStream } = stateMetadata!;
  ctx.randomStream = randomStream;
  if (trainingId !== undefined) trainingIds.set(training.model, trainingId);
  return { steps: getStepCount(stateMetadata!), data };
}

/**
 * Returns the newest complete checkpoint at a path, or undefined if no host has one. Use it to decide whether to
 * resume: the result is the same on all ranks, whereas `existsSync` may differ between hosts. Nothing is loaded.
 * Collective.
 *
 * @throws FileError if there are only damaged files, or if hosts have checkpoints of different training runs.
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
  const { newestCheckpoint, replicas } = await runRequest("findCheckpoint", { ctx, path, options }, (call) =>
    inspectHosts(ctx, call),
  );
  return newestCheckpoint && { steps: newestCheckpoint.steps, hosts: replicas.map(({ name }) => name) };
}

/** Reads a checkpoint that `checkState` has checked into a model and an optimizer. */
async function readState(
  { where, file, stateMetadata }: OpenCheckpoint,
  { model, optimizer }: TrainingState,
): Promise<void> {
  const selectByPrefix = (prefix: string): TensorSource => ({
    readRange: (name, from, to) => file.readRange(prefix + name, from, to),
  });
  try {
    await readModelState(model, selectByPrefix("model."));
    await optimizer?.loadStateFromSource(stateMetadata.optimizer!, selectByPrefix("optimizer."));
  } catch (error) {
    throw new FileError(
      {
        where,
        expected: "a file that can be read, and that does not change until the promise resolves",
        received: (error as Error).message,
        remedy: "load a checkpoint again before training continues: some tensors have the values of this one",
      },
      { cause: error },
    );
  }
}
