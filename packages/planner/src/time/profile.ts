import { checkArgument, defineOptions, type DType, option, OptionError, type OptionsOf } from "@mosaic/core";

/** How two ranks are joined: a rank to itself, ranks of one node, ranks of different nodes. */
export const linkClasses = ["self", "intra-node", "inter-node"] as const;
export type LinkClass = (typeof linkClasses)[number];

const positiveNumberRange = { above: 0 } as const;
const nonNegativeRange = { min: 0 } as const;
const positiveRange = { min: 1 } as const;

export const linkOptions = defineOptions("Link", {
  /** Seconds from when both sides have come until the first byte moves. */
  latency: option.number(nonNegativeRange),
  /** Bytes per second of one port: each way if it is duplex, else both ways together. */
  bandwidth: option.number(positiveNumberRange),
  /** Ranks of a node that share a port; 1 where each has its own. */
  sharedBy: option.integer(positiveRange),
  /** Whether what a port sends leaves what it receives alone. */
  duplex: option.boolean(),
});
/**
 * What joins ranks. A message of S bytes that has a port to itself takes latency + S / bandwidth (Hockney's α and 1/β);
 * messages at the same port share its bandwidth evenly.
 */
export type Link = OptionsOf<typeof linkOptions>;

export const attentionSpeedOptions = defineOptions("AttentionSpeed", {
  /** Floating-point operations per second reached on large tiles. */
  flops: option.number(positiveNumberRange),
  /** Query rows of a tile (of many keys) at which it runs at half of full speed. */
  halfRows: option.number(nonNegativeRange),
  /** Keys of a tile (of many rows) at which it runs at half of full speed. */
  halfKeys: option.number(nonNegativeRange),
  /** Size of a head at which it runs at half of full speed. */
  halfDim: option.number(nonNegativeRange),
  /** How many times as long it takes where the rows of a head do not lie side by side, but the heads of a row. Default: 1. */
  interleaved: option.number({ ...positiveNumberRange, optional: true }),
});
/**
 * Speed of an attention kernel for one dtype. Of P visible pairs of a query and a key, counted over all heads of size D,
 * it computes F · (D + halfDim) · (P + halfKeys · rows + halfRows · keys) floating-point operations, F = 4 forward and 10
 * backward, rows and keys over all heads too. So a tile of `halfKeys` keys (of many rows) runs at half of full speed:
 * Hockney's n½, in each dimension.
 */
export type AttentionSpeed = OptionsOf<typeof attentionSpeedOptions>;

export const wavesOptions = defineOptions("Waves", {
  /** Multiprocessors. */
  units: option.integer(positiveRange),
  /** Query rows of a head that one of them takes at a time. */
  rows: option.integer(positiveRange),
});
/** How much of a device one call can fill: `units` multiprocessors each take `rows` query rows of a head at a time. */
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
  /** Seconds that every kernel takes besides. */
  launch: option.number(nonNegativeRange),
  /** Bytes per second, read and written, of copies, sums, merges and all that only moves memory. */
  bandwidth: option.number(positiveNumberRange),
  /** Floating-point operations per second of matrix products. */
  matmul: option.number(positiveNumberRange),
  /** An AttentionSpeed for each dtype that is simulated: of the forward. */
  attend: option.nested(speedsByDType),
  /** An AttentionSpeed for each dtype that is simulated: of the backward. */
  attendBackward: option.nested(speedsByDType),
  /** How calls fill the device. Default: a call of any size fills it. */
  waves: option.nested(wavesOptions, { optional: true }),
});
/** How long kernels take on one rank that has its device, or its cores, to itself. */
export type KernelSpeeds = OptionsOf<typeof kernelSpeedsOptions>;

export const sharedCoresOptions = defineOptions("SharedCores", {
  /** What all cores together achieve, in units of one rank alone: 2 on two cores, less where memory limits them. */
  perNode: option.number(positiveNumberRange),
  /** Share of that speed which ranks keep that wait for each other: threads are not scheduled evenly, and the last counts. Default: 1. */
  efficiency: option.number({ above: 0, max: 1, optional: true }),
  /** Seconds besides for which a rank stands still at each wait for a collective: until its threads are scheduled again. Default: 0. */
  wait: option.number({ ...nonNegativeRange, optional: true }),
});
/** Cores that the ranks of a node share: kernels and messages alike slow down when more of them run than there are cores. */
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
  /** What messages and pictures call the machine. */
  name: option.string({ expected: "a name" }),
  /** Ranks 0 … ranksPerNode − 1 are the first node's, and so on. */
  ranksPerNode: option.integer(positiveRange),
  /** A Link for each class: of a rank to itself, of ranks of one node, of ranks of different nodes. */
  links: option.nested(linksByClass),
  /** How long kernels take: a KernelSpeeds. */
  kernels: option.nested(kernelSpeedsOptions),
  /** Seconds that the host takes to enqueue one operation; nothing begins before it is enqueued. */
  enqueue: option.number(nonNegativeRange),
  /** Seconds between the end of a step and the first operation of the next: the host is notified, releases, checks and plans. Default: 0. */
  stepOverhead: option.number({ ...nonNegativeRange, optional: true }),
  /** Share of a rank's compute that its communication takes while bytes move: multiprocessors lent to it. */
  communicationTax: option.number({ min: 0, below: 1 }),
  /** Which algorithm collectives follow; allToAll is always direct. sendRecv, groupCast and groupReduce state their own transfers. */
  collectives: option.oneOf(["direct", "ring"]),
  /** Whether a rank runs one collective at a time, or one of each group. */
  channels: option.oneOf(["rank", "group"]),
  /** Cores that the ranks of a node share: a SharedCores. Default: each rank has its own. */
  cores: option.nested(sharedCoresOptions, { optional: true }),
});
/**
 * A machine, as far as time goes. Plain data: `JSON.stringify` writes it, `parseProfile` reads and checks it. Seconds, bytes
 * and their ratios throughout.
 */
export type Profile = OptionsOf<typeof profileOptions>;

/**
 * Reads a profile from JSON text, or checks one that is an object already.
 *
 * @example
 * ```ts
 * import { parseProfile, profiles } from "@mosaic/planner";
 * const mine = { ...profiles["h100-ib400"], name: "mine", ranksPerNode: 4 };
 * parseProfile(JSON.stringify(mine)).ranksPerNode; // => 4
 * ```
 * @throws OptionError that names the first field that is missing, unknown, or not what it should be.
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

/** Messages on all other fields have the name. */
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

/** The class of the link between two world ranks. */
export function linkClass(profile: Pick<Profile, "ranksPerNode">, a: number, b: number): LinkClass {
  checkRanksPerNode("linkClass", profile);
  checkArgument("linkClass: rank", a, rankOption);
  checkArgument("linkClass: rank", b, rankOption);
  if (a === b) return "self";
  const { ranksPerNode } = profile;
  return Math.floor(a / ranksPerNode) === Math.floor(b / ranksPerNode) ? "intra-node" : "inter-node";
}

/** Throws an OptionError unless a profile, or what matters of it, has the ranks of a node. */
export function checkRanksPerNode(where: string, profile: Pick<Profile, "ranksPerNode">): void {
  const count: unknown = (profile as Partial<Profile> | null | undefined)?.ranksPerNode;
  if (!ranksPerNodeOption.accepts(count)) checkArgument(`${where}: ranksPerNode`, count, ranksPerNodeOption);
}
