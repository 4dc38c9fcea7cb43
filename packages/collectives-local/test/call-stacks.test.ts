import { spawnSync } from "node:child_process";
import { expect, test } from "vitest";

const imports = `import { fromArray, zeros } from "@mosaic/core"; import { cpu } from "@mosaic/kernels-cpu"; import { world } from "@mosaic/collectives-local";`;

/** Runs a program of two ranks, whose first line is line 2. Returns its output. */
function runProgram(body: string, stacks: string | undefined): string {
  const program = `${imports} const [first, second] = await world(2, { device: () => cpu({ threads: 1 }) });\n${body}`;
  const { MOSAIC_STACKS: _, ...env } = process.env;
  const { stderr, status } = spawnSync(process.execPath, ["--input-type=module", "--eval", program], {
    cwd: import.meta.dirname,
    encoding: "utf8",
    env: { ...env, ...(stacks === undefined ? {} : { MOSAIC_STACKS: stacks }) },
  });
  expect(status).toBe(1);
  return stderr;
}

/** Returns the line of the program in the first frame of the program below a text. */
const findLine = (output: string, text: string): number | undefined => {
  const index = output.indexOf(text);
  const line = index < 0 ? undefined : /\[eval1\]:(\d+):\d+/.exec(output.slice(index))?.[1];
  return line === undefined ? undefined : Number(line);
};

const lostRank = `const x = zeros(first, [2]);
function reduceLoss() {
  first.world.allReduce(x).wait();
}
reduceLoss();
void second.close();
await x.read();`;

test("with MOSAIC_STACKS=1, the error of a collective has the line of its call and that of the awaited operation", () => {
  const output = runProgram(lostRank, "1");
  expect(output).toMatch(/PeerLostError: .*rank 0 needed it in allReduce #1 \(world\)/);
  expect(findLine(output, "CallStack: allReduce #1 (world) was called here")).toBe(4);
  expect(output).not.toContain("was called here, on rank");
  expect(output).toMatch(/at reduceLoss \(.*\[eval1\]:4:\d+\)/);
  expect(findLine(output, "CallStack: the awaited operation was called here")).toBe(8);
});

test.each([undefined, "", "0"])("with MOSAIC_STACKS=%o, errors have no stacks of earlier calls", (stacks) => {
  const output = runProgram(lostRank, stacks);
  expect(output).toContain("allReduce #1 (world)");
  expect(output).not.toContain("CallStack");
});

test("a mismatch has the lines of both calls if both ranks are in one process", () => {
  const body = `const [x, y] = [zeros(first, [2]), zeros(second, [3])];
first.world.allReduce(x).wait();
second.world.allReduce(y).wait();
await Promise.all([x.read(), y.read()]);`;
  const output = runProgram(body, "1");
  expect(output).toContain("CollectiveMismatchError");
  const title = "CallStack: allReduce #1 (world) was called here, on rank";
  expect([0, 1].map((rank) => findLine(output, `${title} ${rank}`))).toEqual([3, 4]);
});

test("the error of a kernel has the line of its call", () => {
  const body = `const table = zeros(first, [4, 2]);
const out = first.device.empty([1, 2], "float32");
first.device.kernels.gatherRows(out, table, fromArray(first, [7], [1]));
await out.read();`;
  const output = runProgram(body, "1");
  expect(output).toContain("gatherRows: expected integers from 0 to 3");
  expect(findLine(output, "CallStack: gatherRows was called here")).toBe(4);
});
