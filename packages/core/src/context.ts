import { type AttentionBackend, checkBackend } from "./attention/backend.ts";
import type { ProcessGroup } from "./collectives/process-group.ts";
import type { Device, TraceEvent } from "./device.ts";
import { ClosedError, OptionError } from "./errors.ts";
import type { DeviceMesh } from "./mesh.ts";
import { nextStreamNumber } from "./random.ts";

/** All that a rank needs: its device, its place in the mesh, and the backends it may use. Nothing is global. */
export interface Context extends AsyncDisposable {
  readonly device: Device;
  readonly mesh: DeviceMesh;
  /** This rank's number in the world, and the world's size. */
  readonly rank: number;
  readonly size: number;
  readonly world: ProcessGroup;
  /** What parameters are drawn from; the same on every rank. */
  readonly seed: number;
  /** The backend itself, or the registered one of that name; an unknown name is an error that lists what there is. */
  backend(nameOrValue: string | AttentionBackend): AttentionBackend;
  /** A fresh number for each random tensor, the same on every rank that builds the same modules in the same order. */
  nextRandomStream(): number;
  /** The number that comes next: with the seed, all the state that random numbers have. A checkpoint keeps it. */
  randomStream: number;
  /** Throws a ClosedError after close. */
  assertOpen(where: string): void;
  startTrace(): void;
  /** What the device and the collectives ran since `startTrace`. */
  stopTrace(): Promise<readonly TraceEvent[]>;
  /** Closes groups and device. Twice is fine. */
  close(): Promise<void>;
}

/** Where the backends live that Mosaic itself provides. */
const backendPackages: Readonly<Record<string, string>> = {
  ring: "@mosaic/backend-ring",
  mesh2d: "@mosaic/backend-mesh2d",
  ulysses: "@mosaic/backend-ulysses",
  flex: "@mosaic/backend-flex",
  composed: "@mosaic/strategies",
  hierarchical: "@mosaic/strategies",
  auto: "@mosaic/strategies",
};

interface ContextFields {
  readonly device: Device;
  readonly mesh: DeviceMesh;
  readonly backends: ReadonlyMap<string, AttentionBackend>;
  readonly seed: number;
}

/** What `init` returns. */
export class RankContext implements Context {
  readonly device: Device;
  readonly mesh: DeviceMesh;
  readonly seed: number;
  randomStream = 0;
  readonly #backends: ReadonlyMap<string, AttentionBackend>;
  #closing: Promise<void> | undefined;

  constructor({ device, mesh, backends, seed }: ContextFields) {
    this.device = device;
    this.mesh = mesh;
    this.seed = seed;
    this.#backends = backends;
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

  backend(nameOrValue: string | AttentionBackend): AttentionBackend {
    if (typeof nameOrValue !== "string") {
      checkBackend("backend", nameOrValue);
      return nameOrValue;
    }
    const backend = this.#backends.get(nameOrValue);
    if (backend) return backend;
    const packageName = backendPackages[nameOrValue];
    throw new OptionError({
      where: "backend",
      expected: `one of ${[...this.#backends.keys()].map((name) => `"${name}"`).join(", ")}`,
      received: `"${nameOrValue}"`,
      remedy: packageName
        ? `npm install ${packageName} and pass ${nameOrValue}(…) in init({ backends: [...] })`
        : "pass the backend itself, or register it in init({ backends: [...] })",
    });
  }

  nextRandomStream(): number {
    return nextStreamNumber(() => this.randomStream++);
  }

  assertOpen(where: string): void {
    if (!this.#closing) return;
    throw new ClosedError({
      where,
      expected: "an open context",
      received: "a closed context",
      remedy: "finish all work before the context goes out of scope",
    });
  }

  startTrace(): void {
    this.assertOpen("startTrace");
    this.device.startTrace();
    this.world.startTrace();
  }

  async stopTrace(): Promise<readonly TraceEvent[]> {
    this.assertOpen("stopTrace");
    const lanes = await Promise.all([this.device.stopTrace(), this.world.stopTrace()]);
    return lanes.flat().toSorted((a, b) => a.start - b.start);
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Parts before the whole: the groups cut from the world, the world, then the device they all used. */
  async #close(): Promise<void> {
    const groups = new Set(this.mesh.axes.map((axis) => this.mesh.group(axis)));
    groups.delete(this.world);
    try {
      for (const group of groups) await group[Symbol.asyncDispose]();
      await this.world[Symbol.asyncDispose]();
    } finally {
      this.device[Symbol.dispose]();
    }
  }
}
