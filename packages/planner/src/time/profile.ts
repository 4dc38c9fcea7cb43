import { checkArgument, defineOptions, type DType, option, OptionError, type OptionsOf } from "@mosaic/core";

/** Classes of links: from a rank to itself, between ranks of one node, between ranks of different nodes. */
export const linkClasses = ["self", "intra-node", "inter-node"] as const;
/** Class of a link, by the locations of its two ranks. */
export type LinkClass = (typeof linkClasses)[number];

const positiveNumberRange = { above: 0 } as const;
const nonNegativeRange = { min: 0 } as const;
const positiveRange = { min: 1 } as const;

export const linkOptions = defineOptions("Link", {
  /** Seconds from when both sides are ready until the first byte moves. */
  latency: option.number(nonNegativeRange),
  /** Bytes per second of one port, in each direction if it is duplex, else in both directions together. */
  bandwidth: option.number(positiveNumberRange),
  /** Number of ranks of a node that share a port; 1 if each has its own. */
  sharedBy: option.integer(positiveRange),
  /** Whether a port sends and receives without sharing bandwidth between both. */
  duplex: option.boolean(),
});
/**
 * A link between ranks. A message of S bytes that has a port to itself takes latency + S / bandwidth (Hockney's α and
 * 1/β). Messages at the same port share its bandwidth evenly.
 */
export type Link = OptionsOf<typeof linkOptions>;

export const attentionSpeedOptions = defineOptions("AttentionSpeed", {
  /** Floating-point operations per second reached on large tiles. */
  flops: option.number(positiveNumberRange),
  /** Query rows of a tile (with many keys) at which the kernel runs at half of full speed. */
  halfSpeedRows: option.number(nonNegativeRange),
  /** Keys of a tile (with many rows) at which the kernel runs at half of full speed. */
  halfSpeedKeys: option.number(nonNegativeRange),
  /** Head size at which the kernel runs at half of full speed. */
  halfSpeedHeadDim: option.number(nonNegativeRange),
  /**
   * Factor by which it is slower if the heads of a row are adjacent in memory, instead of the rows of a head. Default:
   * 1.
   */
  interleaved: option.number({ ...positiveNumberRange, optional: true }),
});
/**
 * Speed of an attention kernel for one dtype. For P visible pairs of a query and a key, counted over all heads of size
 * D, it takes the time of F · (D + halfSpeedHeadDim) · (P + halfSpeedKeys · rows + halfSpeedRows · keys) floating-point operations, where
 * F is 4 forward and 10 backward, and rows and keys are also counted over all heads. A tile of `halfSpeedKeys` keys (and
 * many rows) therefore runs at half of full speed: Hockney's n½, in each dimension.
 */
export type AttentionSpeed = OptionsOf<typeof attentionSpeedOptions>;

export const wavesOptions = defineOptions("Waves", {
  /** Number of multiprocessors. */
  units: option.integer(positiveRange),
  /** Query rows of a head that one multiprocessor processes at a time. */
  rows: option.integer(positiveRange),
});
/**
 * How much of a device one call can fill: each of `units` multiprocessors processes `rows` query rows of a head at a
 * time.
 */
export type Waves = OptionsOf<typeof wavesOptions>;

const speedSettings = { optional: true, expected: "an AttentionSpeed" } as const;
const speedsByDType = {
  fields: {
    float32: option.nested(attentionSpeedOptions, speedSettings),
    bfloat16: option.nested(attentionSpeedOptions, speedSettings),
    float16: option.nested(attentionSpeedOptions, speedSettings),
  } satisfies Readonly<Record<DType, unknown>>,
};

export const kernelSpeedsOptions = defineOptions("KernelSpeeds", {
  /** Seconds that every kernel takes in addition. */
  launch: option.number(nonNegativeRange),
  /** Bytes per second, read and written, of copies, sums, merges and other kernels that only move memory. */
  bandwidth: option.number(positiveNumberRange),
  /** Floating-point operations per second of matrix products. */
  matmul: option.number(positiveNumberRange),
  /** An AttentionSpeed of the forward for each dtype that is simulated. */
  attend: option.nested(speedsByDType),
  /** An AttentionSpeed of the backward for each dtype that is simulated. */
  attendBackward: option.nested(speedsByDType),
  /** How calls fill the device. Default: a call of any size fills it. */
  waves: option.nested(wavesOptions, { optional: true }),
});
/** Speeds of kernels on one rank that has its device, or its cores, to itself. */
export type KernelSpeeds = OptionsOf<typeof kernelSpeedsOptions>;

export const sharedCoresOptions = defineOptions("SharedCores", {
  /** Combined speed of all cores, in units of one rank alone: 2 on two cores, less where memory limits them. */
  perNode: option.number(positiveNumberRange),
  /**
   * Share of that speed that ranks keep when they wait for each other: threads are not scheduled evenly, and the last
   * one determines the time. Default: 1.
   */
  efficiency: option.number({ above: 0, max: 1, optional: true }),
  /**
   * Additional seconds of each wait for a collective, until the threads of the rank are scheduled again. Default: 0.
   */
  wait: option.number({ ...nonNegativeRange, optional: true }),
});
/** Cores that the ranks of a node share. Kernels and messages slow down when more of them run than there are cores. */
export type SharedCores = OptionsOf<typeof sharedCoresOptions>;

const linkSettings = { expected: "a Link" } as const;
const linksByClass = {
  fields: {
    self: option.nested(linkOptions, linkSettings),
    "intra-node": option.nested(linkOptions, linkSettings),
    "inter-node": option.nested(linkOptions, linkSettings),
  } satisfies Readonly<Record<LinkClass, unknown>>,
};

export const profileOptions = defineOptions("Profile", {
  /** Name of the machine in messages and pictures. */
  name: option.string({ expected: "a name" }),
  /** Number of ranks of a node. Ranks 0 … ranksPerNode − 1 are on the first node, and so on. */
  ranksPerNode: option.integer(positiveRange),
  /** A Link for each class: from a rank to itself, between ranks of one node, between ranks of different nodes. */
  links: option.nested(linksByClass),
  /** Speeds of kernels: a KernelSpeeds. */
  kernels: option.nested(kernelSpeedsOptions),
  /** Seconds that the host takes to enqueue one operation. No operation begins before it is enqueued. */
  enqueue: option.number(nonNegativeRange),
  /**
   * Seconds between the end of a step and the first operation of the next, in which the host is notified, releases,
   * checks and plans. Default: 0.
   */
  stepOverhead: option.number({ ...nonNegativeRange, optional: true }),
  /** Share of a rank's compute that is lost while bytes move, because communication uses some multiprocessors. */
  communicationTax: option.number({ min: 0, below: 1 }),
  /**
   * Algorithm of collectives; allToAll is always direct. sendRecv, groupCast and groupReduce specify their own
   * transfers.
   */
  collectives: option.oneOf(["direct", "ring"]),
  /** Whether a rank runs one collective at a time, or one of each group. */
  channels: option.oneOf(["rank", "group"]),
  /** Cores that the ranks of a node share: a SharedCores. Default: each rank has its own. */
  cores: option.nested(sharedCoresOptions, { optional: true }),
});
/**
 * A machine as the time model describes it. Plain data: `JSON.stringify` writes it, `parseProfile` reads and checks it.
 * All values are in seconds, bytes and their ratios.
 */
export type Profile = OptionsOf<typeof profileOptions>;

/**
 * Reads a profile from JSON text, or checks one that is already an object.
 *
 * @example
 * ```ts
 * import { parseProfile, profiles } from "@mosaic/planner";
 * const mine = { ...profiles["h100-ib400"], name: "mine", ranksPerNode: 4 };
 * parseProfile(JSON.stringify(mine)).ranksPerNode; // => 4
 * ```
 * @throws OptionError that names the first missing, unknown or invalid field.
 */
export function parseProfile(profile: string | Profile): Profile {
  const parsedProfile: unknown = typeof profile === "string" ? parseJson(profile) : profile;
  const { name } = profileNameOptions.parse(
    option.isObject(parsedProfile) ? { name: parsedProfile["name"] } : parsedProfile,
    "profile",
  );
  profileOptions.parse(parsedProfile, `profile ${name}`);
  return parsedProfile as Profile;
}

/** Checks the name first, because errors about all other fields contain it. */
const profileNameOptions = defineOptions("profile", { name: profileOptions.fields.name });

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    throw new OptionError({ where: "profile", expected: "JSON", received: (error as Error).message });
  }
}

const ranksPerNodeOption = profileOptions.fields.ranksPerNode;
const rankOption = option.integer({ min: 0 });

/**
 * Returns the class of the link between two world ranks: "self", "intra-node" or "inter-node".
 *
 * @example
 * ```ts
 * import { linkClass, profiles } from "@mosaic/planner";
 * linkClass(profiles["h100-ib400"], 7, 8); // => "inter-node"
 * ```
 * @throws OptionError for a rank that is not an integer ≥ 0, or a profile without ranksPerNode.
 */
export function linkClass(profile: Pick<Profile, "ranksPerNode">, a: number, b: number): LinkClass {
  checkRanksPerNode("linkClass", profile);
  checkArgument("linkClass: rank", a, rankOption);
  checkArgument("linkClass: rank", b, rankOption);
  if (a === b) return "self";
  const { ranksPerNode } = profile;
  return Math.floor(a / ranksPerNode) === Math.floor(b / ranksPerNode) ? "intra-node" : "inter-node";
}

/** Throws an OptionError unless a profile, or the relevant part of one, has the ranks per node. */
export function checkRanksPerNode(where: string, profile: Pick<Profile, "ranksPerNode">): void {
  const count: unknown = (profile as Partial<Profile> | null | undefined)?.ranksPerNode;
  if (!ranksPerNodeOption.accepts(count)) checkArgument(`${where}: ranksPerNode`, count, ranksPerNodeOption);
}
