import {
  type AttentionBackend,
  ClosedError,
  type Context,
  contextToJson,
  type Coordinate,
  type DeviceMesh,
  local,
  OptionError,
  type ProcessGroup,
  type TraceEvent,
} from "@mosaic/core";
import type { SymbolicDevice } from "./device.ts";

interface SymbolicContextOptions {
  readonly device: SymbolicDevice;
  readonly mesh: DeviceMesh;
  readonly backends: readonly AttentionBackend[];
}

/** The context that `init` would create, available at once because the groups are known and there is no rendezvous. */
export class SymbolicContext implements Context {
  readonly device: SymbolicDevice;
  readonly mesh: DeviceMesh;
  readonly seed = 0;
  randomStream = 0;
  readonly #backends: readonly AttentionBackend[];
  #isClosed = false;

  constructor({ device, mesh, backends }: SymbolicContextOptions) {
    this.device = device;
    this.mesh = mesh;
    this.#backends = [local(), ...backends];
  }

  get world(): ProcessGroup {
    return this.mesh.world;
  }

  get rank(): number {
    return this.world.rank;
  }

  get size(): number {
    return this.world.size;
  }

  get backends(): readonly string[] {
    return [...new Set(this.#backends.map(({ name }) => name))];
  }

  backend(nameOrValue: string | AttentionBackend): AttentionBackend {
    if (typeof nameOrValue !== "string") return nameOrValue;
    const matchingBackend = this.#backends.findLast(({ name }) => name === nameOrValue);
    if (matchingBackend) return matchingBackend;
    throw new OptionError({
      where: "backend",
      expected: `one of ${this.backends.map((name) => `"${name}"`).join(", ")}`,
      received: `"${nameOrValue}"`,
      remedy: "pass the backend itself, or register it in symbolicWorld({ backends: [...] })",
    });
  }

  toJSON(): object {
    return contextToJson(this);
  }

  nextRandomStream(): number {
    return this.randomStream++;
  }

  assertOpen(where: string): void {
    if (!this.#isClosed) return;
    throw new ClosedError({ where, expected: "an open context", received: "a closed context" });
  }

  startTrace(): void {}

  async stopTrace(): Promise<readonly TraceEvent[]> {
    return [];
  }

  async close(): Promise<void> {
    this.#isClosed = true;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Creates the mesh of one rank. */
export function symbolicMesh(
  shape: Coordinate,
  coordinate: Coordinate,
  groups: ReadonlyMap<string, ProcessGroup>,
): DeviceMesh {
  const axes = Object.keys(shape);
  return {
    shape,
    axes,
    coordinate,
    world: groups.get("")!,
    group(axis) {
      const group = groups.get(axis);
      if (group && axis !== "") return group;
      throw new OptionError({
        where: "mesh.group",
        expected: `one of the axes ${axes.join(", ")}`,
        received: `"${axis}"`,
        remedy: "add the axis to symbolicWorld({ mesh })",
      });
    },
  };
}
