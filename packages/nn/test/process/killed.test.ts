import { readFileSync } from "node:fs";
import { join } from "node:path";
import { launch } from "@mosaic/launcher";
import { expect, test } from "vitest";
import { AdamW } from "../../src/index.ts";
import { folder } from "../reference/folder.ts";
import { Model, trainStep } from "../reference/model.ts";
import { onMesh } from "../reference/world.ts";
import { bundled } from "../../../../vitest.program.ts";

const entry = await bundled(new URL("rank.ts", import.meta.url));
const steps = 10;

test("a rank is killed, the launcher restarts all, and the loss curve is that of the undisturbed run, bit for bit", async () => {
  const [undisturbed] = await onMesh({ sp: 2 }, async (ctx) => {
    using model = new Model(ctx);
    using optimizer = new AdamW(model, { lr: 2e-2 });
    const losses: number[] = [];
    while (optimizer.steps < steps) losses.push(await trainStep(ctx, { model, optimizer }));
    return losses;
  });
  const home = folder();
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
