import { readFileSync } from "node:fs";
import { join } from "node:path";
import { launch } from "@mosaic/launcher";
import { expect, test } from "vitest";
import { AdamW } from "../../src/index.ts";
import { lossCurve } from "../reference/curve.ts";
import { directory } from "../reference/directory.ts";
import { Model, trainStep } from "../reference/model.ts";
import { onMesh } from "../reference/world.ts";
import { bundled } from "../../../../vitest.program.ts";

const entry = await bundled(new URL("rank.ts", import.meta.url));
const hostEntry = await bundled(new URL("host-rank.ts", import.meta.url));
const steps = 10;

test("a rank is killed, the launcher restarts all, and the loss curve is that of the undisturbed run, bit for bit", async () => {
  const [undisturbed] = await onMesh({ sp: 2 }, async (ctx) => {
    using model = new Model(ctx);
    using optimizer = new AdamW(model, { lr: 2e-2 });
    const losses: number[] = [];
    while (optimizer.steps < steps) losses.push(await trainStep(ctx, { model, optimizer }));
    return losses;
  });
  const home = directory();
  const reported: string[] = [];
  const { outcome, attempts } = await launch({
    entry,
    args: [home, String(steps), "7"],
    nprocPerNode: 2,
    maxRestarts: 1,
    restartBackoffMs: 1,
    onEvent: (event) => event.type === "line" && reported.push(event.text),
  });
  expect({ outcome, attempts }, reported.join("\n")).toEqual({ outcome: "succeeded", attempts: 2 });
  expect(JSON.parse(readFileSync(join(home, "losses.json"), "utf8"))).toEqual(undisturbed);
});

test.each([
  ["first", 0],
  ["second", 1],
])(
  "the %s of two hosts is killed when the other has replaced its checkpoint: both resume from that one",
  async (_, killed) => {
    const root = directory();
    const reported: string[] = [];
    const { outcome, attempts } = await launch({
      entry: hostEntry,
      args: [root, String(steps), `n${killed}:dies-unpublished:6`],
      nprocPerNode: 2,
      maxRestarts: 1,
      restartBackoffMs: 1,
      onEvent: (event) => event.type === "line" && reported.push(event.text),
    });
    expect({ outcome, attempts }, reported.join("\n")).toEqual({ outcome: "succeeded", attempts: 2 });
    expect(reported).toContain(`attempt 1: {"steps":6,"hosts":["n${1 - killed}"]}`);
    const expected = await lossCurve([2, steps]);
    for (const host of ["n0", "n1"])
      expect(JSON.parse(readFileSync(join(root, host, "losses.json"), "utf8"))).toEqual(expected);
  },
);
