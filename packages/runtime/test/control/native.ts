import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, renameSync, statSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dirname, "../..");
const client = ["agent_client", "agent_delivery", "agent_socket"].map((name) => `native/control/${name}.cc`);
/** `thread` or `address`: what the programs are compiled to check, when it is checked by hand. */
const { MOSAIC_SANITIZE: sanitize } = process.env;
const output = join(root, "build", sanitize === undefined ? "native-test" : `native-test-${sanitize}`);
const folders = ["native/control", "native/test", "include/mosaic"];

/** Compiles a program of native/test, with the real client if it has ranks, unless it is newer than all of these files. */
export function compile(name: "control_frames" | "control_ranks" | "control_swarm"): string {
  const program = join(output, name);
  const files = folders.flatMap((folder) => readdirSync(join(root, folder)).map((file) => join(root, folder, file)));
  const newest = Math.max(...files.map((file) => statSync(file).mtimeMs));
  if (existsSync(program) && statSync(program).mtimeMs > newest) return program;
  mkdirSync(output, { recursive: true });
  const flags = ["-std=c++20", name === "control_swarm" ? "-O2" : "-O0", "-Wall", "-Wextra", "-Werror", "-pthread"];
  if (sanitize !== undefined) flags.push(`-fsanitize=${sanitize}`, "-g");
  const includes = ["native", "native/test", "include"].map((folder) => `-I${join(root, folder)}`);
  const inputs = [`native/test/${name}.cc`, ...(name === "control_frames" ? [] : client)].map((file) =>
    join(root, file),
  );
  const fresh = `${program}.${process.pid}`;
  execFileSync(process.env.CXX ?? "g++", [...flags, ...includes, ...inputs, "-o", fresh], { stdio: "inherit" });
  renameSync(fresh, program);
  return program;
}
