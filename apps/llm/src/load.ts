// Load test of the server, with a model of random weights: 64 concurrent clients and 1 000 requests, of which 100 are
// cancelled half way and 20 are malformed. No request may be lost, and no memory may leak. Then a rank is killed, and
// SIGTERM is sent while texts are generated.
//
//   npm run load-test -w @mosaic/llm [-- --requests 1000 --clients 64 --ranks 2 --out results/serve.json]
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { availableParallelism, cpus, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { world } from "@mosaic/attention";
import { createModel } from "@mosaic/models";
import { folderFilePaths, prepareFolder } from "./model-folder.ts";
import { type LoadReport, readEvents, runLoad } from "./serve/load-test.ts";
import { parseTrainSettings } from "./settings.ts";

const { values } = parseArgs({
  options: {
    requests: { type: "string", default: "1000" },
    clients: { type: "string", default: "64" },
    ranks: { type: "string", default: "2" },
    tokens: { type: "string", default: "32" },
    out: { type: "string", default: "" },
  },
});
const [requests, clients, ranks, maxTokens] = [values.requests, values.clients, values.ranks, values.tokens].map(
  Number,
);
const folder = mkdtempSync(join(tmpdir(), "mosaic-load-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
const model = "random";
/** MiB by which the resident memory of a process without leaks may grow. */
const MAX_RESIDENT_GROWTH_MIB = 64;
/** Limit for tables that a model keeps. If every request leaked a tensor, the growth would exceed it. */
const MAX_ALLOCATED_GROWTH_BYTES = 65_536;
await writeModel(join(folder, model));
const server = await startServer(join(folder, model));
const faults: string[] = [];
try {
  const loadSettings = { url: server.url, model, clients: clients!, tokens: maxTokens! };
  const [numCancelled, numMalformed] = [Math.round(requests! / 10), Math.round(requests! / 50)];
  // Warm-up: memory has its working size only after a load.
  await runLoad({ ...loadSettings, requests: 2 * clients!, numCancelled: 0, numMalformed: 0 });
  const memoryBefore = await measureMemory();
  const report = await runLoad({
    ...loadSettings,
    requests: requests!,
    numCancelled,
    numMalformed,
  });
  const memoryAfter = await measureMemory();
  faults.push(...report.faults, ...compareMemory(memoryBefore, memoryAfter));
  const result = {
    ...{ requests, clients, ranks, tokens: maxTokens, ...report, faults, before: memoryBefore, after: memoryAfter },
    killed: await killRank(),
    stopped: await stopServer(),
    machine: `${cpus()[0]?.model.trim()}, ${availableParallelism()} cores, load ${loadavg()[0]?.toFixed(1)}, Node ${process.version}`,
  };
  printReport(result);
  if (values.out !== "") writeFileSync(values.out, `${JSON.stringify(result, null, 2)}\n`);
} finally {
  server.process.kill("SIGKILL");
}
process.exitCode = faults.length > 0 ? 1 : 0;

async function writeModel(path: string): Promise<void> {
  prepareFolder(path, parseTrainSettings(["--out", path]));
  const [ctx] = await world(1, { seed: 0 });
  {
    using randomModel = createModel(ctx!, JSON.parse(readFileSync(folderFilePaths(path).config, "utf8")) as object);
    await randomModel.save(path);
  }
  await ctx!.close();
}

interface TestedServer {
  readonly url: string;
  readonly process: ChildProcess;
  /** Resolves when ranks are ready again. */
  waitUntilReady(): Promise<void>;
}

async function startServer(path: string): Promise<TestedServer> {
  const mainPath = fileURLToPath(new URL("../dist/main.js", import.meta.url));
  const args = [mainPath, "serve", "--model", path, "--ranks", String(ranks), "--port", "0"];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout });
  const readNextLine = async (): Promise<string> => ((await once(lines, "line")) as [string])[0];
  const exitPromise = once(child, "exit").then(() => Promise.reject(new Error("the server ended")));
  exitPromise.catch(() => {});
  const readyLine = await Promise.race([readNextLine(), exitPromise]);
  return {
    url: readyLine.replace(/^.* at /, ""),
    process: child,
    waitUntilReady: async () => void (await readNextLine()),
  };
}

interface Memory {
  readonly freeTokens: number;
  readonly maxTokens: number;
  readonly allocated: number;
  /** MiB of resident memory: the server, then each rank. */
  readonly resident: readonly number[];
}

/** Measures memory once no request is running or waiting. */
async function measureMemory(): Promise<Memory> {
  for (;;) {
    const response = await fetch(`${server.url}/health`);
    const {
      running,
      waiting,
      ranks: stats,
    } = (await response.json()) as {
      readonly running: number;
      readonly waiting: number;
      readonly ranks: Omit<Memory, "resident"> & { readonly running: number };
    };
    if (running + waiting + stats.running > 0) continue;
    const { freeTokens, maxTokens, allocated } = stats;
    const pids = [server.process.pid!, ...findRankPids()];
    return { freeTokens, maxTokens, allocated, resident: pids.map(readResidentMib) };
  }
}

function readResidentMib(pid: number): number {
  const [, kib = "0"] = /VmRSS:\s*(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
  return Math.round(Number(kib) / 1024);
}

/** Returns the process IDs of the ranks, by rank. */
function findRankPids(): readonly number[] {
  const pids: number[] = [];
  for (const name of readdirSync("/proc").filter((entryName) => /^\d+$/.test(entryName))) {
    try {
      const environment = readFileSync(`/proc/${name}/environ`, "utf8");
      const command = readFileSync(`/proc/${name}/cmdline`, "utf8");
      const rank = /(?:^|\0)RANK=(\d+)/.exec(environment)?.[1];
      if (rank !== undefined && command.includes(folder) && command.includes("rank.js"))
        pids[Number(rank)] = Number(name);
    } catch {
      // The process has exited, or belongs to another user.
    }
  }
  return pids;
}

function compareMemory(before: Memory, after: Memory): string[] {
  const growthFaults = after.resident.flatMap((residentMib, i) =>
    residentMib > before.resident[i]! + MAX_RESIDENT_GROWTH_MIB
      ? [
          `process ${i}: expected at most ${before.resident[i]! + MAX_RESIDENT_GROWTH_MIB} MiB of resident memory after the load, received ${residentMib} MiB`,
        ]
      : [],
  );
  const hasLeak =
    after.freeTokens !== after.maxTokens || after.allocated > before.allocated + MAX_ALLOCATED_GROWTH_BYTES;
  return [
    ...growthFaults,
    ...(hasLeak
      ? [
          `memory leak in the ranks: expected all ${after.maxTokens} cache tokens to be free, and at most ${MAX_ALLOCATED_GROWTH_BYTES} more bytes allocated than before the load; received ${JSON.stringify({ before, after })}`,
        ]
      : []),
  ];
}

function postCompletion(body: object): Promise<Response> {
  return fetch(`${server.url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model, prompt: "And", temperature: 0, ...body }),
  });
}

/** Kills the last rank while texts are generated. */
async function killRank(): Promise<object> {
  const streamResponses = await Promise.all(
    Array.from({ length: 8 }, () => postCompletion({ max_tokens: 400, stream: true })),
  );
  const wholeResponses = Array.from({ length: 8 }, () => postCompletion({ max_tokens: 400 }));
  const readyPromise = server.waitUntilReady();
  const startTime = performance.now();
  process.kill(findRankPids().at(-1)!, "SIGKILL");
  const requestEndCounts: Record<string, number> = {};
  const countRequestEnd = (end: string): void => void (requestEndCounts[end] = (requestEndCounts[end] ?? 0) + 1);
  for (const response of streamResponses) {
    let error: string | undefined;
    for await (const event of readEvents(response)) error = event.error?.message ?? error;
    countRequestEnd(error === undefined ? "stream: complete" : `stream: ${error}`);
  }
  for (const response of await Promise.all(wholeResponses)) countRequestEnd(`whole: status ${response.status}`);
  await readyPromise;
  const restartSeconds = (performance.now() - startTime) / 1000;
  const { status } = await postCompletion({ max_tokens: 8 });
  if (status !== 200) faults.push(`expected status 200 after the restart, received ${status}`);
  if (!Object.keys(requestEndCounts).some((end) => /503|lost/.test(end)))
    faults.push(`expected failed requests after a rank was killed, received ${JSON.stringify(requestEndCounts)}`);
  return { ends: requestEndCounts, restartSeconds, statusAfter: status };
}

/** Sends SIGTERM while a text is generated. Both the text and the server must complete normally. */
async function stopServer(): Promise<object> {
  const response = await postCompletion({ max_tokens: 200, stream: true });
  const exitPromise = once(server.process, "exit") as Promise<[number | null]>;
  server.process.kill("SIGTERM");
  let finishReason: string | null = null;
  for await (const event of readEvents(response)) finishReason = event.choices?.[0]?.finish_reason ?? finishReason;
  const [exitCode] = await exitPromise;
  const numRanksLeft = findRankPids().length;
  if (finishReason === null || exitCode !== 0 || numRanksLeft > 0)
    faults.push(
      `SIGTERM: expected a finish reason, exit code 0 and no ranks left, received ${finishReason}, ${exitCode} and ${numRanksLeft}`,
    );
  return { finishReason, exitCode, ranksLeft: numRanksLeft };
}

function printReport(result: LoadReport & { readonly killed: object; readonly stopped: object }): void {
  const { completed, cancelled, refused, seconds, tokensPerSecond, latency, firstToken } = result;
  console.log(`${completed} completed, ${cancelled} cancelled, rejected by status ${JSON.stringify(refused)}`);
  console.log(`${seconds.toFixed(1)} s, ${tokensPerSecond.toFixed(0)} tokens/s`);
  console.log(`latency ${JSON.stringify(latency)} ms, first token ${JSON.stringify(firstToken)} ms`);
  console.log(
    `rank killed: requests and restart ${JSON.stringify(result.killed)}; SIGTERM: shutdown ${JSON.stringify(result.stopped)}`,
  );
  for (const fault of result.faults) console.error(fault);
}
