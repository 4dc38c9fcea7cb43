import {
  type AttentionBackend,
  checkAxisNames,
  type Coordinate,
  coordinateOf,
  defineOptions,
  expectValue,
  option,
  OptionError,
  type OptionsOf,
  type ProcessGroup,
} from "@mosaic/core";
import { type RankDigit, meshDigits, meshSize } from "../symmetry/translations.ts";
import { symbolicMesh, SymbolicContext } from "./context.ts";
import { SymbolicDevice } from "./device.ts";
import { type GroupInfo, type SplitCall, SymbolicGroup } from "./group.ts";
import { InternPool } from "./intern-pool.ts";
import { RankRecord } from "./rank-record.ts";

export const symbolicWorldOptions = defineOptions("symbolicWorld", {
  /** Lengths of the named axes; their product is the number of ranks. */
  mesh: option.meshShape(),
  /** Backends that can be selected by name. Default []. */
  backends: option.array(option.backend(), { default: [] }),
  /** Host number of each rank, row-major in the mesh. Default: not known. */
  hosts: option.array(option.integer({ min: 0 }), { optional: true }),
});
/** The mesh of a symbolic world. */
export type SymbolicWorldOptions = OptionsOf<typeof symbolicWorldOptions>;

/** All ranks of a mesh, with the records of what they do. */
export interface SymbolicWorld {
  /** Contexts of all ranks, by rank. */
  readonly contexts: readonly SymbolicContext[];
  /** All groups created, by number: one for each line of ranks along a mesh axis, and those that were split off. */
  readonly groups: readonly GroupInfo[];
  readonly interned: InternPool;
}

/** Maximum number of ranks of a mesh. */
export const maxRanks: number = 2 ** 16;

/**
 * Creates all ranks of a mesh in one process, without memory, threads or values. Run a program on every context, one
 * rank after another; `contexts[r].device.record` then contains what rank r did. For attention, `record` does this.
 *
 * @example
 * ```ts
 * import { zeros } from "@mosaic/core";
 * import { symbolicWorld } from "@mosaic/planner";
 * const { contexts } = symbolicWorld({ mesh: { node: 128, gpu: 8 } });
 * contexts.length; // => 1024
 * using x = zeros(contexts[9]!, [1_000_000, 128]);
 * contexts[9]!.device.memory().allocated; // => 512000000
 * ```
 * @throws OptionError for a mesh that `init` would reject, or of more than 65 536 ranks.
 */
export function symbolicWorld(options: SymbolicWorldOptions): SymbolicWorld {
  const { mesh, ...worldOptions } = symbolicWorldOptions.parse(options);
  const world = new LazyWorld("symbolicWorld", mesh, worldOptions);
  const contexts = Array.from({ length: world.size }, (_, rank) => world.context(rank));
  return { contexts, groups: world.groups, interned: world.interned };
}

function checkMesh(where: string, mesh: Coordinate): void {
  checkAxisNames(`${where}: mesh`, mesh);
  for (const [axis, length] of Object.entries(mesh))
    expectValue(`${where}: mesh.${axis}`, Number.isSafeInteger(length) && length > 0, "an integer ≥ 1", length);
}

interface LazyWorldOptions {
  /** Backends that can be selected by name. */
  readonly backends?: readonly AttentionBackend[];
  /** The host of each rank. */
  readonly hosts?: readonly number[] | undefined;
}

/** A world whose ranks, and the groups of these ranks, are created on first use. */
export class LazyWorld {
  /** Number of ranks. */
  readonly size: number;
  readonly interned: InternPool = new InternPool();
  readonly #mesh: Coordinate;
  readonly #backends: readonly AttentionBackend[];
  readonly #digits: readonly RankDigit[];
  readonly #registry: GroupRegistry;
  /** Groups by axis and the first rank along it. */
  readonly #groupsByLine = new Map<string, GroupInfo>();

  /** @throws OptionError for a mesh that `init` would reject, or that is too large. */
  constructor(where: string, mesh: Coordinate, { backends = [], hosts }: LazyWorldOptions = {}) {
    checkMesh(where, mesh);
    this.size = meshSize(mesh);
    expectValue(
      `${where}: hosts`,
      !hosts || hosts.length === this.size,
      `an array of ${this.size} hosts, one per rank`,
      hosts,
    );
    if (this.size > maxRanks) {
      throw new OptionError({
        where,
        expected: `a mesh of at most ${maxRanks} ranks`,
        received: `${JSON.stringify(mesh)}, ${this.size} ranks`,
        remedy: "use fewer ranks; ranks along axes that attention does not use are equivalent",
      });
    }
    this.#mesh = mesh;
    this.#backends = backends;
    this.#registry = new GroupRegistry(hosts);
    this.#digits = meshDigits(mesh);
  }

  get groups(): readonly GroupInfo[] {
    return this.#registry.groups;
  }

  /** Creates a new context for a rank. */
  context(rank: number): SymbolicContext {
    const device = new SymbolicDevice(new RankRecord(rank, this.interned));
    const world = new SymbolicGroup(device, this.#groupAlong("", { stride: 1, length: this.size }, rank));
    const groups = new Map<string, ProcessGroup>([["", world]]);
    for (const digit of this.#digits) {
      // As in `init`, the group of an axis that contains all ranks is the world.
      const isWholeWorld = digit.length === this.size;
      groups.set(
        digit.axis,
        isWholeWorld ? world : new SymbolicGroup(device, this.#groupAlong(digit.axis, digit, rank)),
      );
    }
    const mesh = symbolicMesh(this.#mesh, coordinateOf(rank, this.#mesh), groups);
    return new SymbolicContext({ device, mesh, backends: this.#backends });
  }

  #groupAlong(axis: string, { stride, length }: Pick<RankDigit, "stride" | "length">, rank: number): GroupInfo {
    const firstRank = rank - (Math.floor(rank / stride) % length) * stride;
    const key = `${axis}:${firstRank}`;
    let info = this.#groupsByLine.get(key);
    if (!info) {
      const ranks = Array.from({ length }, (_, i) => firstRank + i * stride);
      info = this.#registry.add(axis === "" ? "world" : axis, axis, ranks);
      this.#groupsByLine.set(key, info);
    }
    return info;
  }
}

function appendTo<K, V>(listsByKey: Map<K, V[]>, key: K, value: V): void {
  const list = listsByKey.get(key);
  if (list) list.push(value);
  else listsByKey.set(key, [value]);
}

interface PendingSplit extends SplitCall {
  readonly resolve: (info: GroupInfo) => void;
}

/**
 * Numbers groups, and creates those that ranks split off. When the last member has called `split`, all members receive
 * their groups.
 */
class GroupRegistry {
  readonly groups: GroupInfo[] = [];
  readonly #hosts: readonly number[] | undefined;
  readonly #families = new Map<string, number>();
  readonly #pendingSplits = new Map<GroupInfo, PendingSplit[]>();

  constructor(hosts: readonly number[] | undefined) {
    this.#hosts = hosts;
  }

  /** `family` is equal for all groups along one axis. */
  add(name: string, family: string, ranks: readonly number[]): GroupInfo {
    const split = (call: SplitCall): Promise<GroupInfo> => this.#split(call);
    let familyNumber = this.#families.get(family);
    if (familyNumber === undefined) this.#families.set(family, (familyNumber = this.#families.size));
    const hosts = this.#hosts && ranks.map((rank) => this.#hosts![rank]!);
    const info = { id: this.groups.length, family: familyNumber, name, ranks, ...(hosts && { hosts }), split };
    this.groups.push(info);
    return info;
  }

  #split(call: SplitCall): Promise<GroupInfo> {
    return new Promise((resolve) => {
      appendTo(this.#pendingSplits, call.parent, { ...call, resolve });
      const pendingCalls = this.#pendingSplits.get(call.parent)!;
      if (pendingCalls.length < call.parent.ranks.length) return;
      this.#pendingSplits.delete(call.parent);
      const splitsByColor = new Map<number, PendingSplit[]>();
      for (const pendingCall of pendingCalls.toSorted((a, b) => a.rank - b.rank))
        appendTo(splitsByColor, pendingCall.color, pendingCall);
      for (const splits of splitsByColor.values()) {
        const ranks = splits.map(({ rank }) => call.parent.ranks[rank]!);
        // Each split-off group has a family of its own.
        const childInfo = this.add(splits[0]!.name, `split ${this.groups.length}`, ranks);
        for (const { resolve } of splits) resolve(childInfo);
      }
    });
  }
}
