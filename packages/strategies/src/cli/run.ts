import { MosaicError } from "@mosaic/core";
import {
  formatBytes,
  formatSeconds,
  maxRecordedRanks,
  perfettoTrace,
  prove,
  tileMapSvg,
  timelineSvg,
} from "@mosaic/planner";
import type { PlanProgress } from "../plan/job.ts";
import { type Plan, plan, type Planned } from "../plan/plan.ts";
import { formatMesh } from "../strategy.ts";
import { loadCandidate, UsageError } from "./load.ts";
import { checkTargets, note, OutputError, save, print } from "./output.ts";
import { help, readSettings, type Settings } from "./settings.ts";

/** What is computed, and on what. */
function headOf({ job }: Plan): string {
  const { tokens, numHeads, numKvHeads, headDim, batch, dtype, mask, placement } = job.shape;
  const sequences = batch === 1 ? "" : `${batch} × `;
  const kv = numKvHeads === numHeads ? "" : ` (${numKvHeads} for keys)`;
  const count = tokens.toLocaleString("en").replaceAll(",", " ");
  return [
    `${sequences}${count} tokens, ${numHeads} heads${kv} of ${headDim}, ${dtype}, ${mask.name}, ${placement.name}`,
    `${job.nodes} × ${job.gpusPerNode} ranks, ${job.profile.name}`,
  ].join("; ");
}

/** The rows of the table: the best of every nesting, or all; with the plain ring among them, for comparison. */
function rowsOf({ ranking }: Plan, { top, all }: { top: number; all: boolean }): readonly Planned[] {
  const families = new Set<string>();
  const rows = ranking.filter(({ family }) => all || (!families.has(family) && families.add(family)));
  const ring = rows.slice(top).filter(({ name, mesh }) => name.startsWith("ring") && Object.keys(mesh).length === 1);
  return [...rows.slice(0, top), ...ring];
}

const columns = ["", "a step", "forward", "waiting", "in nodes", "between", "memory", "strategy", "mesh"] as const;

/** Lines of text: a head, then a line for each. */
function tableOf(rows: readonly Planned[], ranking: readonly Planned[]): readonly string[] {
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
function notesOf(rows: readonly Planned[], { job, ranking, refused }: Plan): readonly string[] {
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

/** Runs the command; the exit code. */
export async function run(args: readonly string[]): Promise<number> {
  try {
    const settings = readSettings(args);
    if (settings !== "help") return await planWith(settings);
    await print(help);
    return 0;
  } catch (error) {
    if (!(error instanceof UsageError || error instanceof MosaicError || error instanceof OutputError)) throw error;
    note(`mosaic-plan: ${error.message}\n`);
    return error instanceof UsageError ? 2 : 1;
  }
}

async function planWith(settings: Settings): Promise<number> {
  const { svg, tiles, trace } = settings;
  checkTargets({ svg, tiles, trace });
  const candidates = [];
  for (const path of settings.backends) candidates.push(await loadCandidate(path, settings.plan));
  const progress = progressOn(process.stderr);
  let found: Plan;
  try {
    found = plan({ ...settings.plan, candidates, onProgress: progress.show });
  } finally {
    progress.end();
  }
  draw(found, settings);
  const proof = settings.prove ? proofOf(found) : undefined;
  await print(settings.json ? JSON.stringify(jsonOf(found, proof)) : textOf(found, settings, proof));
  return proof?.total ? 1 : 0;
}

type Proof = ReturnType<typeof prove>;

function proofOf({ prediction }: Plan): Proof {
  note("mosaic-plan: proving the best one\n");
  return prove(prediction.record);
}

function textOf(found: Plan, settings: Settings, proof: Proof | undefined): string {
  const rows = rowsOf(found, settings);
  return [
    `${headOf(found)}\n`,
    ...tableOf(rows, found.ranking),
    `\n${notesOf(rows, found).join("\n")}`,
    ...(proof ? proofLines(found, proof) : []),
    `\n${found.best.code.trimEnd()}`,
  ].join("\n");
}

function proofLines({ best, job }: Plan, proof: Proof): readonly string[] {
  if (proof.total > 0)
    return [`${best.name} is wrong in ${proof.total} places:`, ...proof.faults.map(({ message }) => message)];
  return [
    `${best.name} is proved on ${provedOn(job.ranks, proof)}: every visible pair counts once, every message meets its other side.`,
  ];
}

/** Of a large mesh one rank of each class is replayed with its peers, and some others are compared with those. */
function provedOn(ranks: number, { replayed }: Proof): string {
  return replayed < ranks ? `${ranks} ranks by ${replayed} that stand for all` : `all ${ranks} ranks`;
}

function draw({ best, job, prediction }: Plan, { svg, tiles, trace }: Settings): void {
  const { tokens, mask } = job.shape;
  const subtitle = `${tokens} tokens, ${mask.name}, ${job.nodes} × ${job.gpusPerNode} ranks, predicted for ${job.profile.name}`;
  if (svg !== undefined) save("svg", svg, timelineSvg(prediction.simulation, { title: best.name, subtitle }));
  if (tiles !== undefined) save("tiles", tiles, tileMapSvg(prediction.record, { title: best.name, subtitle }));
  if (trace !== undefined) save("trace", trace, perfettoTrace(prediction.simulation));
}

/** All that was found, as plain data; times are seconds. */
function jsonOf({ job, best, ranking, refused }: Plan, proof: Proof | undefined): object {
  const { mask, placement, ...shape } = job.shape;
  const { nodes, gpusPerNode, ranks, profile } = job;
  const plain = (planned: Planned): object => ({ ...planned, strategy: undefined });
  return {
    ...shape,
    mask: mask.name,
    placement: placement.name,
    nodes,
    gpusPerNode,
    ranks,
    profile,
    best: plain(best),
    ranking: ranking.map(plain),
    refused: refused.map(({ name, mesh, error }) => ({ name, mesh, error: error.message })),
    ...(proof && { faults: proof.faults, faultsInAll: proof.total }),
  };
}

/** Reports on a terminal how far the planning is, in one line; elsewhere only when a stage begins. */
function progressOn({ isTTY }: NodeJS.WriteStream): { show(progress: PlanProgress): void; end(): void } {
  const words = { sketch: "sketching", simulate: "simulating" } as const;
  let stage: PlanProgress["stage"] | undefined;
  return {
    show(progress) {
      const { done, of } = progress;
      if (isTTY) note(`\r\u001b[K${words[progress.stage]} ${done + 1} of ${of}`);
      else if (stage !== progress.stage) note(`mosaic-plan: ${words[progress.stage]} ${of}\n`);
      ({ stage } = progress);
    },
    end() {
      if (isTTY) note("\r\u001b[K");
    },
  };
}
