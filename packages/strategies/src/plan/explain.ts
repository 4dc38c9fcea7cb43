import { formatBytes, formatSeconds, formatShare } from "@mosaic/planner";
import { formatMesh } from "../strategy.ts";
import type { Plan, Planned } from "./plan.ts";

/** Alternatives that are worth a line. */
const SHOWN = 4;

/** What was chosen and why, a sentence a line. */
export function explain({ best, ranking, job, refused }: Plan): string {
  const others = ranking.filter((planned) => planned !== best);
  const families = new Set([best.family]);
  const first = ({ family }: Planned): boolean => !families.has(family) && families.add(family).size > 0;
  const slower = others.filter((planned) => planned.fits && first(planned)).slice(0, SHOWN);
  const large = others.filter(({ fits }) => !fits);
  return [
    `auto chose ${best.name} on ${formatMesh(best.mesh)}: ${costsOf(best)}, predicted for ${job.profile.name}.`,
    ...slower.map((planned) => `${planned.name} on ${formatMesh(planned.mesh)}: ${comparedTo(best, planned)}.`),
    ...(large.length === 0 ? [] : [`${large.length} more would hold over ${formatBytes(job.memoryLimit)}.`]),
    ...refused.map(({ name, mesh, error }) => `${name} on ${formatMesh(mesh)} cannot run: ${error.message}`),
    `${ranking.length} strategies were compared.`,
  ].join("\n");
}

function costsOf({ seconds, exposedSeconds, bytesWithinNodes, bytesBetweenNodes, peakBytes }: Planned): string {
  return [
    `${formatSeconds(seconds)} a step`,
    `${formatSeconds(exposedSeconds)} of it waiting for transfers`,
    `${formatBytes(bytesWithinNodes)} sent within nodes and ${formatBytes(bytesBetweenNodes)} between them`,
    `${formatBytes(peakBytes)} held`,
  ].join(", ");
}

function comparedTo(best: Planned, { seconds, bytesBetweenNodes, peakBytes }: Planned): string {
  const slower = seconds / best.seconds - 1;
  const by = `${formatShare(Math.abs(slower))} ${slower < 0 ? "less" : "more"}`;
  return `${formatSeconds(seconds)} (${by}), ${formatBytes(bytesBetweenNodes)} between nodes, ${formatBytes(peakBytes)} held`;
}
