// Predicts the whole table of flights, with its rows sharded over all ranks. Program of each process that `mosaic-run`
// starts.
import { init, ring } from "@mosaic/attention";
import { multiclassAuc } from "./baselines.ts";
import { assignRows } from "./batch.ts";
import { countRows, loadDataset, selectRows } from "./datasets.ts";
import { defaultOptions } from "./model.ts";
import { parseCommandLine, parseInteger } from "./arguments.ts";
import { predict } from "./predict.ts";
import { defaultWeightsPath, loadModel } from "./weights.ts";
import { Random } from "./random.ts";

const flights = loadDataset("flights");
const usage = `Predicts the delays of flights, with the rows of the table sharded over all ranks.

  npx mosaic-run --nproc-per-node 4 dist/flights.js [options]

  --rows N         number of rows (${countRows(flights)}, all)
  --known N        number of rows whose class is known (20000)
  --weights FILE   weights of the model (weights.safetensors of this package)
  -h, --help       shows this help`;
const { weights, rows, knownRows } = parseCommandLine(
  usage,
  {
    known: { type: "string", default: "20000" },
    rows: { type: "string", default: String(countRows(flights)) },
    weights: { type: "string", default: defaultWeightsPath },
  },
  ({ known, rows: rowsText, weights }) => {
    const rows = parseInteger("--rows", rowsText, [2, countRows(flights)]);
    return { weights, rows, knownRows: parseInteger("--known", known, [1, rows - 1]) };
  },
);
const table = selectRows(flights, new Random(0).permutation(countRows(flights)).slice(0, rows));

await using ctx = await init({});
using model = await loadModel(ctx, weights, { ...defaultOptions, rowBackend: ring() });
const assignment = assignRows(rows, knownRows, { rank: ctx.rank, ranks: ctx.size });

ctx.world.barrier({ label: "start" }).wait();
await ctx.device.stream.synchronize();
ctx.device.resetPeakMemory();
const group = ctx.mesh.group("sp");
const bytesSentBefore = group.traffic().bytesSent;
const startTime = performance.now();
const scores = await predict(ctx, model, { table, knownRows, assignment }, { size: 2, seed: 0 });
const seconds = (performance.now() - startTime) / 1000;
const bytesSent = group.traffic().bytesSent - bytesSentBefore;
const labels = table.labels.subarray(assignment.testRows.first, assignment.testRows.first + assignment.testRows.count);
console.log(
  JSON.stringify({
    rank: ctx.rank,
    rows,
    knownRows,
    rowsHere: assignment.trainRows.count + assignment.testRows.count,
    seconds: Number(seconds.toFixed(1)),
    bytesSent,
    peakDeviceBytes: ctx.device.memory().peak,
    peakResidentBytes: process.resourceUsage().maxRSS * 1024,
    auc: Number(multiclassAuc(labels, scores, 2).toFixed(4)),
  }),
);
