import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { countFlops, formatName } from "../src/attention-problem.ts";
import { median } from "../src/case.ts";
import { createPeakRow } from "../src/local.ts";

const main = fileURLToPath(new URL("../dist/main.js", import.meta.url));
const runBenchmark = (...args: string[]): { status: number | null; stdout: string; stderr: string } =>
  spawnSync(process.execPath, [main, ...args], { encoding: "utf8" });

describe("the benchmark command", () => {
  it("lists unique names, including the cases for which goals are set", () => {
    const names = runBenchmark("--list").stdout.trim().split("\n");
    const allNames = runBenchmark("--list", "--python", "python3").stdout.trim().split("\n");
    expect(new Set(allNames).size).toBe(allNames.length);
    expect(allNames.filter((name) => !names.includes(name)).every((name) => name.startsWith("peer"))).toBe(true);
    expect(allNames).toContain("peer-ring.2x1.backward.f32.causal.d64.n8192");
    expect(allNames).toContain("peer.backward.f32.full.d24.n5.b100000");
    expect(allNames).toContain("peer-step.d128.l4.b32.n128");
    for (const call of ["add", "add.grad", "mul.grad"]) expect(allNames).toContain(`peer-call.${call}.n16`);
    expect(names).toContain("ring.2x1.forward.f32.full.d64.n16384");
    expect(names).toContain("ring.2x1.backward.f32.full.d64.n16384");
    for (const d of [64, 128]) expect(names).toContain(`local.forward.f32.full.d${d}.n8192`);
  });

  it("rejects unknown cases and options", () => {
    expect(runBenchmark("--filter", "nothing.like.it")).toMatchObject({
      status: 2,
      stderr: expect.stringContaining("--list"),
    });
    expect(runBenchmark("--fast")).toMatchObject({ status: 2, stderr: expect.stringContaining("--quick") });
  });

  it("prints one JSON object per case", () => {
    const { status, stdout } = runBenchmark("--json", "--quick", "--filter", "gemm.f32.m8192.n384");
    expect(status).toBe(0);
    expect(JSON.parse(stdout)).toMatchObject({
      case: "gemm.f32.m8192.n384.k128",
      share: expect.any(Number),
      gflops: expect.any(Number),
    });
  });
});

describe("benchmark figures", () => {
  const problem = { direction: "forward", dtype: "f32", mask: "full", d: 64, n: 1024, numHeads: 8 } as const;

  it("count 4n²d FLOPs per head forward, 10n²d backward, and half with a causal mask", () => {
    expect(formatName(problem)).toBe("forward.f32.full.d64.n1024");
    expect(countFlops(problem)).toBe(4 * 8 * 1024 ** 2 * 64);
    expect(countFlops({ ...problem, direction: "backward", mask: "causal" })).toBe(5 * 8 * 1024 ** 2 * 64);
    expect(formatName({ ...problem, batch: 3 })).toBe("forward.f32.full.d64.n1024.b3");
    expect(countFlops({ ...problem, batch: 3 })).toBe(3 * 4 * 8 * 1024 ** 2 * 64);
  });

  it("relate the best rate to the best peak, and report the median share of the runs", () => {
    const { numbers } = createPeakRow("x", 10e9, [
      { seconds: 0.2, peakGflops: 100 },
      { seconds: 0.1, peakGflops: 125 },
      { seconds: 0.4, peakGflops: 50 },
    ]);
    expect(numbers).toEqual({ gflops: 100, peak: 125, share: 0.8, medianShare: 0.5 });
    expect(median([4, 1, 3, 2])).toBe(2.5);
  });
});
