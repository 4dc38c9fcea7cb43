import * as mosaic from "@mosaic/attention";
import { cuda } from "@mosaic/kernels-cuda";
import { Ours } from "./ours.ts";

/** Read when a device is opened: which family of attention kernels it takes. */
const KNOB = "MOSAIC_CUDA_FAMILY";
/** Compute capability 9.0: where there are kernels of TMA and wgmma. */
const HOPPER = 90;

/** Our side: a contender for each family of kernels that the device has, and the contexts to close. */
export interface Families extends AsyncDisposable {
  readonly contenders: readonly Ours[];
}

/** Opens the device once for each family. On a CPU there is one, and its times are times of a CPU. */
export async function openFamilies(device: "cuda" | "cpu"): Promise<Families> {
  const contexts: mosaic.Context[] = [];
  const open = async (name: string, on: mosaic.Device): Promise<Ours> => {
    const ctx = await mosaic.init({ device: on, rank: 0, worldSize: 1 });
    contexts.push(ctx);
    return new Ours(name, ctx);
  };
  const contenders: Ours[] = [];
  if (device === "cpu") contenders.push(await open("cpu", mosaic.cpu()));
  else {
    const portable = openFamily("portable");
    contenders.push(await open("portable", portable));
    if (portable.capability === HOPPER) contenders.push(await open("hopper", openFamily("hopper")));
  }
  return {
    contenders,
    async [Symbol.asyncDispose]() {
      for (const ctx of contexts) await ctx.close();
    },
  };
}

function openFamily(family: string): ReturnType<typeof cuda> {
  const before = process.env[KNOB];
  process.env[KNOB] = family;
  try {
    return cuda({ index: 0 });
  } finally {
    if (before === undefined) delete process.env[KNOB];
    else process.env[KNOB] = before;
  }
}
