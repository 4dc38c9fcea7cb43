// Jobs on several hosts simulated by network namespaces. `npm run test:hosts` creates them and builds the programs,
// which use the default collectives. Ranks share this machine's file system, but otherwise only the network.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { randomBytes } from "node:crypto";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ring } from "../src/index.ts";
import { type AttentionRecord, countLinks, record } from "../src/planner.ts";

const resolveBuilt = (path: string): string => fileURLToPath(new URL(`../../../${path}`, import.meta.url));
const mosaicRun = resolveBuilt("packages/launcher/dist/cli.js");
const directory = mkdtempSync(join(tmpdir(), "mosaic-hosts-"));
const token = join(directory, "token");
beforeAll(() => writeFileSync(token, randomBytes(32).toString("hex"), { mode: 0o600 }));
afterAll(() => rmSync(directory, { recursive: true }));

const env = {
  ...process.env,
  MOSAIC_TOKEN_FILE: token,
  MOSAIC_THREADS: "1",
  // The hosts are on one machine. Between real machines, UCX detects that it cannot use shared memory.
  UCX_TLS: "tcp",
};

interface ProcessResult {
  readonly code: number | null;
  readonly output: string;
}

function runProcess(command: string, args: readonly string[]): Promise<ProcessResult> {
  const child = spawn(command, args, { env, stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => (output += text));
  return new Promise((resolve) => child.on("close", (code) => resolve({ code, output })));
}

/** Runs a program with the given number of ranks on each host. A single host runs without a network. */
async function runOnHosts(ranks: readonly number[], program: readonly string[]): Promise<void> {
  const processResults = await Promise.all(
    ranks.map((count, host) => {
      const start = [mosaicRun, "-n", String(count)];
      if (ranks.length === 1) return runProcess(process.execPath, [...start, ...program]);
      const nodes = ["-N", String(ranks.length), "--node-rank", String(host), "--rdzv-endpoint", "10.77.0.10:29400"];
      const args = ["netns", "exec", `n${host}`, process.execPath, ...start, ...nodes, ...program];
      return runProcess("ip", args);
    }),
  );
  for (const { code, output } of processResults) expect(code, output).toBe(0);
}

/** Headers of a packet: Ethernet, IPv4, and TCP with timestamps. */
const HEADER_BYTES = 14 + 20 + 32;

/**
 * Returns the bytes that each host has sent, without packet headers, because the number of packets depends on the load.
 */
function readBytesSentByHosts(hosts: number): readonly number[] {
  return Array.from({ length: hosts }, (_, host) => {
    const linkStatsJson = execFileSync("ip", ["-json", "-stats", "link", "show", `v${host}`], { encoding: "utf8" });
    const [link] = JSON.parse(linkStatsJson) as {
      readonly stats64: { readonly rx: { readonly bytes: number; readonly packets: number } };
    }[];
    const { bytes, packets } = link!.stats64.rx;
    return bytes - packets * HEADER_BYTES;
  });
}

/** Returns the contents of files of a directory, by name. */
function readFiles(path: string, pattern: RegExp): Readonly<Record<string, string>> {
  const names = readdirSync(path).filter((name) => pattern.test(name));
  return Object.fromEntries(names.map((name) => [name, readFileSync(join(path, name)).toString("base64")]));
}

const placements: readonly [name: string, ranks: readonly number[]][] = [
  ["2 hosts of 2 ranks", [2, 2]],
  ["3 hosts of 2, 1 and 1 ranks", [2, 1, 1]],
  ["3 hosts of 1, 2 and 1 ranks", [1, 2, 1]],
];

// ── the quickstart

const tokens = 12_000;
const settings = {
  ...{ tokens, ranks: 4, backend: "ring", mask: { name: "full" }, placement: "contiguous", dtype: "float32" },
  ...{ backward: true, numHeads: 2, dim: 64, seed: 0, json: false, svg: "", dispatch: "", predict: "" },
};

async function runAttentionProgram(ranks: readonly number[]): Promise<string> {
  const results = mkdtempSync(join(directory, "quickstart-"));
  const job = { settings, directory: results, recordEvents: { forward: 4, backward: 4 } };
  await runOnHosts(ranks, [resolveBuilt("apps/quickstart/dist/rank.js"), JSON.stringify(job)]);
  return results;
}

/**
 * Computes, from the planner's counts, the bytes that each host sends to others. A rank of a ring sends only to the
 * next one.
 */
function countBytesSentByHosts(recorded: AttentionRecord, ranks: readonly number[]): readonly number[] {
  const hostByRank = ranks.flatMap((count, host) => Array.from({ length: count }, () => host));
  const bytesSentByRank = countLinks(recorded, { ranksPerNode: 1 }).map(
    ({ forward, backward }) => forward["inter-node"].sent.bytes + backward["inter-node"].sent.bytes,
  );
  return ranks.map((_, host) =>
    bytesSentByRank.reduce((sum, bytes, rank) => {
      const crossesHosts = hostByRank[rank] === host && hostByRank[(rank + 1) % bytesSentByRank.length] !== host;
      return crossesHosts ? sum + bytes : sum;
    }, 0),
  );
}

describe("the quickstart", () => {
  let expected: Readonly<Record<string, string>>;
  const recorded = record({
    ...{ backend: ring(), mesh: { sp: 4 }, tokens, numHeads: settings.numHeads, headDim: settings.dim },
    dtype: "float32",
  });
  beforeAll(async () => {
    expected = readFiles(await runAttentionProgram([4]), /\.f32$/);
    expect(Object.keys(expected)).toHaveLength(4 * 4); // out, dq, dk, dv of each rank
    // For two hosts of two ranks each, the planner itself counts the bytes sent between hosts.
    const links = countLinks(recorded, { ranksPerNode: 2 });
    const crossHostBytes = links.map(
      (rank) => rank.forward["inter-node"].sent.bytes + rank.backward["inter-node"].sent.bytes,
    );
    expect([crossHostBytes[0]! + crossHostBytes[1]!, crossHostBytes[2]! + crossHostBytes[3]!]).toEqual(
      countBytesSentByHosts(recorded, [2, 2]),
    );
  });

  test.each(placements)(
    "computes the bits of one host and sends the bytes that the planner counts, on %s",
    async (_, ranks) => {
      const bytesBefore = readBytesSentByHosts(ranks.length);
      const results = await runAttentionProgram(ranks);
      const bytesAfter = readBytesSentByHosts(ranks.length);
      expect(readFiles(results, /\.f32$/)).toEqual(expected);
      const predictedBytes = countBytesSentByHosts(recorded, ranks);
      const total = countLinks(recorded, { ranksPerNode: 1 });
      for (let rank = 0; rank < 4; rank++) {
        const { bytesSent } = JSON.parse(readFileSync(join(results, `report.${rank}.json`), "utf8")) as {
          readonly bytesSent: number;
        };
        const { forward, backward } = total[rank]!;
        expect(bytesSent).toBe(forward["inter-node"].sent.bytes + backward["inter-node"].sent.bytes);
      }
      for (const [host, bytes] of predictedBytes.entries()) {
        const measuredBytes = bytesAfter[host]! - bytesBefore[host]!;
        // Nothing is sent twice or between ranks of one host. The excess is UCX headers and the control plane.
        expect(measuredBytes).toBeGreaterThan(bytes);
        expect(measuredBytes).toBeLessThan(bytes * 1.01 + 64 * 1024);
      }
    },
  );
});

// ── a training

async function runTraining(ranks: readonly number[], method: string): Promise<Readonly<Record<string, string>>> {
  const results = mkdtempSync(join(directory, "training-"));
  const steps = ["--steps", "6", "--evaluate-every", "3", "--checkpoint-every", "6"];
  const model = ["--task", "genome", "--method", method, "--chunks", "8", "--chunk-length", "64", "--batch", "2"];
  await runOnHosts(ranks, [resolveBuilt("apps/genome/dist/rank.js"), ...model, ...steps, "--output-dir", results]);
  return readFiles(results, /^(curve\.jsonl|model\.safetensors)$/);
}

describe.each(["ring", "meta"])("a training with %s attention", (method) => {
  let expected: Readonly<Record<string, string>>;
  beforeAll(async () => {
    expected = await runTraining([4], method);
    const curve = Buffer.from(expected["curve.jsonl"]!, "base64").toString().trim().split("\n");
    expect(curve).toHaveLength(6);
    expect(Object.keys(expected)).toContain("model.safetensors");
  });

  test.each(placements)("has the losses and weights of one host, bit for bit, on %s", async (_, ranks) => {
    expect(await runTraining(ranks, method)).toEqual(expected);
  });
});
