// Checkpoints of hosts without a shared file system: which host has which, and how those that lack it get it.
import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { hostname } from "node:os";
import { type Context, defineOptions, option, type OptionsOf, type ResolvedOptionsOf } from "@mosaic/core";
import { FileError } from "../safetensors/format.ts";
import { type StagedFile, stageFile } from "../safetensors/staged-file.ts";
import { type CheckpointFile, inspectCheckpoint } from "./checkpoint-file.ts";
import { receiveFile, runOnAllRanks, sendFile } from "./rank-messages.ts";

export const checkpointOptions = defineOptions("checkpoint", {
  /**
   * Where checkpoints lie: one file in a file system that all hosts share ("shared"), a whole copy in a directory of each host
   * ("perHost"), or one file on the host of rank 0, which only that host can read ("rank0"). Default "shared".
   */
  copies: option.oneOf(["shared", "perHost", "rank0"], { default: "shared" }),
  /**
   * This rank's host: ranks that name the same one share a directory. Default: MOSAIC_HOST, else the host's name with the
   * launcher's number of the node (GROUP_RANK).
   */
  host: option.string({ optional: true }),
});
/** Where the hosts of a job keep checkpoints. All of it has defaults. */
export type CheckpointOptions = OptionsOf<typeof checkpointOptions>;
type CheckpointSettings = ResolvedOptionsOf<typeof checkpointOptions>;

/** The ranks that share a directory. */
interface HostRanks {
  readonly name: string;
  /** Lowest first; that one reads and writes for all. */
  readonly ranks: readonly number[];
}

/** A call of a checkpoint function. */
export interface CheckpointRequest {
  /** What messages begin with: the function and the path. */
  readonly where: string;
  readonly path: string;
  readonly options: CheckpointSettings;
}

/** How this rank names its host. */
export function hostName({ host }: CheckpointSettings): string {
  if (host !== undefined) return host;
  const { MOSAIC_HOST, GROUP_RANK } = process.env;
  if (MOSAIC_HOST) return MOSAIC_HOST;
  return GROUP_RANK ? `node ${GROUP_RANK} (${hostname()})` : hostname();
}

/** The hosts of all ranks, in the order of their lowest ranks, from each rank's name of its own. */
export function groupByHost(names: readonly string[]): readonly HostRanks[] {
  return [...new Set(names)].map((name) => ({
    name,
    ranks: names.flatMap((each, rank) => (each === name ? [rank] : [])),
  }));
}

/** Whether this rank reads and writes for its host. */
export function isFirstOnHost(ctx: Context, hosts: readonly HostRanks[]): boolean {
  return hosts.some(({ ranks }) => ranks[0] === ctx.rank);
}

/** A checkpoint that `findCheckpoint` found. */
export interface FoundCheckpoint {
  /** Steps that the optimizer had taken; 0 without one. */
  readonly steps: number;
  /** The hosts that have it, by name. */
  readonly hosts: readonly string[];
}

/** What the hosts have: the newest complete checkpoint, and who has it. */
interface CheckpointReplicas {
  readonly hosts: readonly HostRanks[];
  readonly newestCheckpoint: Extract<CheckpointFile, { kind: "complete" }> | undefined;
  readonly replicas: readonly HostRanks[];
}

/** Whether any host has a checkpoint, and which is the newest that is complete. Collective; the same on every rank. */
export async function inspectHosts(
  ctx: Context,
  { where, path, options }: CheckpointRequest,
): Promise<CheckpointReplicas> {
  const names = await runOnAllRanks(ctx, where, () => hostName(options));
  // For a file system that all share, rank 0 looks.
  const hosts = groupByHost(options.copies === "shared" ? names.map(() => names[0]!) : names);
  const isInspector = isFirstOnHost(ctx, hosts);
  const inspectedFiles = await runOnAllRanks(ctx, where, () => (isInspector ? inspectCheckpoint(path) : null));
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

/** Step 90 of a training that was given up must not win over step 3 of the one that goes on. */
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

/** "one on n0, n1 and one on n2". */
function formatHostGroups(
  groups: readonly (readonly [what: string, on: readonly { readonly host: HostRanks }[]])[],
): string {
  return groups
    .map(([description, holders]) => `${description} on ${holders.map(({ host }) => host.name).join(", ")}`)
    .join(" and ");
}

/** A file of this host with the newest complete checkpoint. */
export interface LocalCopy {
  readonly path: string;
  /** To be called when all ranks of the host have read it. */
  release(): Promise<void>;
}

/**
 * Gives each host the newest complete checkpoint, over the group, unless it has it. Collective.
 *
 * @throws FileError where no host has one, or where hosts that have it hold different bytes.
 */
export async function fetchNewestCheckpoint(ctx: Context, call: CheckpointRequest): Promise<LocalCopy> {
  const { where, path, options } = call;
  const checkpointReplicas = await inspectHosts(ctx, call);
  const { hosts, newestCheckpoint, replicas } = checkpointReplicas;
  if (newestCheckpoint === undefined) {
    throw new FileError({
      where,
      expected: "a checkpoint on at least one host",
      received: `none on ${hosts.map(({ name }) => name).join(", ")}`,
    });
  }
  const digest = await agreeOnDigest(ctx, call, checkpointReplicas);
  const hostsWithoutCheckpoint = hosts.filter((host) => !replicas.includes(host));
  if (hostsWithoutCheckpoint.length === 0) return { path, async release() {} };
  // The hosts that have it share the work.
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
    // Copies of the host of rank 0 stay its own.
    if (options.copies === "rank0") {
      return { path: stagedPaths[firstRank!] ?? path, release: async () => void (await stagedFile?.discard()) };
    }
    await runOnAllRanks(ctx, where, async () => {
      await stagedFile?.publish();
      return null;
    });
    return { path, async release() {} };
  } catch (error) {
    await stagedFile?.discard();
    throw error;
  }
}

/** The SHA-256 of the newest checkpoint, of which all hosts that have it must hold the same bytes. */
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

/** The digest that all hosts have. */
export function checkEqualDigests(
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

/** Writes what arrives beside the checkpoint's place, and keeps it only if it has that digest. */
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

/** What `stage` makes on the first rank of each host is published on all of them or on none. Collective. */
export async function publishOnHosts(
  ctx: Context,
  { where }: CheckpointRequest,
  hosts: readonly HostRanks[],
  stageToFile: (observe: (bytes: Uint8Array) => void) => Promise<StagedFile>,
): Promise<void> {
  let stagedFile: StagedFile | undefined;
  try {
    const digests = await runOnAllRanks(ctx, where, async () => {
      if (!isFirstOnHost(ctx, hosts)) return null;
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
      return null;
    });
  } catch (error) {
    await stagedFile?.discard();
    throw error;
  }
}
