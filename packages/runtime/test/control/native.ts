import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, renameSync, statSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dirname, "../..");
const client = ["agent_client", "agent_delivery", "agent_socket"].map((name) => `native/control/${name}.cc`);
const folders = ["native/control", "native/test", "include/mosaic"];

/** Compiles a program of native/test, with the real client if it has ranks, unless it is newer than all of these files. */
export function compile(name: "control_frames" | "control_ranks"): string {
  const program = join(root, "build/native-test", name);
  const files = folders.flatMap((folder) => readdirSync(join(root, folder)).map((file) => join(root, folder, file)));
  const newest = Math.max(...files.map((file) => statSync(file).mtimeMs));
  if (existsSync(program) && statSync(program).mtimeMs > newest) return program;
  mkdirSync(join(root, "build/native-test"), { recursive: true });
  const flags = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread"];
  const includes = ["native", "native/test", "include"].map((folder) => `-I${join(root, folder)}`);
  const inputs = [`native/test/${name}.cc`, ...(name === "control_frames" ? [] : client)].map((file) =>
    join(root, file),
  );
  const output = `${program}.${process.pid}`;
  execFileSync(process.env.CXX ?? "g++", [...flags, ...includes, ...inputs, "-o", output], { stdio: "inherit" });
  renameSync(output, program);
  return program;
}
