import { execFileSync, spawnSync } from "node:child_process";
import { availableParallelism } from "node:os";
import { world } from "@mosaic/collectives-local";
import { cpu } from "@mosaic/kernels-cpu";
import { expect, test } from "vitest";
import { countAvailableCores, parseCpuList } from "../../src/time/available-cores.ts";

test("parseCpuList accepts single CPUs and ranges", () => {
  expect(parseCpuList("0-3,8")).toEqual([0, 1, 2, 3, 8]);
  expect(parseCpuList("5")).toEqual([5]);
  expect(parseCpuList("")).toEqual([]);
});

test("countAvailableCores returns the cores of the process for ranks that share all of them", async () => {
  const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
  expect(await countAvailableCores(contexts)).toBe(availableParallelism());
  await Promise.all(contexts.map((ctx) => ctx.close()));
});

const canBind = availableParallelism() > 1 && spawnSync("taskset", ["--version"]).status === 0;

test.runIf(canBind)("countAvailableCores counts the cores of all ranks if each is bound to one core", async () => {
  const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
  const list = execFileSync("taskset", ["-pc", String(process.pid)], { encoding: "utf8" })
    .split(":")
    .at(-1)!
    .trim();
  // This simulates a process on each core, because the union is taken over what each call reads.
  const [first, second] = contexts;
  const cpus = parseCpuList(list);
  const bind = (cpuList: string): void => void execFileSync("taskset", ["-pc", cpuList, String(process.pid)]);
  try {
    bind(String(cpus[0]));
    const firstCount = countAvailableCores([first!]);
    bind(String(cpus[1]));
    const secondCount = countAvailableCores([second!]);
    expect(await Promise.all([firstCount, secondCount])).toEqual([2, 2]);
  } finally {
    bind(list);
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
});
