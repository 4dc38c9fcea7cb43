import {
  type AttentionBackend,
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
  /** Backends that may be named. Default []. */
  backends: option.array(option.backend(), { default: [] }),
  /** The host of each rank, row-major in the mesh, by number. Default: not known. */
  hosts: option.array(option.integer({ min: 0 }), { optional: true }),
});
/** The mesh of a symbolic world. */
export type SymbolicWorldOptions = OptionsOf<typeof symbolicWorldOptions>;

/** All ranks of a mesh, and what they do written down. */
export interface SymbolicWorld {
  /** One for every rank, in order. */
  readonly contexts: readonly SymbolicContext[];
  /** Every group made, by number: one per axis and its neighbours, and those split off. */
  readonly groups: readonly GroupInfo[];
  readonly interned: InternPool;
}

/** The most ranks of a mesh. */
export const maxRanks: number = 2 ** 16;

/**
 * The ranks of a mesh in one process, without memory, threads or values: run a program on every context, rank after rank,
 * and `contexts[r].device.record` is what it did there. For attention, `record` does that.
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

/** A mesh of whole ranks, whose axes keep the order in which they are named: numbers would come first. */
function checkMesh(where: string, mesh: Coordinate): void {
  const isValidLength = (length: number): boolean => Number.isSafeInteger(length) && length > 0;
  if (Object.entries(mesh).every(([axis, length]) => /^[A-Za-z_]/.test(axis) && isValidLength(length))) return;
  throw new OptionError({
    where,
    expected: "a mesh with axis names that begin with a letter or an underscore, and integer axis sizes ≥ 1",
    received: JSON.stringify(mesh),
  });
}

interface LazyWorldOptions {
  /** Backends that may be named. */
  readonly backends?: readonly AttentionBackend[];
  /** The host of each rank. */
  readonly hosts?: readonly number[] | undefined;
}

/** A world whose ranks are created on first use, and no groups but theirs. */
export class LazyWorld {
  /** Number of ranks. */
  readonly size: number;
  readonly interned: InternPool = new InternPool();
  readonly #mesh: Coordinate;
  readonly #backends: readonly AttentionBackend[];
  readonly #digits: readonly RankDigit[];
  readonly #registry: GroupRegistry;
  /** By axis and the first rank of the line along it. */
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

  /** A context of a rank: a new one each time. */
  context(rank: number): SymbolicContext {
    const device = new SymbolicDevice(new RankRecord(rank, this.interned));
    const world = new SymbolicGroup(device, this.#groupAlong("", { stride: 1, length: this.size }, rank));
    const groups = new Map<string, ProcessGroup>([["", world]]);
    for (const digit of this.#digits) {
      // As `init` has it: an axis that joins all ranks is the world.
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

/** Numbers groups, and makes those that ranks split off: when the last member has called, all are notified of it. */
class GroupRegistry {
  readonly groups: GroupInfo[] = [];
  readonly #hosts: readonly number[] | undefined;
  readonly #families = new Map<string, number>();
  readonly #pendingSplits = new Map<GroupInfo, PendingSplit[]>();

  constructor(hosts: readonly number[] | undefined) {
    this.#hosts = hosts;
  }

  /** `family`: what groups along one axis have in common. */
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
        // A family of its own: no other group has it.
        const childInfo = this.add(splits[0]!.name, `split ${this.groups.length}`, ranks);
        for (const { resolve } of splits) resolve(childInfo);
      }
    });
  }
}
