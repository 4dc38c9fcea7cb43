import type { AttentionBackend } from "./attention/backend.ts";
import type { ProcessGroup } from "./collectives/process-group.ts";
import type { Device, TraceEvent } from "./device.ts";
import type { DeviceMesh } from "./mesh.ts";

/**
 * The state of a rank: its device, its mesh with its coordinate, and the backends that it may use. Nothing is global.
 */
export interface Context extends AsyncDisposable {
  readonly device: Device;
  readonly mesh: DeviceMesh;
  /** This rank's index in the world, and the size of the world. */
  readonly rank: number;
  readonly size: number;
  readonly world: ProcessGroup;
  /** Seed of random numbers, such as initial parameters; the same on every rank. */
  readonly seed: number;
  /** Names of the registered backends, including `"local"`. */
  readonly backends: readonly string[];
  /**
   * Returns the backend itself, or the registered backend of that name. Throws an error that lists the available names
   * if it is unknown.
   */
  backend(nameOrValue: string | AttentionBackend): AttentionBackend;
  /**
   * Returns a new stream number for each random tensor. It is the same on every rank that builds the same modules in
   * the same order.
   */
  nextRandomStream(): number;
  /**
   * The next stream number. Together with the seed, it is the complete state of the random number generator, and is
   * saved in checkpoints.
   */
  randomStream: number;
  /** Throws a ClosedError if the context is closed. */
  assertOpen(where: string): void;
  startTrace(): void;
  /** Returns the events of the device and the collectives since `startTrace`. */
  stopTrace(): Promise<readonly TraceEvent[]>;
  /** Closes groups and device. Idempotent. */
  close(): Promise<void>;
}
