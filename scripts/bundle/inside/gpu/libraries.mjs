import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";

/**
 * Libraries that are often installed only as Python packages: the variable with the path, and a pattern of the file
 * name.
 */
const REQUIRED_LIBRARIES = [
  { variable: "MOSAIC_NCCL_LIBRARY", pattern: /^libnccl\.so\.2$/ },
  { variable: "MOSAIC_CUBLASLT_LIBRARY", pattern: /^libcublasLt\.so\.1[23]$/ },
];

/**
 * Returns variables with the paths of those libraries that only a Python on the PATH has. Omits libraries that the
 * system has or whose variable is set.
 */
export function findPythonLibraries(env) {
  const missingLibraries = REQUIRED_LIBRARIES.filter(
    ({ variable, pattern }) => !env[variable] && !hasSystemLibrary(pattern),
  );
  const libraryFiles = missingLibraries.length > 0 ? listFilesBelow(pythonDirectories(env)) : [];
  return Object.fromEntries(
    missingLibraries.flatMap(({ variable, pattern }) => {
      const path = libraryFiles.find((file) => pattern.test(file.split("/").at(-1)));
      return path === undefined ? [] : [[variable, path]];
    }),
  );
}

function hasSystemLibrary(pattern) {
  const { stdout } = spawnSync("ldconfig", ["-p"], { encoding: "utf8" });
  return (stdout ?? "").split("\n").some((line) => pattern.test(line.trim().split(" ")[0]));
}

/** Returns the directories in which pip installs NVIDIA's packages. */
function pythonDirectories(env) {
  const { stdout } = spawnSync("python3", ["-c", "import nvidia; print('\\n'.join(nvidia.__path__))"], {
    encoding: "utf8",
    env,
  });
  return (stdout ?? "").split("\n").filter((directory) => directory !== "" && existsSync(directory));
}

function listFilesBelow(directories) {
  return directories.flatMap((directory) =>
    readdirSync(directory, { recursive: true }).map((path) => join(directory, path)),
  );
}
