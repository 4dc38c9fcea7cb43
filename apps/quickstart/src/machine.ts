import { world } from "@mosaic/attention";
import { calibrate, type Profile } from "@mosaic/attention/planner";
import type { Settings } from "./settings.ts";

/** Measures this machine for about a second, with as many ranks as will run: what the planner predicts times from. */
export async function measureMachine({ ranks, dtype, dim }: Settings): Promise<Profile> {
  const contexts = await world(ranks);
  try {
    return await calibrate({ contexts, name: "this machine", dtypes: [dtype], headDims: [dim] });
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}
