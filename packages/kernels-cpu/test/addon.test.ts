import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { inspect } from "node:util";
import { AddonLoadError, OptionError, OutOfMemoryError } from "@mosaic/core";
import { NativeHandle } from "@mosaic/runtime";
import { afterEach, describe, expect, test, vi } from "vitest";
import { addonPath, type CpuAddon, getAddon, loadCpuAddon } from "../src/addon.ts";
import { cpu, features, fmaPeak, readBandwidth } from "../src/index.ts";
import { memoryLimit, threadCount } from "../src/device.ts";

afterEach(() => vi.unstubAllEnvs());

test("a missing addon is reported with its path, its likely causes and the remedy", () => {
  const missingPath = join(tmpdir(), "nowhere", "mosaic_kernels_cpu.node");
  expect(() => loadCpuAddon(missingPath)).toThrow(AddonLoadError);
  expect(() => loadCpuAddon(missingPath)).toThrow(
    /nowhere.*does not exist[\s\S]*Likely causes:[\s\S]*@mosaic\/kernels-cpu is incomplete: .*install again/,
  );
});

test("a file that is not an addon, or one of another version, is rejected", () => {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-addon-"));
  try {
    const brokenPath = join(directory, "mosaic_kernels_cpu.node");
    writeFileSync(brokenPath, "not an addon");
    expect(() => loadCpuAddon(brokenPath)).toThrow(/cannot load the native CPU device[\s\S]*the addon file is damaged/);
    const foreignPath = join(directory, "foreign.cjs");
    writeFileSync(foreignPath, "exports.protocol = 0;");
    expect(() => loadCpuAddon(foreignPath)).toThrow(
      /the addon uses version 0[\s\S]*packages have different versions, which `npm ls @mosaic\/runtime @mosaic\/kernels-cpu` lists/,
    );
  } finally {
    rmSync(directory, { recursive: true });
  }
});

test("features() returns the instruction sets and the number of threads", () => {
  const { isa, supported, threads } = features();
  expect(supported).toContain(isa);
  expect(supported[0]).toBe("scalar");
  expect(threads).toBeGreaterThanOrEqual(1);
  expect(addonPath).toContain(process.arch);
});

test("MOSAIC_ISA selects the instruction set, and unknown ones are rejected", () => {
  vi.stubEnv("MOSAIC_ISA", "scalar");
  expect(features().isa).toBe("scalar");
  vi.stubEnv("MOSAIC_ISA", "sse9");
  expect(() => features()).toThrow(OptionError);
  expect(() => cpu()).toThrow(/MOSAIC_ISA: expected one of scalar/);
});

test("fmaPeak and readBandwidth return positive rates, and zero threads are rejected", () => {
  expect(fmaPeak(1)).toBeGreaterThan(0.1);
  expect(fmaPeak(1, "bfloat16")).toBeGreaterThan(0.1);
  expect(() => fmaPeak(0)).toThrow(OptionError);
  expect(readBandwidth(1 << 20, 1)).toBeGreaterThan(0.01);
});

test("a bandwidth of more bytes than there are throws OutOfMemoryError", () => {
  expect(() => readBandwidth(2 ** 50, 1)).toThrow(OutOfMemoryError);
});

test("the number of threads is the option, else MOSAIC_THREADS, else a share of the cores", () => {
  const { threads: cores } = features();
  expect(threadCount(3, { MOSAIC_THREADS: "5" })).toBe(3);
  expect(threadCount(undefined, { MOSAIC_THREADS: "5", LOCAL_WORLD_SIZE: "2" })).toBe(5);
  expect(threadCount(undefined, { LOCAL_WORLD_SIZE: "1" })).toBeGreaterThanOrEqual(cores);
  expect(threadCount(undefined, { LOCAL_WORLD_SIZE: "100000" })).toBe(1);
  expect(threadCount(undefined, { SLURM_CPUS_ON_NODE: "1" })).toBe(1);
  expect(threadCount(undefined, { SLURM_CPUS_ON_NODE: "100000", LOCAL_WORLD_SIZE: "2" })).toBe(cores);
  for (const invalidCount of ["0", "-1", "1.5", "many"]) {
    const message = `expected an integer ≥ 1, received "${invalidCount}"`;
    expect(() => threadCount(undefined, { MOSAIC_THREADS: invalidCount })).toThrow(`MOSAIC_THREADS: ${message}`);
    expect(() => threadCount(undefined, { LOCAL_WORLD_SIZE: invalidCount })).toThrow(`LOCAL_WORLD_SIZE: ${message}`);
  }
  expect(() => cpu({ threads: 0 })).toThrow(/cpu: threads: expected an integer from 1 to 1024, received 0/);
  expect(() => cpu({ threads: 2 ** 40 })).toThrow(/cpu: threads: expected an integer from 1 to 1024/);
});

test("inspect and String format a device without its addon", () => {
  using device = cpu({ threads: 1 });
  expect([inspect(device), `${device}`, inspect({ device })]).toEqual([
    "Device cpu:0",
    "Device cpu:0",
    "{ device: Device cpu:0 }",
  ]);
});

test("JSON of a device is its type and index", () => {
  using device = cpu({ threads: 1, index: 3 });
  expect(JSON.stringify({ device })).toBe('{"device":"cpu:3"}');
});

test("unknown options and invalid values are rejected", () => {
  expect(() => cpu({ thread: 2 } as object)).toThrow(/cpu: expected options among threads, .*received "thread"/);
  expect(() => cpu({ index: -1 })).toThrow(/cpu: index: expected an integer ≥ 0, received -1/);
});

test("the memory limit is the option, else MOSAIC_MEMORY_LIMIT, which may have a unit", () => {
  expect(memoryLimit(undefined, {})).toBe(0);
  expect(memoryLimit(100, { MOSAIC_MEMORY_LIMIT: "5" })).toBe(100);
  const limits = ["5", "2K", "3m", "4G"].map((text) => memoryLimit(undefined, { MOSAIC_MEMORY_LIMIT: text }));
  expect(limits).toEqual([5, 2048, 3 * 2 ** 20, 4 * 2 ** 30]);
  expect(() => memoryLimit(undefined, { MOSAIC_MEMORY_LIMIT: "lots" })).toThrow(OptionError);
});

describe("native exports throw an error for invalid arguments", () => {
  const openHandle = () => new NativeHandle(getAddon(), { name: "cpu:0", options: [1, 0], remedy: "" });
  const values = new Float32Array(1);
  const calls: [name: string, call: (native: CpuAddon) => void][] = [
    ["write", (native) => native.write(values)],
    ["read", (native) => native.read(values)],
    ["fill", (native) => native.fill()],
  ];
  test.each(calls)("%s", (name, call) => {
    const device = openHandle();
    const args = device.begin(name);
    for (let i = 0; i < 8; i++) args.number(Number.NaN);
    expect(() => call(device.native)).toThrow("expected a number in the range of int64, received nan");
    device.close();
  });
  test.each([-1, 13])("write rejects a tensor of %d axes", (rank) => {
    const device = openHandle();
    device.begin("write").number(0).number(0).number(rank);
    expect(() => device.native.write(values)).toThrow(`expected from 0 to 12 axes, received ${rank}`);
    device.close();
  });
});
