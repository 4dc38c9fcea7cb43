import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { flex } from "@mosaic/backend-flex";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import type { AttentionBackend, Coordinate } from "@mosaic/core";
import { composed, hierarchical } from "@mosaic/strategies";
import type { BenchmarkCase, ResultRow } from "./case.ts";

/** A strategy to prove, and its mesh of 1 024 ranks. */
export interface ProofProblem {
  readonly mesh: Coordinate;
  backend(): AttentionBackend;
}

export const HEADS = 64;
export const KV_HEADS = 8;
export const HEAD_DIM = 128;
export const TOKENS: number = 2 ** 20;

/** Masks. Placement is contiguous for full and window, zigzag for causal, and found by `dispatch` for documents. */
const proofMasks = ["full", "causal", "window", "documents"] as const;
export type ProofMask = (typeof proofMasks)[number];

const nodeMesh = { node: 128, gpu: 8 };
const podMesh = { node: 32, gpu: 32 };

/** Problems by name, each on 1 024 ranks, forward and backward. */
export const proofProblems: Readonly<Record<string, ProofProblem>> = {
  ring: { mesh: { sp: 1024 }, backend: () => ring() },
  "mesh2d-32x32": { mesh: { sp: 1024 }, backend: () => mesh2d({ shape: [32, 32], schedule: "overlapped" }) },
  "mesh2d-32x32-fused": { mesh: { sp: 1024 }, backend: () => mesh2d({ shape: [32, 32], schedule: "fused" }) },
  "mesh2d-128x8": { mesh: { sp: 1024 }, backend: () => mesh2d({ shape: [128, 8], schedule: "overlapped" }) },
  "mesh2d-128x8-fused": { mesh: { sp: 1024 }, backend: () => mesh2d({ shape: [128, 8], schedule: "fused" }) },
  flex: { mesh: { sp: 1024 }, backend: () => flex() },
  "ulysses-64": { mesh: { dp: 16, sp: 64 }, backend: () => ulysses() },
  "ring-in-ulysses": {
    mesh: { seq: 128, head: 8 },
    backend: () => composed({ meshShape: { head: 8, seq: 128 }, seqParallel: "ring" }),
  },
  "mesh2d-in-ulysses": {
    mesh: { seq: 128, head: 8 },
    backend: () => composed({ meshShape: { head: 8, seq: 128 }, seqParallel: "mesh2d" }),
  },
  "ring-in-ring": { mesh: nodeMesh, backend: () => hierarchical({ intraNodeSize: 8 }) },
  "mesh2d-in-ring": {
    mesh: podMesh,
    backend: () => hierarchical({ intraNodeSize: 32, intraNodeStrategy: "mesh2d" }),
  },
};

// Most objects of a proof are short-lived. A large young generation costs memory and saves a quarter of the time.
// Parallel garbage collection would only add work for one core.
const garbageCollectorOptions = ["--max-semi-space-size=128", "--single-threaded-gc"];

/** CPU seconds of all threads, peak memory of the process, and the number of violations found. */
export interface ProofCosts {
  readonly record: number;
  readonly prove: number;
  readonly count: number;
  readonly gigabytes: number;
  readonly violations: number;
}

/**
 * Measures the CPU seconds in which the planner records, proves and counts every strategy on 1 024 ranks, each in its
 * own process. Seconds are not relative to a baseline, so compare them only on the same machine.
 */
export const proofCases: readonly BenchmarkCase[] = Object.keys(proofProblems).flatMap((strategy) =>
  proofMasks
    .filter((mask) => strategy === "flex" || mask === "full" || mask === "causal")
    .map((mask) => ({
      names: [formatName(strategy, mask)],
      async run() {
        const script = fileURLToPath(new URL("./proof-run.js", import.meta.url));
        const { stdout } = await promisify(execFile)(process.execPath, [
          ...garbageCollectorOptions,
          script,
          strategy,
          mask,
        ]);
        return [createRow(formatName(strategy, mask), JSON.parse(stdout) as ProofCosts)];
      },
    })),
);

function formatName(strategy: string, mask: ProofMask): string {
  return `proof.1024.${strategy}.${mask}`;
}

function createRow(name: string, { record, prove, count, gigabytes, violations }: ProofCosts): ResultRow {
  const seconds = record + prove + count;
  const secondsText = [record, prove, count].map((partSeconds) => partSeconds.toFixed(1)).join(" + ");
  const text = `${seconds.toFixed(1).padStart(6)} s of CPU time (${secondsText}), ${gigabytes.toFixed(1)} GB, ${violations} violations`;
  return { case: name, numbers: { seconds, record, prove, count, gigabytes, faults: violations }, text };
}
