// One single-threaded rank of a decoding step, with a share of the keys and the whole model.
import * as mosaic from "@mosaic/attention";
import { type DecodeJob, timeSteps } from "./decode-step.ts";

const job = JSON.parse(process.argv[2]!) as DecodeJob;
await using ctx = await mosaic.init({ device: mosaic.cpu({ threads: 1 }) });
console.log(JSON.stringify({ seconds: await timeSteps(ctx, job) }));
