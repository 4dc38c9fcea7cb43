// Compiles transport.cc to build/transport.node. Set CXX to use a different compiler.
import { spawnSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";

const require = createRequire(import.meta.url);
const mosaicIncludeDirectory = join(dirname(require.resolve("@mosaic/runtime/package.json")), "include");
const nodeIncludeDirectory = require("node-api-headers").include_dir;
mkdirSync("build", { recursive: true });
const flags = [
  "-std=c++20",
  "-O2",
  "-shared",
  "-fPIC",
  `-I${mosaicIncludeDirectory}`,
  `-I${nodeIncludeDirectory}`,
  "-DNODE_GYP_MODULE_NAME=transport",
];
const compiler = process.env.CXX ?? "c++";
const { status, error } = spawnSync(compiler, [...flags, "transport.cc", "-o", "build/transport.node"], {
  stdio: "inherit",
});
if (error)
  console.error(`build: expected a C++20 compiler, received ${error.message}; set CXX to a different compiler`);
process.exitCode = status ?? 1;
