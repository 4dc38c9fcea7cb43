import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { fileURLToPath } from "node:url";
import { emulatedDriver } from "./emulated.ts";
import type { Fault } from "./fault-list.ts";

const root = fileURLToPath(new URL("..", import.meta.url));
const compiler = process.env.CXX ?? "c++";
const exec = promisify(execFile);
const targetFlags = ["-fPIC", "-ftls-model=initial-exec", "-march=x86-64-v3"];
const options = ["-std=c++20", "-O1", ...targetFlags, "-Wno-unknown-pragmas", "-Wno-psabi"];
const includeFlags = ["native", "native/emulation", "../runtime/include"].flatMap((path) => ["-I", join(root, path)]);

/**
 * Kernels compiled for one dtype and head size, the capability of the emulated GPU, and the number of keys of the
 * trial.
 */
export interface Family {
  readonly capability: number;
  readonly kernels: string;
  readonly keys: number;
}

/** As defined in attend_mma.cu. */
export const portable: Family = {
  capability: 80,
  keys: 230,
  kernels: `#include "kernels/attend_backward_mma.cuh"
#include "kernels/attend_mma.cuh"
using namespace mosaic::cuda;
void attend_bfloat16_32(const AttendParameters& p) { attendTile<bf16, 32>(p); }
void attendKeys_bfloat16_32(const AttendBackwardParameters& p) { attendKeysTile<bf16, 32>(p); }
void attendQueries_bfloat16_32(const AttendBackwardParameters& p) { attendQueriesTile<bf16, 32>(p); }
EMULATED_KERNEL(attend_bfloat16_32, AttendParameters)
EMULATED_KERNEL(attendKeys_bfloat16_32, AttendBackwardParameters)
EMULATED_KERNEL(attendQueries_bfloat16_32, AttendBackwardParameters)
`,
};

/** As defined in attend_hopper.cu. There are enough keys for stages to be reused. */
export const hopper: Family = {
  capability: 90,
  keys: 705,
  kernels: `#include "kernels/attend_backward_hopper.cuh"
#include "kernels/attend_hopper.cuh"
using namespace mosaic::cuda;
void attendHopper_bfloat16_64(const AttendHopperParameters& p) { attendHopper<bf16, 64>(p); }
void attendKeysHopper_bfloat16_64(const AttendBackwardHopperParameters& p) { attendKeysHopper<bf16, 64>(p); }
void attendQueriesHopper_bfloat16_64(const AttendBackwardHopperParameters& p) { attendQueriesHopper<bf16, 64>(p); }
EMULATED_KERNEL(attendHopper_bfloat16_64, AttendHopperParameters)
EMULATED_KERNEL(attendKeysHopper_bfloat16_64, AttendBackwardHopperParameters)
EMULATED_KERNEL(attendQueriesHopper_bfloat16_64, AttendBackwardHopperParameters)
`,
};

/** Compiles the engine of the emulation once; faults do not affect it. */
export async function compileEngine(directory: string): Promise<void> {
  writeFileSync(join(directory, "engine.h"), '#include "kernels/ptx.cuh"\n#include "kernels/ptx_sm90.cuh"\n');
  await exec(compiler, [...options, ...includeFlags, "-x", "c++-header", join(directory, "engine.h")]);
}

/** Returns the error that the trial reports for kernels with a fault, or without any: "" if there is none. */
export async function testFault(fault: Fault | null, family: Family, directory: string): Promise<string> {
  // The faulty file precedes the correct one in the include path.
  const faultyDirectory = join(directory, "faulty");
  rmSync(faultyDirectory, { recursive: true, force: true });
  mkdirSync(join(faultyDirectory, "kernels"), { recursive: true });
  if (fault) writeFileSync(join(faultyDirectory, "kernels", fault.file), withFault(fault));
  const [source, object, library] = ["one.cu", "one.o", "libcuda_faulty.so"].map((name) => join(directory, name));
  writeFileSync(source!, family.kernels);
  const inputs = ["-include", join(directory, "engine.h"), "-I", faultyDirectory, ...includeFlags];
  await exec(compiler, [...options, ...inputs, "-x", "c++", "-c", source!, "-o", object!]);
  // Kernels of a library loaded later replace those of the same name; everything else is the emulated driver's.
  const linkFlags = ["-Wl,--no-as-needed", emulatedDriver, `-Wl,-rpath,${dirname(emulatedDriver)}`];
  await exec(compiler, ["-shared", "-o", library!, object!, ...linkFlags]);
  const capability = String(family.capability);
  const env = { ...process.env, MOSAIC_CUDA_LIBRARY: library, MOSAIC_EMULATED_CAPABILITY: capability };
  const nodeArgs = ["--input-type=module", "--eval", createTrial(family)];
  // A process that crashes or hangs has detected the fault, too.
  const trialOutput = await exec(process.execPath, nodeArgs, { cwd: root, env, timeout: 60_000 }).catch(
    (error: Error) => {
      return { stdout: error.message, stderr: "" };
    },
  );
  return trialOutput.stdout && (/^emulated GPU: (.*)$/m.exec(trialOutput.stderr)?.[1] ?? trialOutput.stdout);
}

function withFault({ name, file, original: old, replacement: wrong, occurrenceIndex: nth = 0 }: Fault): string {
  const segments = readFileSync(join(root, "native/kernels", file), "utf8").split(old);
  if (segments.length < nth + 2) throw new Error(`fault "${name}": ${file} has no ${nth + 1}th "${old}"`);
  const textBefore = segments.slice(0, nth + 1).join(old);
  return `${textBefore}${wrong}${segments.slice(nth + 1).join(old)}`;
}

/** Covers carried state, parts that share rows, rows without visible keys, steps, and bounds within tiles. */
const createTrial = ({ keys }: Family): string => `
import { getReference, runLocalAttention, checkClose, magnitude } from "@mosaic/conformance";
import { cuda } from ${JSON.stringify(join(root, "dist/index.js"))};
const slices = [
  { q0: 0, q1: 100, k0: 3, k1: 90, type: "causal" },
  { q0: 100, q1: 200, k0: 0, k1: 90, type: "inverseCausal" },
  { q0: 30, q1: 200, k0: 90, k1: ${keys - 5}, type: "causal" },
  { q0: 210, q1: 225, k0: 10, k1: 100, type: "inverseCausal" },
];
const visible = ({ q0, q1, k0, k1, type }, q, k) =>
  q >= q0 && q < q1 && k >= k0 + (type === "inverseCausal" ? q - q0 : 0) && k < k1 - (type === "causal" ? q1 - 1 - q : 0);
const trial = {
  name: "", mesh: {}, axes: [], batch: 1, numHeads: 4, numKvHeads: 2, headDim: 24, dtype: "bfloat16", scale: 0.2,
  mask: slices, maskMod: (q, k) => slices.some((slice) => visible(slice, q, k)),
  queries: { length: 230 }, keys: { length: ${keys} }, seed: 1,
};
try {
  const device = cuda();
  const { kernels } = device;
  const attend = kernels.attend.bind(kernels);
  kernels.attend = (state, q, keys, tile) => {
    const [, ...others] = tile.mask;
    attend(state, q, keys, { ...tile, mask: others });
    attend(state, q, keys, { ...tile, mask: slices.slice(0, 1) });
  };
  const found = await runLocalAttention(device, trial);
  const expected = getReference(trial);
  for (const name of ["out", "lse", "dq", "dk", "dv"]) {
    checkClose(found[name], expected[name], 2 ** -6 * (1 + magnitude(expected[name])), name);
  }
} catch (error) {
  process.stdout.write(error.message.slice(0, 200));
}
process.exit();
`;
