// Measures a tree of agents with real sockets in a few processes, and ranks with the real client as threads of another
// process:
//
//   npx tsx packages/runtime/test/control/scale.ts [agents 512] [ranks per agent 8] [processes 2]
import { execFile, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { compile } from "./native.ts";

export interface Scale {
  readonly agents: number;
  readonly ranksPerAgent: number;
  /** Number of processes over which the agents are distributed. */
  readonly processes: number;
}

/** Seconds from a cause until every rank has received its effect, or `-1` if that took longer than a minute. */
export interface ScaleMeasurement {
  readonly ranks: number;
  readonly rendezvous: number;
  readonly values: number;
  /** Time in which one rank receives the positions of all ranks. */
  readonly positions: number;
  readonly positionRecords: number;
  /** Time in which all ranks, at the same time, receive the positions of all ranks. */
  readonly storm: number;
  /** Fraction of these positions that arrived in time. */
  readonly stormShare: number;
  readonly split: number;
  readonly mismatch: number;
  readonly death: number;
  readonly failure: number;
  readonly leave: number;
  readonly controlLost: number;
  readonly kilobytesPerRank: number;
  readonly kilobytesPerAgent: number;
  readonly cpuSecondsOfAgents: number;
}

interface Costs {
  readonly empty: number;
  readonly highest: number;
  readonly seconds: number;
}

export async function measureScale({ agents, ranksPerAgent, processes }: Scale): Promise<ScaleMeasurement> {
  const directory = mkdtempSync(join(tmpdir(), "scale-"));
  const prefix = join(directory, "a");
  const agentProcesses: Awaited<ReturnType<typeof startAgents>>[] = [];
  try {
    for (let i = 0; i < processes; i++) {
      const [firstAgent, endAgent] = [i, i + 1].map((processIndex) => Math.round((processIndex * agents) / processes));
      agentProcesses.push(await startAgents({ prefix, from: firstAgent, to: endAgent, root: agentProcesses[0]?.root }));
    }
    const { stdout } = await promisify(execFile)(await compile("control_stress"), [
      prefix,
      `${agents}`,
      `${ranksPerAgent}`,
    ]);
    const costs = await Promise.all(agentProcesses.map((agentProcess) => agentProcess.end()));
    const bytes = costs.reduce((sum, { empty, highest }) => sum + highest - empty, 0);
    return {
      ...(JSON.parse(stdout) as ScaleMeasurement),
      kilobytesPerAgent: bytes / agents / 1024,
      cpuSecondsOfAgents: costs.reduce((sum, { seconds }) => sum + seconds, 0),
    };
  } finally {
    for (const agentProcess of agentProcesses) agentProcess.kill();
    rmSync(directory, { recursive: true, force: true });
  }
}

async function startAgents(options: object) {
  const script = join(import.meta.dirname, "scale-agents.mjs");
  const child = spawn(process.execPath, [script, JSON.stringify(options)], { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const nextMessage = async <T>(): Promise<T> => JSON.parse((await lines.next()).value as string) as T;
  const { root } = await nextMessage<{ root: string }>();
  const end = (): Promise<Costs> => {
    child.stdin.end();
    return nextMessage<Costs>();
  };
  return { root, end, kill: () => child.kill("SIGKILL") };
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const [agents = 512, ranksPerAgent = 8, processes = 2] = process.argv.slice(2).map(Number);
  console.log(JSON.stringify(await measureScale({ agents, ranksPerAgent, processes }), undefined, 1));
}
