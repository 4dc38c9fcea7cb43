import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { listLeftovers } from "./faults/leftovers.ts";
import { runRanks } from "./faults/run.ts";

const directory = fileURLToPath(new URL("../build/readme/", import.meta.url));

it("runs the README's program on four ranks with fewer tokens", async () => {
  const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");
  const program = /```ts.*\n([^]*?)```/.exec(readme)![1]!;
  expect(program).toContain("37_500");
  mkdirSync(directory, { recursive: true });
  const entry = `${directory}train.ts`;
  writeFileSync(entry, `${program.replace("37_500", "75")}console.log(out.shape.join());\n`);
  const runResult = await runRanks({ ranks: 4, entry });
  expect(runResult).toMatchObject({ code: 0, output: expect.stringMatching(/(?:[^]*2,75,128){4}/) });
  expect(listLeftovers(runResult.mark, runResult)).toEqual([]);
});
