import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";

/** Libraries that often come with Python alone: what names them, and what they are called. */
const WANTED = [
  { variable: "MOSAIC_NCCL_LIBRARY", pattern: /^libnccl\.so\.2$/ },
  { variable: "MOSAIC_CUBLASLT_LIBRARY", pattern: /^libcublasLt\.so\.1[23]$/ },
];

/** Variables for those libraries that only a Python on the PATH has; none where the system has them, or they are named. */
export function librariesOfPython(env) {
  const missing = WANTED.filter(({ variable, pattern }) => !env[variable] && !hasSystem(pattern));
  const found = missing.length > 0 ? filesBelow(pythonDirectories(env)) : [];
  return Object.fromEntries(
    missing.flatMap(({ variable, pattern }) => {
      const path = found.find((each) => pattern.test(each.split("/").at(-1)));
      return path === undefined ? [] : [[variable, path]];
    }),
  );
}

function hasSystem(pattern) {
  const { stdout } = spawnSync("ldconfig", ["-p"], { encoding: "utf8" });
  return (stdout ?? "").split("\n").some((line) => pattern.test(line.trim().split(" ")[0]));
}

/** Where pip puts NVIDIA's packages. */
function pythonDirectories(env) {
  const { stdout } = spawnSync("python3", ["-c", "import nvidia; print('\\n'.join(nvidia.__path__))"], {
    encoding: "utf8",
    env,
  });
  return (stdout ?? "").split("\n").filter((directory) => directory !== "" && existsSync(directory));
}

function filesBelow(directories) {
  return directories.flatMap((directory) =>
    readdirSync(directory, { recursive: true }).map((path) => join(directory, path)),
  );
}
