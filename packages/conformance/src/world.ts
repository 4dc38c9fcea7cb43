import type { Context, Coordinate, Device } from "@mosaic/core";

/** Options of a `MakeWorld`. */
export interface WorldOptions {
  /** Wraps each device before a rank uses it. */
  readonly wrapDevice: (device: Device) => Device;
  /** Lengths of the mesh's axes; their product is the number of ranks. Default { sp: size }. */
  readonly mesh?: Coordinate;
  /** Seed of the parameters. */
  readonly seed?: number;
  /** Seconds that a collective may take. */
  readonly timeout?: number;
}

/** Opens a process group of `size` ranks in this process. The caller closes the contexts. */
export type MakeWorld = (size: number, options: WorldOptions) => Promise<readonly Context[]>;

/** Runs `body` on every rank of a fresh world at once, and closes the world even if `body` fails. */
export async function runOnWorld<T>(
  makeWorld: MakeWorld,
  { size, wrapDevice = identity, ...options }: Partial<WorldOptions> & { readonly size: number },
  body: (ctx: Context) => Promise<T>,
): Promise<T[]> {
  const contexts = await makeWorld(size, { wrapDevice, ...options });
  const failures: unknown[] = [];
  const runBody = async (ctx: Context): Promise<T> => {
    try {
      return await body(ctx);
    } catch (error) {
      failures.push(error);
      // A rank that has failed closes, so that the others fail too instead of waiting for it.
      await ctx.close();
      throw error;
    }
  };
  try {
    const results = await Promise.allSettled(contexts.map(runBody));
    if (failures.length > 0) throw failures[0];
    return results.map((result) => (result as PromiseFulfilledResult<T>).value);
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

function identity(device: Device): Device {
  return device;
}
