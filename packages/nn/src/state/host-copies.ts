// Checkpoints on hosts without a shared file system: finds the newest one, and copies it to the hosts that lack it.
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { hostname } from "node:os";
import {
  type Context,
  defineOptions,
  option,
  type OptionsOf,
  type ResolvedOptionsOf,
  runOnAllRanks,
} from "@mosaic/core";
import { FileError } from "../safetensors/format.ts";
import { type StagedFile, stageFile } from "../safetensors/staged-file.ts";
import { type CheckpointFile, inspectCheckpoint } from "./checkpoint-file.ts";
import { receiveFile, sendFile } from "./file-transfer.ts";

export const checkpointOptions = defineOptions("checkpoint", {
  /**
   * Where checkpoints are stored: one file in a file system that all hosts share ("shared"), a whole copy in a
   * directory of each host ("perHost"), or one file on the host of rank 0, which only that host can read ("rank0").
   * Default "shared".
   */
  copies: option.oneOf(["shared", "perHost", "rank0"], { default: "shared" }),
  /**
   * Name of this rank's host. Ranks with the same name share a directory. Default: MOSAIC_HOST, else the host name,
   * with the launcher's number of the node (GROUP_RANK) if set.
   */
  host: option.string({ optional: true }),
  /**
   * Whether `saveCheckpoint` copies all values to the host at the call, so that on one rank training can continue
   * before the promise resolves. With false, it copies 2 MiB at a time, so that the host needs no memory for whole
   * states. Then parameters and optimizer states must not change before the promise resolves. The same on all ranks.
   * Default true.
   */
  snapshot: option.boolean({ default: true }),
});
/** Options of checkpoints. All have defaults. */
export type CheckpointOptions = OptionsOf<typeof checkpointOptions>;
type CheckpointSettings = ResolvedOptionsOf<typeof checkpointOptions>;

/** The ranks that share a directory. */
interface HostRanks {
  readonly name: string;
  /** In ascending order. The first reads and writes for all. */
  readonly ranks: readonly number[];
}

/** A call of a checkpoint function. */
export interface CheckpointRequest {
  /** Prefix of error messages: the function and the path. */
  readonly where: string;
  readonly path: string;
  readonly options: CheckpointSettings;
}

/** Returns this rank's name of its host. */
export function hostName({ host }: CheckpointSettings): string {
  if (host !== undefined) return host;
  const { MOSAIC_HOST, GROUP_RANK } = process.env;
  if (MOSAIC_HOST) return MOSAIC_HOST;
  return GROUP_RANK ? `node ${GROUP_RANK} (${hostname()})` : hostname();
}

/** Groups ranks by host, in the order of the lowest rank of each. `names` has each rank's name of its host. */
export function groupByHost(names: readonly string[]): readonly HostRanks[] {
  return [...new Set(names)].map((name) => ({
    name,
    ranks: names.flatMap((each, rank) => (each === name ? [rank] : [])),
  }));
}

/** Returns whether this rank reads and writes for its host. */
function isFirstOnHost(ctx: Context, hosts: readonly HostRanks[]): boolean {
  return hosts.some(({ ranks }) => ranks[0] === ctx.rank);
}

/** A checkpoint that `findCheckpoint` found. */
export interface FoundCheckpoint {
  /** Number of steps of the optimizer; 0 without an optimizer. */
  readonly steps: number;
  /** The hosts that have it, by name. */
  readonly hosts: readonly string[];
}

/** All hosts, the newest complete checkpoint, and the hosts that have it. */
interface CheckpointReplicas {
  readonly hosts: readonly HostRanks[];
  readonly newestCheckpoint: Extract<CheckpointFile, { kind: "complete" }> | undefined;
  readonly replicas: readonly HostRanks[];
}

/**
 * Finds the newest complete checkpoint, and the hosts that have it. Collective; the result is the same on every rank.
 */
export async function inspectHosts(
  ctx: Context,
  { where, path, options }: CheckpointRequest,
): Promise<CheckpointReplicas> {
  const names = await runOnAllRanks(ctx, where, () => hostName(options));
  // Only rank 0 inspects a shared file system.
  const hosts = groupByHost(options.copies === "shared" ? names.map(() => names[0]!) : names);
  const isInspector = isFirstOnHost(ctx, hosts);
  const inspectedFiles = await runOnAllRanks(ctx, where, () => (isInspector ? inspectCheckpoint(where, path) : null));
  const files = hosts.map((host) => ({ host, file: inspectedFiles[host.ranks[0]!]! }));
  const completeCopies = files.flatMap(({ host, file }) => (file.kind === "complete" ? [{ host, file }] : []));
  const damagedCopies = files.flatMap(({ host, file }) =>
    file.kind === "damaged" ? [{ host, reason: file.reason }] : [],
  );
  checkSameTraining(where, completeCopies);
  if (completeCopies.length === 0 && damagedCopies.length > 0) {
    throw new FileError({
      where,
      expected: "a complete checkpoint on at least one host",
      received: damagedCopies.map(({ host, reason }) => `on ${host.name} ${reason}`).join("; "),
    });
  }
  const ownDamagedCopy = damagedCopies.find(({ host }) => host.ranks[0] === ctx.rank);
  if (ownDamagedCopy) {
    process.emitWarning(`${where}: ignoring a damaged file on ${ownDamagedCopy.host.name}: ${ownDamagedCopy.reason}`, {
      type: "MosaicWarning",
      code: "MOSAIC_CHECKPOINT_DAMAGED",
    });
  }
  const steps = Math.max(...completeCopies.map(({ file }) => file.steps));
  const newestCopies = completeCopies.filter(({ file }) => file.steps === steps);
  return { hosts, newestCheckpoint: newestCopies[0]?.file, replicas: newestCopies.map(({ host }) => host) };
}

/**
 * Throws a FileError if hosts have checkpoints of different training runs. Otherwise step 90 of an abandoned run would
 * be preferred to step 3 of the current one.
 */
function checkSameTraining(
  where: string,
  completeCopies: readonly { readonly host: HostRanks; readonly file: { readonly trainingId: string | null } }[],
): void {
  const copiesByTrainingId = groupBy(completeCopies, ({ file }) => file.trainingId);
  if (copiesByTrainingId.size < 2) return;
  throw new FileError({
    where,
    expected: "checkpoints of the same training run on all hosts",
    received: `checkpoints of ${copiesByTrainingId.size} training runs: ${formatHostGroups([...copiesByTrainingId].map(([, group]) => ["one", group]))}`,
    remedy: "delete the files of all training runs except the one to resume",
  });
}

/** `Map.groupBy`, which Node 20 lacks. */
function groupBy<Key, T>(items: readonly T[], getKey: (each: T) => Key): ReadonlyMap<Key, readonly T[]> {
  const keys = new Set(items.map((each) => getKey(each)));
  return new Map([...keys].map((key) => [key, items.filter((each) => getKey(each) === key)]));
}

/** Formats groups of hosts: "one on n0, n1 and one on n2". */
function formatHostGroups(
  groups: readonly (readonly [what: string, on: readonly { readonly host: HostRanks }[]])[],
): string {
  return groups
    .map(([description, holders]) => `${description} on ${holders.map(({ host }) => host.name).join(", ")}`)
    .join(" and ");
}

/** A file on this host with the newest complete checkpoint. */
export interface LocalCheckpoint {
  readonly path: string;
  /** To be called when all ranks of the host have read it. */
  release(): Promise<void>;
}

/** The remedy for a path without a checkpoint. */
export const MISSING_REMEDY =
  "correct the path, or call findCheckpoint first, which returns undefined if there is no checkpoint";

/**
 * Copies the newest complete checkpoint to each host that lacks it, over the process group. Collective.
 *
 * @throws FileError if no host has one, or if the bytes of the copies differ.
 */
export async function fetchNewestCheckpoint(ctx: Context, call: CheckpointRequest): Promise<LocalCheckpoint> {
  const { where, path, options } = call;
  const checkpointReplicas = await inspectHosts(ctx, call);
  const { hosts, newestCheckpoint, replicas } = checkpointReplicas;
  if (newestCheckpoint === undefined) {
    throw new FileError({
      where,
      expected: "a checkpoint on at least one host",
      received: `none on ${hosts.map(({ name }) => name).join(", ")}`,
      remedy: MISSING_REMEDY,
    });
  }
  const digest = await agreeOnDigest(ctx, call, checkpointReplicas);
  const hostsWithoutCheckpoint = hosts.filter((host) => !replicas.includes(host));
  if (hostsWithoutCheckpoint.length === 0) return { path, async release() {} };
  // The hosts that have the checkpoint share the work.
  const transferPairs = hostsWithoutCheckpoint.map((host, i) => ({
    from: replicas[i % replicas.length]!.ranks[0]!,
    to: host.ranks[0]!,
  }));
  const transfer = { path, bytes: newestCheckpoint.bytes, label: where };
  let stagedFile: StagedFile | undefined;
  try {
    const stagedPaths = await runOnAllRanks(ctx, where, async () => {
      const receivers = transferPairs.filter(({ from }) => from === ctx.rank).map((pair) => pair.to);
      if (receivers.length > 0) await sendFile(ctx, receivers, transfer);
      const incomingTransfer = transferPairs.find((pair) => pair.to === ctx.rank);
      if (!incomingTransfer) return null;
      stagedFile = await receiveFile(ctx, incomingTransfer.from, transfer, (messages) =>
        stageMessages(call, digest, messages),
      );
      return stagedFile.path;
    });
    const [firstRank] = hosts.find(({ ranks }) => ranks.includes(ctx.rank))!.ranks;
    // With "rank0", other hosts keep the copy only until it has been read.
    if (options.copies === "rank0") {
      return { path: stagedPaths[firstRank!] ?? path, release: async () => void (await stagedFile?.discard()) };
    }
    await runOnAllRanks(ctx, where, async () => {
      await stagedFile?.publish();
    });
    return { path, async release() {} };
  } catch (error) {
    await stagedFile?.discard();
    throw error;
  }
}

/**
 * Returns the SHA-256 of the newest checkpoint. Throws a FileError if its bytes differ between the hosts that have it.
 */
async function agreeOnDigest(
  ctx: Context,
  { where, path }: CheckpointRequest,
  checkpointReplicas: CheckpointReplicas,
): Promise<string> {
  const { replicas, newestCheckpoint } = checkpointReplicas;
  const shouldComputeDigest = isFirstOnHost(ctx, replicas);
  const digests = await runOnAllRanks(ctx, where, () => (shouldComputeDigest ? computeDigest(path) : null));
  const hostDigests = replicas.map((host) => ({ host, digest: digests[host.ranks[0]!]! }));
  return checkEqualDigests(hostDigests, {
    where,
    expected: `the same contents on all hosts that have step ${newestCheckpoint!.steps}`,
    remedy: "delete the file on the hosts with an invalid copy",
  });
}

/** Returns the digest if it is equal on all hosts, otherwise throws a FileError. */
function checkEqualDigests(
  hostDigests: readonly { readonly host: HostRanks; readonly digest: string }[],
  details: { readonly where: string; readonly expected: string; readonly remedy: string },
): string {
  const groups = groupBy(hostDigests, ({ digest }) => digest);
  if (groups.size < 2) return hostDigests[0]!.digest;
  const formattedGroups = [...groups].map(([digest, group]) => [`SHA-256 ${digest.slice(0, 12)}…`, group] as const);
  throw new FileError({ ...details, received: formatHostGroups(formattedGroups) });
}

async function computeDigest(path: string): Promise<string> {
  const hash = createHash("sha256");
  for await (const chunk of createReadStream(path, { highWaterMark: 2 ** 20 })) hash.update(chunk as Buffer);
  return hash.digest("hex");
}

/**
 * Writes the received messages to a temporary file beside the checkpoint, and keeps it only if it has the given digest.
 */
async function stageMessages(
  { where, path }: CheckpointRequest,
  digest: string,
  messages: AsyncIterable<Uint8Array>,
): Promise<StagedFile> {
  const hash = createHash("sha256");
  const stagedFile = await stageFile(path, async (append) => {
    for await (const message of messages) {
      hash.update(message);
      await append(message);
    }
  });
  const receivedDigest = hash.digest("hex");
  if (receivedDigest === digest) return stagedFile;
  await stagedFile.discard();
  throw new FileError({
    where,
    expected: `a copy with SHA-256 ${digest}`,
    received: receivedDigest,
    remedy:
      "load the checkpoint again: the file on the sending host changed during the transfer, or its disk is faulty",
  });
}

/** Functions that `publishOnHosts` calls. */
interface HostWriter {
  /** Writes the file under a temporary name. `observe` is to be called with its bytes. */
  readonly stageToFile: (observe: (bytes: Uint8Array) => void) => Promise<StagedFile>;
  /** Takes part in the communication of `stageToFile` on ranks that write nothing. */
  readonly participate: () => Promise<void>;
}

/** Publishes what `stageToFile` wrote on the first rank of each host, on all hosts or on none. Collective. */
export async function publishOnHosts(
  ctx: Context,
  { where }: CheckpointRequest,
  hosts: readonly HostRanks[],
  { stageToFile, participate }: HostWriter,
): Promise<void> {
  let stagedFile: StagedFile | undefined;
  try {
    const digests = await runOnAllRanks(ctx, where, async () => {
      if (!isFirstOnHost(ctx, hosts)) {
        await participate();
        return null;
      }
      const hash = createHash("sha256");
      stagedFile = await stageToFile((bytes) => hash.update(bytes));
      return hash.digest("hex");
    });
    checkEqualDigests(
      hosts.map((host) => ({ host, digest: digests[host.ranks[0]!]! })),
      {
        where,
        expected: "identical parameters and optimizer states on all hosts",
        remedy: "call reduceGradients before each step, and construct the same model on all ranks",
      },
    );
    await runOnAllRanks(ctx, where, async () => {
      await stagedFile?.publish();
    });
  } catch (error) {
    await stagedFile?.discard();
    throw error;
  }
}
