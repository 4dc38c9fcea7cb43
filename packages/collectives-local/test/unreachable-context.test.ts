import { spawnSync } from "node:child_process";
import { expect, test } from "vitest";

/** Rank 1 posts a receive, and its context becomes unreachable. Then rank 0 sends the message. */
const program = `
  import { fromArray } from "@mosaic/core";
  import { cpu } from "@mosaic/kernels-cpu";
  import { world } from "@mosaic/collectives-local";
  const count = 16 * 2 ** 20; // large, so that freed memory is returned to the system
  async function openRanks() {
    const [rank0, rank1] = await world(2, { device: (rank) => cpu({ threads: 1, index: rank }) });
    rank1.world.sendRecv([{ tensor: fromArray(rank1, new Float32Array(count), [count]), from: 0 }]);
    return rank0;
  }
  const rank0 = await openRanks();
  for (let i = 0; i < 10; i++) {
    await new Promise((resolve) => setTimeout(resolve, 20));
    gc();
  }
  const x = fromArray(rank0, new Float32Array(count).fill(7), [count]);
  rank0.world.sendRecv([{ tensor: x, to: 1 }]).wait();
  console.log((await x.read())[0]);
`;

test("operands of a pending collective stay allocated if their context is unreachable", () => {
  const flags = ["--expose-gc", "--input-type=module", "--eval", program];
  const { stdout, stderr, status, signal } = spawnSync(process.execPath, flags, {
    cwd: import.meta.dirname,
    encoding: "utf8",
  });
  expect({ stdout, stderr, status, signal }).toEqual({ stdout: "7\n", stderr: "", status: 0, signal: null });
});
