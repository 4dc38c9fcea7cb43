import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import "./emulated.ts";
import { getAddon } from "../src/addon.ts";
import { type Budget, parseNotes, listOverBudget, parseUsages } from "./budgets.ts";

/**
 * Hot kernels must not spill. Gradients of heads over 128, of modified scores, and float32 spill a little; budgets may
 * shrink.
 */
const budgets: readonly Budget[] = [
  { kernels: /^attend(Keys|Queries)Modified_/, registers: 255, spilled: 48 },
  { kernels: /^attend(Keys|Queries)_b?float16_256$/, registers: 255, spilled: 88 },
  { kernels: /^attendKeys_float32_64$/, registers: 168, spilled: 64 },
  { kernels: /^attend_float32_128$/, registers: 158, spilled: 8 },
  { kernels: /^attend/, registers: 255, spilled: 0 },
  { kernels: /./, registers: 128, spilled: 0 },
];

test("the report of ptxas is parsed, and kernels over their budgets are listed", () => {
  const usages = parseUsages(`ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'attend_float16_64' for 'sm_80'
ptxas info    : Function properties for attend_float16_64
    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 240 registers, used 1 barriers, 616 bytes cmem[0]
ptxas info    : Compiling entry function 'fill' for 'sm_90a'
ptxas info    : Function properties for fill
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers`);
  expect(usages).toEqual([
    { kernel: "attend_float16_64", gpu: "sm_80", registers: 240, spilled: 8 },
    { kernel: "fill", gpu: "sm_90a", registers: 32, spilled: 0 },
  ]);
  expect(listOverBudget(usages, budgets)).toEqual([
    "attend_float16_64 for sm_80: 240 registers, 8 bytes spilled; may take 255 and 0",
  ]);
});

// Written by the build. Without nvcc there are no kernels, and no report.
const reportPath = fileURLToPath(new URL("../build-emulated/ptxas.txt", import.meta.url));
const reportText = existsSync(reportPath) ? readFileSync(reportPath, "utf8") : "";

test("the report covers all families of kernels if the build has kernels", () => {
  const hasKernels = getAddon().native.probe()[2] !== "";
  const usages = parseUsages(reportText);
  for (const pattern of [/^attend_/, /^attendKeys_/, /^attendQueries_/, /^matmul/, /^softmax/])
    expect(
      usages.some(({ kernel }) => pattern.test(kernel)),
      String(pattern),
    ).toBe(hasKernels);
  const hasHopperKernels = usages.some(({ kernel }) => kernel.includes("Hopper"));
  expect(hasHopperKernels).toBe(usages.some(({ gpu }) => gpu === "sm_90a"));
});

test("no kernel exceeds its budget of registers and spilled bytes", () => {
  expect(listOverBudget(parseUsages(reportText), budgets)).toEqual([]);
});

test("performance notes on wgmma are found, and the build has none", () => {
  const serialized = "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized";
  expect(parseNotes(`ptxas info    : Used 168 registers\n${serialized} due to ...`)).toEqual([
    `${serialized} due to ...`,
  ]);
  expect(parseNotes(reportText)).toEqual([]);
});

// setmaxnreg redistributes the registers that a block started with, so kernels depend on ptxas to assign all of them.
test("Hopper kernels start with the registers that setmaxnreg redistributes", () => {
  const hopperUsages = parseUsages(reportText).filter(({ kernel }) => kernel.includes("Hopper"));
  const expected = hopperUsages.map(({ kernel }) => (/^attendHopper_.*_64$/.test(kernel) ? 65536 / 512 : 168));
  expect(hopperUsages.map(({ registers }) => registers)).toEqual(expected);
});
