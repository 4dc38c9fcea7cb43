// One rank of a job on CUDA devices: measures ring attention, forward and backward, against float64, and prints the
// results.
import {
  backendTrials,
  perturbContext,
  type Measurement,
  measureBackend,
  placements,
  poisonMemory,
} from "@mosaic/conformance";
import { nccl } from "@mosaic/collectives-nccl";
import { init } from "@mosaic/core";
import { cuda } from "@mosaic/kernels-cuda";
import { ring } from "../../src/index.ts";

const { RANK, WORLD_SIZE, MOSAIC_TEST_GPU } = process.env;
/** One in this many trials runs, because emulated tensor cores are slow. */
const trialStride = 5;

// On a real GPU, all ranks share it. Separate host ids make NCCL treat each rank as a separate host on a socket
// network.
const hostOverrides = MOSAIC_TEST_GPU === "1" ? { hostId: `rank-${RANK}`, netName: "Socket" } : {};
process.env.NCCL_SOCKET_IFNAME ??= "lo";

const backend = ring({ axis: "sp" });
const arrangement = { mesh: { sp: Number(WORLD_SIZE) }, axes: ["sp"], backend };
await using ctx = await init({
  device: poisonMemory(cuda({ index: 0 })),
  collectives: nccl({ ...hostOverrides, timeout: 60 }),
  mesh: arrangement.mesh,
});
const perturbedCtx = perturbContext(ctx, { completion: "late", seed: 3 });

const measurements: Measurement[] = [];
for (const [i, placement] of placements().entries()) {
  const dtype = i % 2 === 0 ? "bfloat16" : "float32";
  for (const [j, trial] of backendTrials(arrangement, { placement, dtype, seed: 100 }).entries()) {
    if (j % trialStride === 0) measurements.push(await measureBackend(perturbedCtx, backend, trial));
  }
}
console.log(JSON.stringify(measurements));
