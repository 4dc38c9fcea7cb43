// Program of each process that the launcher starts. The launcher sets RANK and WORLD_SIZE.
import * as mosaic from "@mosaic/attention";
import { attend } from "./attend.ts";
import { configureBackend } from "./backends.ts";
import { type Job, writeResults } from "./job.ts";
import { createProgressMeter } from "./progress.ts";

const { settings, directory, totalWork } = JSON.parse(process.argv[2]!) as Job;

const { mesh } = configureBackend(settings);
await using ctx = await mosaic.init({ mesh, ...(settings.device && { device: settings.device }) });
const reportShare = (share: number): void => console.log(JSON.stringify({ share }));
const { report, results } = await attend(
  ctx,
  settings,
  ctx.rank === 0 ? createProgressMeter(totalWork, reportShare) : () => {},
);
writeResults(directory, report, results);
