import { readFileSync } from "node:fs";
import { join } from "node:path";
import { launch } from "@mosaic/launcher";
import { expect, test } from "vitest";
import { AdamW } from "../../src/index.ts";
import { computeLossCurve } from "../reference/curve.ts";
import { directory } from "../reference/directory.ts";
import { Model, trainStep } from "../reference/model.ts";
import { onMesh } from "../reference/world.ts";
import { bundled } from "../../../../vitest.program.ts";

const rankProgram = await bundled(new URL("rank.ts", import.meta.url));
const hostRankProgram = await bundled(new URL("host-rank.ts", import.meta.url));
const steps = 10;

test("a run that is restarted after a rank is killed has the losses of an uninterrupted one, bit for bit", async () => {
  const [undisturbedLosses] = await onMesh({ sp: 2 }, async (ctx) => {
    using model = new Model(ctx);
    using optimizer = new AdamW(model, { lr: 2e-2 });
    const losses: number[] = [];
    while (optimizer.steps < steps) losses.push(await trainStep(ctx, { model, optimizer }));
    return losses;
  });
  const temporaryDirectory = directory();
  const reportedLines: string[] = [];
  const { outcome, attempts } = await launch({
    entry: rankProgram,
    args: [temporaryDirectory, String(steps), "7"],
    nprocPerNode: 2,
    maxRestarts: 1,
    restartBackoffMs: 1,
    onEvent: (event) => event.type === "line" && reportedLines.push(event.text),
  });
  expect({ outcome, attempts }, reportedLines.join("\n")).toEqual({ outcome: "succeeded", attempts: 2 });
  expect(JSON.parse(readFileSync(join(temporaryDirectory, "losses.json"), "utf8"))).toEqual(undisturbedLosses);
});

test.each([
  ["first", 0],
  ["second", 1],
])(
  "if the %s of two hosts is killed before it replaces its checkpoint, both resume from the other's",
  async (_, killedRank) => {
    const root = directory();
    const reported: string[] = [];
    const { outcome, attempts } = await launch({
      entry: hostRankProgram,
      args: [root, String(steps), `n${killedRank}:dies-unpublished:6`],
      nprocPerNode: 2,
      maxRestarts: 1,
      restartBackoffMs: 1,
      onEvent: (event) => event.type === "line" && reported.push(event.text),
    });
    expect({ outcome, attempts }, reported.join("\n")).toEqual({ outcome: "succeeded", attempts: 2 });
    expect(reported).toContain(`attempt 1: {"steps":6,"hosts":["n${1 - killedRank}"]}`);
    const expected = await computeLossCurve([2, steps]);
    for (const host of ["n0", "n1"])
      expect(JSON.parse(readFileSync(join(root, host, "losses.json"), "utf8"))).toEqual(expected);
  },
);
