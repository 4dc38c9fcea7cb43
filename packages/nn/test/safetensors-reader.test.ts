import { mkdtemp, rm, truncate } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { DType, HostTensor } from "@mosaic/core";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { openSafetensors, writeSafetensors } from "../src/index.ts";

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "mosaic-reader-"));
});
afterAll(() => rm(folder, { recursive: true }));

/** Writes a file of two tensors: the numbers from 0 to 23, and a scalar. */
async function writeTestFile(name: string, dtype: DType): Promise<string> {
  const path = join(folder, name);
  const values = Float32Array.from({ length: 24 }, (_, i) => i / 4);
  const tensors = new Map<string, HostTensor>([
    ["matrix", { dtype, shape: [4, 6], values }],
    ["scalar", { dtype: "float32", shape: [], values: Float32Array.of(7) }],
  ]);
  await writeSafetensors(path, tensors, { note: "a" });
  return path;
}

describe("openSafetensors", () => {
  test.each(["float32", "bfloat16", "float16"] as const)(
    "reads ranges of the elements of a %s tensor",
    async (dtype) => {
      await using file = await openSafetensors(await writeTestFile(dtype, dtype));
      expect([...file.tensors.keys()].sort()).toEqual(["matrix", "scalar"]);
      expect(file.tensors.get("matrix")!.shape).toEqual([4, 6]);
      expect(file.metadata.get("note")).toBe("a");
      for (const [start, end] of [
        [0, 24],
        [0, 1],
        [5, 13],
        [23, 24],
        [24, 24],
      ] as const) {
        const expected = Array.from({ length: end - start }, (_, i) => (start + i) / 4);
        expect(Array.from(await file.readRange("matrix", start, end))).toEqual(expected);
      }
      expect(Array.from(await file.readRange("scalar", 0, 1))).toEqual([7]);
    },
  );

  test("rejects unknown names and ranges out of bounds", async () => {
    await using file = await openSafetensors(await writeTestFile("refused", "float32"));
    await expect(file.readRange("other", 0, 1)).rejects.toThrow(
      /expected the name of a tensor in the file, received "other"/,
    );
    await expect(file.readRange("matrix", 0, 25)).rejects.toThrow(/to: expected an integer from 0 to 24, received 25/);
    await expect(file.readRange("matrix", 3, 2)).rejects.toThrow(/from: expected an integer from 0 to 2, received 3/);
  });

  test("rejects a truncated file when it is opened, and when it is read after opening", async () => {
    const path = await writeTestFile("truncated", "float32");
    await using file = await openSafetensors(path);
    await truncate(path, 200);
    await expect(openSafetensors(path)).rejects.toThrow(/restore (the file|it) from a copy; nothing was loaded/);
    await expect(file.readRange("matrix", 0, 24)).rejects.toThrow(
      /expected a file of at least \d+ bytes, received 200/,
    );
  });
});
