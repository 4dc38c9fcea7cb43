// Builds the packages that `npm run demo` needs. GPU kernels take minutes to compile, so they are built only if there
// is a GPU or its emulation.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

const turbo = fileURLToPath(new URL("turbo.mjs", import.meta.url));

function build(...args) {
  const { status } = spawnSync(process.execPath, [turbo, "--quiet", ...args], { stdio: "inherit" });
  if (status !== 0) process.exit(status ?? 1);
}

build("build", "--filter=@mosaic/quickstart");
if (existsSync("/dev/nvidiactl") || process.env.MOSAIC_CUDA_LIBRARY) {
  build("build:native", "--filter=@mosaic/kernels-cuda", "--filter=@mosaic/collectives-nccl");
}
