import { spawnSync } from "node:child_process";
import { chmodSync, copyFileSync, mkdirSync, realpathSync } from "node:fs";
import { join } from "node:path";

/** Libraries that Node.js links and a bare machine may lack. Every machine has its own glibc. */
const LIBRARY_PATTERN = /^\s*(libstdc\+\+\.so\.6|libgcc_s\.so\.1) => (\S+)/gm;

/** Copies this Node.js without symbols, and its C++ libraries for machines without them. */
export function stageRuntime(directory) {
  const [bin, lib] = [join(directory, "runtime/bin"), join(directory, "runtime/lib")];
  for (const directoryPath of [bin, lib]) mkdirSync(directoryPath, { recursive: true });
  const node = join(bin, "node");
  copyFileSync(realpathSync(process.execPath), node);
  chmodSync(node, 0o755);
  // Without strip, the file is a tenth larger.
  spawnSync("strip", [node]);
  const libraries = spawnSync("ldd", [node], { encoding: "utf8" }).stdout ?? "";
  for (const [, name, path] of libraries.matchAll(LIBRARY_PATTERN)) copyFileSync(realpathSync(path), join(lib, name));
}
