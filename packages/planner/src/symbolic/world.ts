import {
  type AttentionBackend,
  checkOptionNames,
  type Coordinate,
  coordinateOf,
  omitAxes,
  type ProcessGroup,
} from "@mosaic/core";
import { checkMesh } from "./checks.ts";
import { meshOf, SymbolicContext } from "./context.ts";
import { SymbolicDevice } from "./device.ts";
import { type Members, type SplitCall, SymbolicGroup } from "./group.ts";
import { Names } from "./names.ts";
import { RankRecord } from "./rank-record.ts";

export interface SymbolicWorldOptions {
  /** Lengths of the named axes; their product is the number of ranks. */
  readonly mesh: Coordinate;
  /** Backends that may be named. */
  readonly backends?: readonly AttentionBackend[];
}

/** All ranks of a mesh, and what they do written down. */
export interface SymbolicWorld {
  /** One for every rank, in order. */
  readonly contexts: readonly SymbolicContext[];
  /** Every group made, by number: one per axis and its neighbours, and those split off. */
  readonly groups: readonly Members[];
  readonly names: Names;
}

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
 * @throws OptionError for a mesh that `init` would refuse.
 */
export function symbolicWorld(options: SymbolicWorldOptions): SymbolicWorld {
  checkOptionNames("symbolicWorld", options, ["mesh", "backends"]);
  const { mesh, backends = [] } = options;
  checkMesh("symbolicWorld", mesh);
  const names = new Names();
  const registry = new Registry();
  const axes = Object.keys(mesh);
  const size = axes.reduce((product, axis) => product * mesh[axis]!, 1);
  const coordinates = Array.from({ length: size }, (_, rank) => coordinateOf(rank, mesh));
  const world = registry.add(
    "world",
    coordinates.map((_, rank) => rank),
  );
  const neighbours = new Map<string, number[]>();
  for (const [rank, at] of coordinates.entries()) {
    for (const axis of axes) push(neighbours, line(at, axis), rank);
  }
  const members = new Map<string, Members>();
  for (const [name, ranks] of neighbours) {
    members.set(name, ranks.length === size ? world : registry.add(name.slice(0, name.indexOf(":")), ranks));
  }
  const contexts = coordinates.map((at, rank) => {
    const device = new SymbolicDevice(new RankRecord(rank, names));
    const all = new SymbolicGroup(device, world);
    const groups = new Map<string, ProcessGroup>([["", all]]);
    for (const axis of axes) {
      const own = members.get(line(at, axis))!;
      groups.set(axis, own === world ? all : new SymbolicGroup(device, own));
    }
    return new SymbolicContext({ device, mesh: meshOf(mesh, at, groups), backends });
  });
  return { contexts, groups: registry.groups, names };
}

/** The ranks that differ only along an axis have one of these in common. */
function line(at: Coordinate, axis: string): string {
  return `${axis}:${JSON.stringify(omitAxes(at, [axis]))}`;
}

function push<K, V>(lists: Map<K, V[]>, key: K, value: V): void {
  const list = lists.get(key);
  if (list) list.push(value);
  else lists.set(key, [value]);
}

interface Waiting extends SplitCall {
  readonly resolve: (members: Members) => void;
}

/** Numbers groups, and makes those that ranks split off: when the last member has called, all hear of it. */
class Registry {
  readonly groups: Members[] = [];
  readonly #waiting = new Map<Members, Waiting[]>();

  add(name: string, ranks: readonly number[]): Members {
    const split = (call: SplitCall): Promise<Members> => this.#split(call);
    const members = { id: this.groups.length, name, ranks, split };
    this.groups.push(members);
    return members;
  }

  #split(call: SplitCall): Promise<Members> {
    return new Promise((resolve) => {
      push(this.#waiting, call.parent, { ...call, resolve });
      const all = this.#waiting.get(call.parent)!;
      if (all.length < call.parent.ranks.length) return;
      this.#waiting.delete(call.parent);
      const colors = new Map<number, Waiting[]>();
      for (const each of all.toSorted((a, b) => a.rank - b.rank)) push(colors, each.color, each);
      for (const team of colors.values()) {
        const ranks = team.map(({ rank }) => call.parent.ranks[rank]!);
        const made = this.add(team[0]!.name, ranks);
        for (const { resolve: tell } of team) tell(made);
      }
    });
  }
}
