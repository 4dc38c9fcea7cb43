import { spawnSync } from "node:child_process";
import { expect, test } from "vitest";

/** Two ranks in a process that exits by an error while one of them waits for a message that never arrives. */
const program = `
  import { readdirSync, readFileSync } from "node:fs";
  import { fromArray } from "@mosaic/core";
  import { cpu } from "@mosaic/kernels-cpu";
  import { world } from "@mosaic/collectives-local";
  const threads = () => readdirSync("/proc/self/task").map((id) => readFileSync("/proc/self/task/" + id + "/comm", "utf8").trim());
  const communication = () => threads().filter((name) => name === "mosaic-comm").length;
  const [waiting] = await world(2, { device: (rank) => cpu({ threads: 1, index: rank }) });
  waiting.world.sendRecv([{ tensor: fromArray(waiting, [1], [1]), from: 1 }]);
  console.log(communication());
  process.on("exit", () => console.log(communication()));
  throw new TypeError("bad loss");
`;

test("a process that exits with an error ends its communication threads before it releases libraries", () => {
  const flags = ["--input-type=module", "--eval", program];
  const { stdout, stderr, status } = spawnSync(process.execPath, flags, { cwd: import.meta.dirname, encoding: "utf8" });
  expect(stderr).toContain("TypeError: bad loss");
  expect({ stdout, status }).toEqual({ stdout: "2\n0\n", status: 1 });
});
