import { MosaicError } from "@mosaic/core";
import { perfettoTrace, prove, tileMapSvg, timelineSvg } from "@mosaic/planner";
import { type Plan, plan, type Planned } from "../plan/plan.ts";
import { loadCandidate } from "./load.ts";
import { checkTargets, note, OutputError, save, say } from "./output.ts";
import { progressOn } from "./progress.ts";
import { help, readSettings, type Settings } from "./settings.ts";
import { headOf, notesOf, rowsOf, tableOf } from "./table.ts";
import { UsageError } from "./usage-error.ts";

/** Runs the command; the exit code. */
export async function run(args: readonly string[]): Promise<number> {
  try {
    const settings = readSettings(args);
    if (settings !== "help") return await planWith(settings);
    await say(help);
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
  await say(settings.json ? JSON.stringify(jsonOf(found, proof)) : textOf(found, settings, proof));
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
