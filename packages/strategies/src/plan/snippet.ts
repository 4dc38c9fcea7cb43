import { type Mask, spansLength } from "@mosaic/core";
import { formatSeconds } from "@mosaic/planner";
import { formatMesh } from "../strategy.ts";
import { type Contender, SCOPE } from "./contender.ts";
import type { PlanJob } from "./job.ts";

/** A whole program that attends in this way, for this call, on this mesh. */
export function snippetOf(job: PlanJob, contender: Contender, seconds: number): string {
  const { shape, ranks, nodes, gpusPerNode, profile } = job;
  const { heads, kvHeads, headDim, tokens, batch, dtype, mask, placement } = shape;
  const embed = heads * headDim;
  const start =
    nodes === 1
      ? `npx mosaic-run --nproc-per-node ${ranks} attend.ts`
      : `on ${nodes} nodes; rank = node · ${gpusPerNode} + place in the node`;
  // Ranks that share cores are processes on CPUs, which need no other package.
  const device = profile.cores ? "" : `device: "cuda", collectives: "nccl", `;
  const settings = [
    `embedDim: ${embed}`,
    `numHeads: ${heads}`,
    ...(kvHeads === heads ? [] : [`numKvHeads: ${kvHeads}`]),
    `headDim: ${headDim}`,
    "attentionAxis: 1",
    "backend",
    `placement: "${placement.name}"`,
    ...maskOf(mask),
    `dtype: "${dtype}"`,
    `sequenceLength: ${tokens}`,
  ];
  const rows = rowsOf(job, contender);
  return [
    `// ${contender.name}: ${formatSeconds(seconds)} for a forward and a backward, predicted for ${profile.name}.`,
    `// ${start}`,
    ...(device === "" ? [] : ["// It needs @mosaic/kernels-cuda and @mosaic/collectives-nccl."]),
    `import * as mosaic from "@mosaic/attention";`,
    ...contender.imports,
    "",
    `const backend = ${contender.code};`,
    `await using ctx = await mosaic.init({ ${device}mesh: ${formatMesh(contender.mesh)} });`,
    "const attn = new mosaic.MultiAxisAttention(ctx, {",
    ...settings.map((setting) => `  ${setting},`),
    "});",
    ...rows.before,
    `const x = mosaic.randn(ctx, [${batch}, ${rows.count}, ${embed}], { dtype: "${dtype}" }); // this rank's rows`,
    "const out = attn.forward(x);",
    "await out.read();",
    "",
  ].join("\n");
}

/** Masks say in their names how they are made, but for those with lists. */
function maskOf({ name }: Mask): readonly string[] {
  if (name === "full") return [];
  if (/^\w+$/.test(name)) return [`mask: ${SCOPE}${name}()`];
  if (/^\w+\(\d+\)$/.test(name) && !name.startsWith("sliceMask")) return [`mask: ${SCOPE}${name}`];
  return [`// mask: ${name}`];
}

/** How many rows this rank has: a number if all have as many. */
function rowsOf({ shape, ranks }: PlanJob, { backend, mesh }: Contender): { before: readonly string[]; count: string } {
  const { placement, tokens } = shape;
  const shards = backend.axes.reduce((product, axis) => product * mesh[axis]!, 1);
  const lengths = Array.from({ length: shards }, (_, i) => spansLength(placement.spans(i, shards, tokens)));
  if (shards === ranks && lengths.every((length) => length === lengths[0]))
    return { before: [], count: String(lengths[0]) };
  const layout = `{ mesh: ctx.mesh.shape, axes: backend.axes, placement: mosaic.${placement.name}(), length: ${tokens} }`;
  const before = [`const rows = mosaic.spansLength(mosaic.layoutOf(${layout}).spans(ctx.mesh.coordinate));`];
  return { before, count: "rows" };
}
