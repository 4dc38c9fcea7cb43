import type { AttentionBackend } from "./attention/backend.ts";
import type { ProcessGroup } from "./collectives/process-group.ts";
import type { Device, TraceEvent } from "./device.ts";
import type { DeviceMesh } from "./mesh.ts";

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
  /** Names of the registered backends, `"local"` among them. */
  readonly backends: readonly string[];
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
  /** Closes groups and device. Idempotent. */
  close(): Promise<void>;
}
