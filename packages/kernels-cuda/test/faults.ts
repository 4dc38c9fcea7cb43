import { execFile } from "node:child_process";
import { cpSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";

/** A mistake in the kernels: `old` in the file becomes `wrong`, at its `nth` occurrence. */
export interface Fault {
  readonly name: string;
  readonly file: string;
  readonly old: string;
  readonly wrong: string;
  /** From 0, the default. */
  readonly nth?: number;
}

const TILE = "tile.cuh";
const ONLINE = "online.cuh";
const FORWARD = "attend_mma.cuh";
const BACKWARD = "attend_backward_mma.cuh";
const VISIBLE = "visible.h";
const SYNC = "syncBlock();";
const WAIT = "waitCopies<0>();";

/** Of the kinds that are made in such kernels; the first ones are of one kind each. */
export const faults: readonly Fault[] = [
  { name: "fragments swapped", file: TILE, old: "b[0], b[1]);", wrong: "b[0], b[2]);" },
  { name: "no barrier before values are read", file: FORWARD, old: SYNC, wrong: ";", nth: 1 },
  { name: "hidden keys end one late", file: ONLINE, old: "n * 8 + e >= end", wrong: "n * 8 + e > end" },
  {
    name: "backward: one stage for two",
    file: BACKWARD,
    old: "(step & 1) * 2 * kTileBytes<kRows",
    wrong: "0 * kTileBytes<kRows",
  },
  { name: "values not transposed", file: TILE, old: "loadMatrixTransposed(b,", wrong: "loadMatrix(b," },
  { name: "one reader without the permutation", file: TILE, old: "chunk0 + n + (lane >> 4))", wrong: "chunk0 + n)" },
  { name: "no barrier before keys are read", file: FORWARD, old: SYNC, wrong: ";" },
  { name: "no wait for keys", file: FORWARD, old: WAIT, wrong: "" },
  { name: "no wait for values", file: FORWARD, old: WAIT, wrong: "", nth: 1 },
  { name: "wait for all but one", file: FORWARD, old: WAIT, wrong: "waitCopies<1>();", nth: 1 },
  { name: "barrier in one lane", file: FORWARD, old: SYNC, wrong: "if (lane == 0) syncBlock();" },
  { name: "masked a tile late", file: FORWARD, old: "key0 + kKeys > fullEnd", wrong: "key0 > fullEnd" },
  { name: "last tile left out", file: FORWARD, old: "- first + kKeys - 1) / kKeys", wrong: "- first) / kKeys" },
  { name: "sum seeded in four lanes", file: ONLINE, old: "(lane & 3) == 0 ? 1.f : 0.f", wrong: "1.f" },
  { name: "−∞ − −∞", file: ONLINE, old: "now == -infinity() ? 0.f : now", wrong: "now" },
  { name: "wrong head of keys", file: FORWARD, old: "at.head / p.group", wrong: "at.head % p.group" },
  { name: "backward: no barrier, by keys", file: BACKWARD, old: SYNC, wrong: ";" },
  { name: "backward: no barrier, by queries", file: BACKWARD, old: SYNC, wrong: ";", nth: 1 },
  { name: "backward: no wait, by queries", file: BACKWARD, old: WAIT, wrong: "", nth: 1 },
  {
    name: "backward: hidden rows begin early",
    file: BACKWARD,
    old: "n * 8 + e < begin",
    wrong: "n * 8 + e + 1 < begin",
  },
  { name: "backward: lse in one stage", file: BACKWARD, old: "(step & 1) * 8 * kRows", wrong: "0 * kRows" },
  { name: "first row not beyond", file: VISIBLE, old: "ahead / edge.by) + 1", wrong: "ahead / edge.by)" },
];

const root = fileURLToPath(new URL("..", import.meta.url));
const compiler = process.env.CXX ?? "c++";
const exec = promisify(execFile);
const options = ["-std=c++20", "-O1", "-fPIC", "-march=x86-64-v3", "-Wno-unknown-pragmas"];

/** Compiles what no fault touches, once. */
export async function compileRest(folder: string): Promise<void> {
  const driver = readdirSync(join(root, "native/emulation/driver")).filter((name) => name.endsWith(".cc"));
  const sources = [...driver.map((name) => `emulation/driver/${name}`), "kernels/elementwise.cu", "kernels/rows.cu"];
  for (const [i, source] of sources.entries()) {
    await compile(join(root, "native"), join(root, "native", source), join(folder, `rest${i}.o`));
  }
}

/** What the suite's trial says of kernels with that fault, or without any: "" if it finds nothing wrong. */
export async function verdictOn(fault: Fault | null, folder: string): Promise<string> {
  const native = join(folder, "native");
  cpSync(join(root, "native"), native, { recursive: true });
  if (fault) plant(fault, join(native, "kernels", fault.file));
  const one = join(native, "kernels", "one.cu");
  writeFileSync(one, kernelsOfOneSize);
  await compile(native, one, join(folder, "one.o"));
  const library = join(folder, "libcuda_faulty.so");
  const objects = readdirSync(folder)
    .filter((name) => name.endsWith(".o"))
    .map((name) => join(folder, name));
  await exec(compiler, ["-shared", "-o", library, ...objects, "-lpthread"]);
  const env = { ...process.env, MOSAIC_CUDA_LIBRARY: library };
  const node = ["--input-type=module", "--eval", trial];
  // A process that crashes or hangs has noticed, too.
  const { stdout } = await exec(process.execPath, node, { cwd: root, env, timeout: 60_000 }).catch((error: Error) => {
    return { stdout: error.message };
  });
  return stdout;
}

function plant({ name, file, old, wrong, nth = 0 }: Fault, path: string): void {
  const parts = readFileSync(path, "utf8").split(old);
  if (parts.length < nth + 2) throw new Error(`fault "${name}": ${file} has no ${nth + 1}th "${old}"`);
  const before = parts.slice(0, nth + 1).join(old);
  writeFileSync(path, `${before}${wrong}${parts.slice(nth + 1).join(old)}`);
}

async function compile(native: string, source: string, object: string): Promise<void> {
  const includes = [native, join(native, "emulation"), join(root, "../core/include")].flatMap((path) => ["-I", path]);
  await exec(compiler, [...options, ...includes, "-x", "c++", "-c", source, "-o", object]);
}

/** One dtype and head size, as attend_mma.cu and attend_backward_mma.cu define them. */
const kernelsOfOneSize = `#include "kernels/attend_backward_mma.cuh"
#include "kernels/attend_mma.cuh"
using namespace mosaic::cuda;
void attend_bfloat16_32(const AttendParameters& p) { attendTile<bf16, 32>(p); }
void attendKeys_bfloat16_32(const AttendBackwardParameters& p) { attendKeysTile<bf16, 32>(p); }
void attendQueries_bfloat16_32(const AttendBackwardParameters& p) { attendQueriesTile<bf16, 32>(p); }
EMULATED_KERNEL(attend_bfloat16_32, AttendParameters)
EMULATED_KERNEL(attendKeys_bfloat16_32, AttendBackwardParameters)
EMULATED_KERNEL(attendQueries_bfloat16_32, AttendBackwardParameters)
`;

/** Two spans of keys, so that the state is carried; rows that see nothing, steps, and ends within tiles. */
const trial = `
import { answerOf, attendLocally, checkClose, magnitude } from "@mosaic/conformance";
import { cuda } from ${JSON.stringify(join(root, "dist/index.js"))};
const slices = [
  { q0: 0, q1: 100, k0: 3, k1: 90, type: 1 },
  { q0: 30, q1: 200, k0: 90, k1: 225, type: 1 },
  { q0: 210, q1: 225, k0: 10, k1: 100, type: 2 },
];
const visible = ({ q0, q1, k0, k1, type }, q, k) =>
  q >= q0 && q < q1 && k >= k0 + (type & 2 ? q - q0 : 0) && k < k1 - (type & 1 ? q1 - 1 - q : 0);
const trial = {
  name: "", mesh: {}, axes: [], batch: 1, heads: 4, kvHeads: 2, headDim: 24, dtype: "bfloat16", scale: 0.2,
  mask: slices, sees: (q, k) => slices.some((slice) => visible(slice, q, k)),
  queries: { length: 230 }, keys: { length: 230 }, seed: 1,
};
try {
  const device = cuda();
  const found = await attendLocally(device, trial);
  const expected = answerOf(trial);
  for (const name of ["out", "lse", "dq", "dk", "dv"]) {
    checkClose(found[name], expected[name], 2 ** -6 * (1 + magnitude(expected[name])), name);
  }
} catch (error) {
  process.stdout.write(error.message.slice(0, 200));
}
process.exit();
`;
