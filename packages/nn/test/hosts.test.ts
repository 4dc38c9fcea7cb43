// Training on several hosts, which are network namespaces created by `npm run test:hosts`. Each host has its own
// directory, and ranks communicate only over UCX.
import { spawn } from "node:child_process";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { bundled } from "../../../vitest.program.ts";
import { directory } from "./reference/directory.ts";
import { computeLossCurve } from "./reference/curve.ts";

const hostProgram = await bundled(new URL("process/host-rank.ts", import.meta.url));
const launcher = fileURLToPath(new URL("../../launcher/dist/cli.js", import.meta.url));
/** Number of ranks on the hosts n0, n1 and n2. */
const ranksByHost = [2, 1, 1] as const;
const steps = 10;

interface Node {
  readonly output: () => string;
  readonly exited: Promise<number | null>;
}

/** Starts the launcher of a host, which continues with two of the three hosts. */
function launchOn(host: number, root: string, faults: readonly string[]): Node {
  const token = join(root, "token");
  writeFileSync(token, "0123456789abcdef0123456789abcdef", { mode: 0o600 });
  const options = [
    ...[
      "-N",
      "2:3",
      "--node-rank",
      String(host),
      "--rdzv-endpoint",
      "10.77.0.10:29400",
      "-n",
      String(ranksByHost[host]),
    ],
    ...["--last-call", "2s", "--max-restarts", "1", "--restart-backoff", "1ms"],
  ];
  const command = [
    "netns",
    "exec",
    `n${host}`,
    process.execPath,
    launcher,
    ...options,
    hostProgram,
    root,
    String(steps),
  ];
  const child = spawn("ip", [...command, ...faults], {
    env: { ...process.env, MOSAIC_TOKEN_FILE: token, MOSAIC_HOST: `n${host}`, MOSAIC_TEST_NETWORK: "10.77.0.0/24" },
  });
  let text = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk: Buffer) => (text += String(chunk)));
  return { output: () => text, exited: new Promise((resolve) => child.on("close", resolve)) };
}

interface Job {
  readonly nodes: readonly Node[];
  readonly root: string;
}

function launch(...faults: readonly string[]): Job {
  const root = directory();
  for (const host of ranksByHost.keys()) mkdirSync(join(root, `n${host}`));
  return { root, nodes: [...ranksByHost.keys()].map((host) => launchOn(host, root, faults)) };
}

/**
 * Expects that n0 and n2 complete the training on three ranks, with the losses of an uninterrupted run on the same
 * meshes.
 */
async function expectCurve(
  { nodes, root }: Job,
  expectedResume: { steps: number; hosts: readonly string[] },
): Promise<void> {
  const exitCodes = await Promise.all([nodes[0]!.exited, nodes[2]!.exited]);
  const output = nodes.map((node, host) => `n${host}:\n${node.output()}`).join("\n");
  expect(exitCodes, output).toEqual([0, 0]);
  const expectedLine = JSON.stringify({ steps: expectedResume.steps, hosts: expectedResume.hosts });
  for (const host of [0, 2]) expect(nodes[host]!.output()).toContain(`attempt 1: ${expectedLine}`);
  const losses = (host: string) => JSON.parse(readFileSync(join(root, host, "losses.json"), "utf8")) as number[];
  const expected = await computeLossCurve([4, expectedResume.steps], [3, steps]);
  expect(losses("n0")).toEqual(expected);
  expect(losses("n2")).toEqual(expected);
  // Another mesh sums in another order.
  for (const [i, loss] of (await computeLossCurve([1, steps])).entries())
    expect(Math.abs(losses("n0")[i]! / loss - 1)).toBeLessThan(1e-5);
  const readCopy = (host: string) => readFileSync(join(root, host, "training.safetensors"));
  expect(readCopy("n2").equals(readCopy("n0"))).toBe(true);
}

test("after a node is killed during training, the others resume from their own copies", async () => {
  const job = launch("n1:dies:7");
  await expectCurve(job, { steps: 6, hosts: ["n0", "n2"] });
});

test("after a node is killed during a save, another node with an older copy receives the newer one", async () => {
  const job = launch("n1:dies-unpublished:6", "n2:hangs-unpublished:6");
  await expectCurve(job, { steps: 6, hosts: ["n0"] });
});

test("after a node is killed during a save, the first node, with an older copy, receives the newer one", async () => {
  const job = launch("n1:dies-unpublished:6", "n0:hangs-unpublished:6");
  await expectCurve(job, { steps: 6, hosts: ["n2"] });
});

test("a node that loses its network link exits with code 75, and the others resume", async () => {
  const job = launch("n1:hangs:8");
  const [, partitionedNode] = job.nodes;
  await expect.poll(() => partitionedNode!.output(), { timeout: 30_000 }).toContain("hangs");
  execFileSync("ip", ["link", "set", "v1", "down"]);
  try {
    await expectCurve(job, { steps: 6, hosts: ["n0", "n2"] });
    expect(await partitionedNode!.exited).toBe(75);
  } finally {
    execFileSync("ip", ["link", "set", "v1", "up"]);
  }
});
