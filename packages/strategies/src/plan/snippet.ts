import { formatMask, type Placement, resolvePlacement, spansLength } from "@mosaic/core";
import { formatSeconds } from "@mosaic/planner";
import { formatMesh } from "../mesh-order.ts";
import { UMBRELLA_NAMESPACE, type StrategyCandidate } from "./candidates.ts";
import type { CallShape, PlanJob } from "./job.ts";

/** Returns a complete program that computes this call with the candidate on its mesh. */
export function createSnippet(job: PlanJob, candidate: StrategyCandidate, seconds: number): string {
  const { shape, ranks, nodes, gpusPerNode, profile } = job;
  const { tokens, keyTokens, mask, placement } = shape;
  const start =
    nodes === 1
      ? `npx mosaic-run --nproc-per-node ${ranks} attend.ts`
      : `npx mosaic-run --hosts n0:${gpusPerNode},n1:${gpusPerNode}${nodes > 2 ? ",…" : ""} attend.ts  # ${nodes} nodes`;
  // Ranks that share cores are CPU processes, which need no other package.
  const device = profile.cores ? "" : `device: "cuda", collectives: "nccl", `;
  const isCrossAttention = keyTokens !== tokens;
  const inputs = [
    formatInput("x", "rows", { job, length: tokens }),
    ...(isCrossAttention ? [formatInput("memory", "keyRows", { job, length: keyTokens })] : []),
  ];
  return [
    `// ${candidate.name}: ${formatSeconds(seconds)} for a forward and a backward, predicted for ${profile.name}.`,
    `// ${start}`,
    ...(device === "" ? [] : ["// Requires @mosaic/kernels-cuda and @mosaic/collectives-nccl."]),
    `import * as mosaic from "@mosaic/attention";`,
    ...candidate.imports,
    "",
    ...formatPlaceholder("mask", mask.name, formatMask(mask)),
    ...formatPlaceholder("placement", placement.name, formatPlacement(placement)),
    `const backend = ${candidate.code};`,
    `await using ctx = await mosaic.init({ ${device}mesh: ${formatMesh(candidate.mesh)} });`,
    `const attn = new mosaic.${isCrossAttention ? "CrossAxisAttention" : "MultiAxisAttention"}(ctx, {`,
    ...formatOptions(shape).map((setting) => `  ${setting},`),
    "});",
    ...inputs.flat(),
    `const out = attn.forward(${isCrossAttention ? "x, memory" : "x"});`,
    "await out.read();",
    "",
  ].join("\n");
}

/** Returns the options of the module. */
function formatOptions(shape: CallShape): readonly string[] {
  const { numHeads, numKvHeads, headDim, sinks, tokens, keyTokens, dtype, mask, placement } = shape;
  const isCrossAttention = keyTokens !== tokens;
  return [
    `embedDim: ${numHeads * headDim}`,
    `numHeads: ${numHeads}`,
    ...(numKvHeads === numHeads ? [] : [`numKvHeads: ${numKvHeads}`]),
    `headDim: ${headDim}`,
    ...(isCrossAttention ? ["qAxis: 1", "kvAxis: 1"] : ["attentionAxis: 1"]),
    "backend",
    `placement: ${formatPlacement(placement) ?? PLACEHOLDERS.placement}`,
    ...(formatMask(mask) === "masks.full()"
      ? []
      : [`mask: ${formatMask(mask, `${UMBRELLA_NAMESPACE}masks.`) ?? PLACEHOLDERS.mask}`]),
    ...(sinks ? ["sinks: true"] : []),
    `dtype: "${dtype}"`,
    `sequenceLength: ${tokens}`,
    ...(isCrossAttention ? [`kvSequenceLength: ${keyTokens}`] : []),
  ];
}

/**
 * Names for parts that cannot be written as code. They are not declared, so that the program fails until they are
 * replaced.
 */
const PLACEHOLDERS = { mask: "yourMask", placement: "yourPlacement" } as const;

/** Returns a comment that states what to replace, if there is no expression. */
function formatPlaceholder(
  part: keyof typeof PLACEHOLDERS,
  name: string,
  expression: string | undefined,
): readonly string[] {
  if (expression !== undefined) return [];
  const origin = part === "placement" && name === "dispatch" ? `, from ${UMBRELLA_NAMESPACE}dispatch({ … })` : "";
  return [`// Replace ${PLACEHOLDERS[part]} with the ${part} "${name}"${origin}.`];
}

const namedPlacements: readonly Placement[] = (["contiguous", "zigzag", "striped"] as const).map(resolvePlacement);

/** Returns a placement's name, or the call that creates it; undefined for a custom placement, or one of `dispatch`. */
function formatPlacement(placement: Placement): string | undefined {
  if (namedPlacements.includes(placement)) return `"${placement.name}"`;
  const [, lengths] = /^contiguous\(\[([\d,]*)\]\)$/.exec(placement.name) ?? [];
  return lengths === undefined ? undefined : `${UMBRELLA_NAMESPACE}contiguous([${lengths.replaceAll(",", ", ")}])`;
}

interface InputContext {
  readonly job: PlanJob;
  /** Length of the whole sequence. */
  readonly length: number;
}

/**
 * Returns the lines that create this rank's part of an input. Its row count is a number if all ranks have equally many
 * rows.
 */
function formatInput(name: string, rows: string, { job, length }: InputContext): readonly string[] {
  const { placement, batch, numHeads, headDim, dtype } = job.shape;
  const { ranks } = job;
  const lengths = Array.from({ length: ranks }, (_, i) => spansLength(placement.spans(i, ranks, length)));
  const hasEqualShards = lengths.every((each) => each === lengths[0]);
  const layout = `{ mesh: ctx.mesh.shape, axes: backend.axes, placement: ${formatPlacement(placement) ?? PLACEHOLDERS.placement}, length: ${length} }`;
  const tensorArguments = `[${batch}, ${hasEqualShards ? lengths[0] : rows}, ${numHeads * headDim}], { dtype: "${dtype}" }`;
  return [
    ...(hasEqualShards
      ? []
      : [
          `const ${rows} = mosaic`,
          `  .layoutOf(${layout})`,
          "  .spans(ctx.mesh.coordinate)",
          "  .reduce((sum, span) => sum + span.length, 0);",
        ]),
    `const ${name} = mosaic.randn(ctx, ${tensorArguments}); // this rank's rows`,
  ];
}
