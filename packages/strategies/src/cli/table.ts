import { formatBytes, formatSeconds, maxRecordedRanks } from "@mosaic/planner";
import type { Plan, Planned } from "../plan/plan.ts";
import { formatMesh } from "../strategy.ts";

/** What is computed, and on what. */
export function headOf({ job }: Plan): string {
  const { tokens, heads, kvHeads, headDim, batch, dtype, mask, placement } = job.shape;
  const sequences = batch === 1 ? "" : `${batch} × `;
  const kv = kvHeads === heads ? "" : ` (${kvHeads} for keys)`;
  const count = tokens.toLocaleString("en").replaceAll(",", " ");
  return [
    `${sequences}${count} tokens, ${heads} heads${kv} of ${headDim}, ${dtype}, ${mask.name}, ${placement.name}`,
    `${job.nodes} × ${job.gpusPerNode} ranks, ${job.profile.name}`,
  ].join("; ");
}

/** The rows of the table: the best of every nesting, or all; with the plain ring among them, for comparison. */
export function rowsOf({ ranking }: Plan, { top, all }: { top: number; all: boolean }): readonly Planned[] {
  const families = new Set<string>();
  const rows = ranking.filter(({ family }) => all || (!families.has(family) && families.add(family)));
  const ring = rows.slice(top).filter(({ name, mesh }) => name.startsWith("ring") && Object.keys(mesh).length === 1);
  return [...rows.slice(0, top), ...ring];
}

const columns = ["", "a step", "forward", "waiting", "in nodes", "between", "memory", "strategy", "mesh"] as const;

/** Lines of text: a head, then a line for each. */
export function tableOf(rows: readonly Planned[], ranking: readonly Planned[]): readonly string[] {
  const cells = rows.map((planned) => [
    `${ranking.indexOf(planned) + 1}`,
    `${planned.how === "sketched" ? "≈ " : ""}${formatSeconds(planned.seconds)}`,
    formatSeconds(planned.forwardSeconds),
    formatSeconds(planned.exposedSeconds),
    formatBytes(planned.bytesWithinNodes),
    formatBytes(planned.bytesBetweenNodes),
    `${formatBytes(planned.peakBytes)}${planned.fits ? "" : " !"}`,
    planned.name,
    formatMesh(planned.mesh),
  ]);
  const widths = columns.map((title, i) => Math.max(title.length, ...cells.map((row) => row[i]!.length)));
  // Numbers stand right, words left.
  const pad = (text: string, i: number): string => (i < 7 ? text.padStart(widths[i]!) : text.padEnd(widths[i]!));
  return [columns, ...cells].map((row) => row.map(pad).join("  ").trimEnd());
}

/** What the marks in the table mean. */
export function notesOf(rows: readonly Planned[], { job, ranking, refused }: Plan): readonly string[] {
  const notes = [
    `${ranking.length} strategies compared. A step is a forward and a backward; waiting: for transfers that compute does`,
    "not hide; bytes are the most that a rank sends to ranks of its node, and to those of others. Times count in steps",
    "of 1 %, from the shortest on: within one, fewer bytes between nodes come first, then less memory. Of each nesting the",
    "best is shown; --all shows all.",
  ];
  if (rows.some(({ how }) => how === "sketched")) {
    notes.push(
      `≈ from ${job.ranks > maxRecordedRanks ? "one rank" : "two ranks"}, as if peers kept pace; the others are simulated whole.`,
    );
  }
  if (rows.some(({ fits }) => !fits)) notes.push("! over --memory-limit.");
  return [
    ...notes,
    ...refused.map(({ name, mesh, error }) => `${name} on ${formatMesh(mesh)} cannot run: ${error.message}`),
  ];
}
