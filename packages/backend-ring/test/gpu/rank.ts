// One rank of a job on CUDA devices: measures ring attention, forward and backward, against float64, and reports what it found.
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
/** Of the many trials, one in so many: emulated tensor cores take their time. */
const trialStride = 5;

// Where there is a real GPU all ranks share it: NCCL then takes each for a host of its own, on a network of one.
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
