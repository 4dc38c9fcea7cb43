import { accessSync, constants, statSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, resolve } from "node:path";
import { type Coordinate, MosaicError } from "@mosaic/core";
import {
  formatBytes,
  formatSeconds,
  maxRecordedRanks,
  perfettoTrace,
  prove,
  tileMapSvg,
  timelineSvg,
  viewerHtml,
} from "@mosaic/planner";
import type { PlanJob, PlanProgress } from "../plan/job.ts";
import { type Plan, plan, type RankedStrategy, RELATIVE_TIME_RESOLUTION } from "../plan/plan.ts";
import { crossesHosts, formatMesh } from "../mesh-order.ts";
import { loadCandidate, UsageError } from "./load.ts";
import { help, parseSettings, type Settings } from "./settings.ts";

/** The output cannot be written, for example because the disk is full: exit code 1. */
class OutputError extends Error {
  override readonly name: string = "OutputError";
}

/** Writes one line or more to standard output. It is not an error if the reader has closed its end. */
function print(text: string): Promise<void> {
  const { stdout } = process;
  // The callback reports errors. Without a listener, the error event would end the process.
  if (stdout.listenerCount("error") === 0) stdout.on("error", () => {});
  return new Promise((resolvePromise, rejectPromise) => {
    stdout.write(`${text}\n`, (error) => {
      if (!error || (error as NodeJS.ErrnoException).code === "EPIPE") resolvePromise();
      else rejectPromise(new OutputError(`cannot write the result: ${error.message}`, { cause: error }));
    });
  });
}

/** Writes a note to standard error, as long as it is open. */
function printNote(text: string): void {
  const { stderr } = process;
  if (stderr.listenerCount("error") === 0) stderr.on("error", () => {});
  stderr.write(text);
}

/** Checks the files that options name, before the work whose results are written to them. */
function checkOutputPaths(pathByOption: Readonly<Record<string, string | undefined>>): void {
  const optionByPath = new Map<string, string>();
  for (const [option, path] of Object.entries(pathByOption)) {
    if (path === undefined) continue;
    const otherOption = optionByPath.get(resolve(path));
    if (otherOption !== undefined)
      throw new UsageError(`--${option} ${path}: expected a different file from --${otherOption}`);
    optionByPath.set(resolve(path), option);
    rethrowAsOutputError(option, path, () => {
      const stats = statSync(path, { throwIfNoEntry: false });
      if (stats?.isDirectory()) throw new Error("expected a file, received a directory");
      accessSync(stats ? path : dirname(resolve(path)), constants.W_OK);
    });
  }
}

/** Writes a file that an option names. */
function writeOutput(option: string, path: string, text: string): void {
  rethrowAsOutputError(option, path, () => writeFileSync(path, text));
}

function rethrowAsOutputError(option: string, path: string, write: () => void): void {
  try {
    write();
  } catch (error) {
    throw new UsageError(`--${option} ${path}: ${(error as Error).message}`, { cause: error });
  }
}

/** Describes the computation and the machine. */
function formatHeader({ job }: Plan): string {
  const { tokens, numHeads, numKvHeads, headDim, batch, dtype, mask, placement } = job.shape;
  const sequences = batch === 1 ? "" : `${batch} × `;
  const kv = numKvHeads === numHeads ? "" : ` (${numKvHeads} KV heads)`;
  const count = tokens.toLocaleString("en").replaceAll(",", " ");
  return [
    `${sequences}${count} tokens, ${numHeads} heads${kv} of size ${headDim}, ${dtype}, ${mask.name}, ${placement.name}`,
    `${job.nodes} × ${job.gpusPerNode} ranks, ${job.profile.name}`,
  ].join("; ");
}

/**
 * Returns the rows of the table: the best of every nesting, or all; always with the caller's own candidates and the
 * plain ring.
 */
function selectTableRows(
  { ranking }: Plan,
  { top, all, ownNames }: { top: number; all: boolean; ownNames: ReadonlySet<string> },
): readonly RankedStrategy[] {
  const families = new Set<string>();
  const rows = ranking.filter(({ family }) => all || (!families.has(family) && families.add(family)));
  const shownRows = new Set(rows.slice(0, top));
  const isRing = ({ name, mesh }: RankedStrategy) => name.startsWith("ring") && Object.keys(mesh).length === 1;
  return ranking.filter(
    (each) => shownRows.has(each) || ownNames.has(each.name) || (rows.includes(each) && isRing(each)),
  );
}

const columnTitles = [
  "",
  "step time",
  "forward",
  "exposed comm",
  "intra-node",
  "inter-node",
  "memory",
  "strategy",
  "mesh",
] as const;

/** Formats the table as lines of text: the titles, then one line per row. */
function formatTable(rows: readonly RankedStrategy[], job: PlanJob): readonly string[] {
  const minSeconds = Math.min(...rows.map(({ seconds }) => seconds));
  const formatTimeMark = ({ evaluatedBy, seconds }: RankedStrategy): string => {
    if (evaluatedBy === "estimate") return "≈ ";
    return seconds <= minSeconds * (1 + RELATIVE_TIME_RESOLUTION) ? "= " : "";
  };
  const isMultiNode = job.nodes > 1;
  const nodes = Array.from({ length: job.ranks }, (_, rank) => Math.floor(rank / job.gpusPerNode));
  const titles = [...columnTitles, ...(isMultiNode ? ["axes between nodes"] : [])];
  const cells = rows.map((rankedStrategy, i) => [
    `${i + 1}`,
    `${formatTimeMark(rankedStrategy)}${formatSeconds(rankedStrategy.seconds)}`,
    formatSeconds(rankedStrategy.forwardSeconds),
    formatSeconds(rankedStrategy.exposedSeconds),
    formatBytes(rankedStrategy.bytesWithinNodes),
    formatBytes(rankedStrategy.bytesBetweenNodes),
    `${formatBytes(rankedStrategy.peakBytes)}${rankedStrategy.fits ? "" : " !"}`,
    rankedStrategy.name,
    formatMesh(rankedStrategy.mesh),
    ...(isMultiNode ? [listAxesBetweenNodes(rankedStrategy.mesh, nodes).join(", ")] : []),
  ]);
  const widths = titles.map((title, i) => Math.max(title.length, ...cells.map((row) => row[i]!.length)));
  // Numbers are aligned right, words left.
  const padCell = (text: string, i: number): string => (i < 7 ? text.padStart(widths[i]!) : text.padEnd(widths[i]!));
  return [titles, ...cells].map((row) => row.map(padCell).join("  ").trimEnd());
}

/** Returns the axes of a mesh along which neighbors are on different nodes. `nodes` is by rank. */
function listAxesBetweenNodes(mesh: Coordinate, nodes: readonly number[]): readonly string[] {
  return Object.keys(mesh).filter((axis) => crossesHosts(nodes, mesh, axis));
}

/** Explains the marks in the table. */
function formatNotes(rows: readonly RankedStrategy[], { job, ranking, refused }: Plan): readonly string[] {
  const notes = [
    `${ranking.length} strategies compared. A step is a forward and a backward. Exposed comm: time of transfers that compute`,
    "does not hide. Intra- and inter-node: the maximum bytes that a rank sends within its node, and to other nodes. Times",
    "are compared in steps of 1 %, from the shortest; ties are broken by fewer inter-node bytes, then by lower peak memory.",
    "= within 1 % of the shortest time.",
    "The table lists the best strategy of each nesting, and every --backend; --all lists all strategies.",
  ];
  if (rows.some(({ evaluatedBy }) => evaluatedBy === "estimate")) {
    notes.push(
      `≈ estimated from ${job.ranks > maxRecordedRanks ? "one rank" : "two ranks"}, assuming that all peers keep pace; the other rows are full simulations.`,
    );
  }
  if (rows.some(({ fits }) => !fits)) notes.push("! over --memory-limit.");
  return [
    ...notes,
    ...refused.map(({ name, mesh, error }) => `${name} on ${formatMesh(mesh)} cannot run: ${error.message}`),
  ];
}

function packageVersion(): string {
  return (createRequire(import.meta.url)("@mosaic/strategies/package.json") as { version: string }).version;
}

/** Runs the command. Returns the exit code. */
export async function run(args: readonly string[]): Promise<number> {
  try {
    const settings = parseSettings(args);
    if (typeof settings !== "string") return await runPlanner(settings);
    await print(settings === "help" ? help : packageVersion());
    return 0;
  } catch (error) {
    if (!(error instanceof UsageError || error instanceof MosaicError || error instanceof OutputError)) throw error;
    printNote(`mosaic-plan: ${error.message}\n`);
    return error instanceof UsageError ? 2 : 1;
  }
}

async function runPlanner(settings: Settings): Promise<number> {
  const { svg, tiles, trace, html } = settings;
  checkOutputPaths({ svg, tiles, trace, html });
  const candidates = [];
  for (const path of settings.backends) candidates.push(await loadCandidate(path, settings.plan));
  const progress = createProgressReporter(process.stderr);
  let planResult: Plan;
  try {
    planResult = plan({ ...settings.plan, candidates, onProgress: progress.showProgress });
  } finally {
    progress.end();
  }
  writePictures(planResult, settings);
  const proof = settings.prove ? proveBest(planResult) : undefined;
  await print(
    settings.json
      ? JSON.stringify(formatJson(planResult, proof))
      : formatText(planResult, { ...settings, ownNames: new Set(candidates.map(({ name }) => name!)) }, proof),
  );
  return proof?.total ? 1 : 0;
}

type Proof = ReturnType<typeof prove>;

function proveBest({ prediction }: Plan): Proof {
  printNote("mosaic-plan: proving the best strategy\n");
  return prove(prediction.record);
}

function formatText(
  planResult: Plan,
  settings: Settings & { readonly ownNames: ReadonlySet<string> },
  proof: Proof | undefined,
): string {
  const rows = selectTableRows(planResult, settings);
  return [
    `${formatHeader(planResult)}\n`,
    ...formatTable(rows, planResult.job),
    `\n${formatNotes(rows, planResult).join("\n")}`,
    ...(proof ? formatProof(planResult, proof) : []),
    `\n${planResult.best.code.trimEnd()}`,
  ].join("\n");
}

function formatProof({ best, job }: Plan, proof: Proof): readonly string[] {
  if (proof.total > 0)
    return [`${best.name} has ${proof.total} violations:`, ...proof.violations.map(({ message }) => message)];
  return [
    `${best.name} is proved on ${formatProvedRanks(job.ranks, proof)}: every visible pair is computed exactly once, and every send has a matching receive.`,
  ];
}

/**
 * Describes the proved ranks. In a large mesh, one rank of each class is replayed with its peers, and some others are
 * compared with these.
 */
function formatProvedRanks(ranks: number, { replayed }: Proof): string {
  return replayed < ranks ? `${ranks} ranks by ${replayed} representatives` : `all ${ranks} ranks`;
}

function writePictures({ best, job, prediction }: Plan, { svg, tiles, trace, html }: Settings): void {
  const { tokens, mask } = job.shape;
  const subtitle = `${tokens} tokens, ${mask.name}, ${job.nodes} × ${job.gpusPerNode} ranks, predicted for ${job.profile.name}`;
  if (svg !== undefined) writeOutput("svg", svg, timelineSvg(prediction.simulation, { title: best.name, subtitle }));
  if (tiles !== undefined) writeOutput("tiles", tiles, tileMapSvg(prediction.record, { title: best.name, subtitle }));
  if (trace !== undefined) writeOutput("trace", trace, perfettoTrace(prediction.simulation));
  if (html === undefined) return;
  const { record, simulation } = prediction;
  const options = { title: best.name, subtitle, record, ranksPerNode: job.gpusPerNode };
  writeOutput("html", html, viewerHtml(simulation, options));
}

/** Returns all results as plain data. Times are in seconds. */
function formatJson({ job, best, ranking, refused }: Plan, proof: Proof | undefined): object {
  const { mask, placement, ...shape } = job.shape;
  const { nodes, gpusPerNode, ranks, profile } = job;
  const toPlainObject = (rankedStrategy: RankedStrategy): object => ({ ...rankedStrategy, strategy: undefined });
  return {
    ...shape,
    mask: mask.name,
    placement: placement.name,
    nodes,
    gpusPerNode,
    ranks,
    profile,
    best: toPlainObject(best),
    ranking: ranking.map(toPlainObject),
    refused: refused.map(({ name, mesh, error }) => ({ name, mesh, error: error.message })),
    ...(proof && { violations: proof.violations, violationCount: proof.total }),
  };
}

/**
 * Creates a reporter of planning progress: one line that is updated on a terminal; elsewhere one line when a stage
 * begins.
 */
function createProgressReporter({ isTTY }: NodeJS.WriteStream): {
  showProgress(progress: PlanProgress): void;
  end(): void;
} {
  const stageVerbs = { estimate: "estimating", simulate: "simulating" } as const;
  let stage: PlanProgress["stage"] | undefined;
  return {
    showProgress(progress) {
      const { done, total } = progress;
      if (isTTY) printNote(`\r\u001b[K${stageVerbs[progress.stage]} ${done + 1} of ${total}`);
      else if (stage !== progress.stage) printNote(`mosaic-plan: ${stageVerbs[progress.stage]} ${total}\n`);
      ({ stage } = progress);
    },
    end() {
      if (isTTY) printNote("\r\u001b[K");
    },
  };
}
