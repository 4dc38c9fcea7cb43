import type { Context, Coordinate, Device } from "@mosaic/core";

export interface WorldOptions {
  /** Lengths of the mesh's axes; their product is the number of ranks. Default { sp: size }. */
  readonly mesh?: Coordinate;
  /** Puts something around each device before any rank uses it. */
  readonly dress?: (device: Device) => Device;
  /** The seed of parameters. */
  readonly seed?: number;
}

/** Makes as many ranks, connected with one another, in this process. Whoever calls it closes them. */
export type MakeWorld = (size: number, options?: WorldOptions) => Promise<readonly Context[]>;

/** Runs `body` on every rank of a fresh world at once, and closes the world whatever comes of it. */
export async function onWorld<T>(
  makeWorld: MakeWorld,
  { size, ...options }: WorldOptions & { readonly size: number },
  body: (ctx: Context) => Promise<T>,
): Promise<T[]> {
  const contexts = await makeWorld(size, options);
  try {
    // All settle before any failure is reported: a rank that is ahead must not lose its peers to the closing.
    const results = await Promise.allSettled(contexts.map((ctx) => body(ctx)));
    return results.map((result) => {
      if (result.status === "rejected") throw result.reason;
      return result.value;
    });
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}
