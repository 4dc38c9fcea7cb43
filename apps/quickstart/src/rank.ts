// What each of the processes runs that the launcher starts: RANK and WORLD_SIZE come from it.
import * as mosaic from "@mosaic/attention";
import { attend } from "./attend.ts";
import { type Job, writeFindings } from "./job.ts";

const { settings, folder } = JSON.parse(process.argv[2]!) as Job;

await using ctx = await mosaic.init();
const tell = (share: number): void => console.log(JSON.stringify({ share }));
const { report, results } = await attend(ctx, settings, ctx.rank === 0 ? tell : () => {});
writeFindings(folder, report, results);
