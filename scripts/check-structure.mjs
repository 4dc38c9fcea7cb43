// Limits the size of files, and rejects file and directory names that describe no contents.
//
//   node scripts/check-structure.mjs [root]
import { readFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { listFiles } from "./workspace.mjs";

const SOURCE_FILE_EXTENSIONS = [
  ".ts",
  ".tsx",
  ".mjs",
  ".js",
  ".cc",
  ".cpp",
  ".c",
  ".h",
  ".hpp",
  ".cu",
  ".cuh",
  ".cmake",
];
const FOLDERS = ["packages", "apps", "benchmarks", "docs", "scripts"];
const NATIVE_SOURCE_PATTERN = /\.(cc|cpp|c|h|hpp|cu|cuh)$/;
const MAX_FILE_LINES = 500;
const MAX_COLUMNS = 120;
const MAX_MEDIAN_LINES = 200;
const BANNED_NAME_PATTERN = /^(utils?|common|misc|helpers?)$/i;

/** Returns `{ faults, files, median }` of the sources below `root`. */
export function checkStructure(root) {
  const files = FOLDERS.flatMap((directory) =>
    listFiles(join(root, directory), SOURCE_FILE_EXTENSIONS).map((path) => `${directory}/${path}`),
  );
  const texts = files.map((path) => readFileSync(join(root, path), "utf8").trimEnd().split("\n"));
  const lineCounts = texts.map((lines) => lines.length);
  const medianLines = lineCounts.toSorted((a, b) => a - b)[Math.floor(lineCounts.length / 2)] ?? 0;
  const faults = [
    ...files.flatMap((path, i) =>
      lineCounts[i] > MAX_FILE_LINES
        ? [`${path} has ${lineCounts[i]} lines, the limit is ${MAX_FILE_LINES}: split the file by subject`]
        : [],
    ),
    ...files
      .filter(isBannedName)
      .map((path) => `${path}: the file name is not descriptive; rename the file after its contents`),
  ];
  // The formatter checks the width of TypeScript.
  for (const [i, path] of files.entries()) {
    const wideLineIndex = NATIVE_SOURCE_PATTERN.test(path)
      ? texts[i].findIndex((line) => [...line].length > MAX_COLUMNS)
      : -1;
    if (wideLineIndex < 0) continue;
    const columns = [...texts[i][wideLineIndex]].length;
    faults.push(`${path}:${wideLineIndex + 1} has ${columns} columns, the limit is ${MAX_COLUMNS}`);
  }
  if (medianLines > MAX_MEDIAN_LINES)
    faults.push(`the median file has ${medianLines} lines, the limit is ${MAX_MEDIAN_LINES}`);
  return { faults, files: files.length, median: medianLines };
}

const isBannedName = (path) => path.split("/").some((part) => BANNED_NAME_PATTERN.test(basename(part).split(".")[0]));

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const root = resolve(process.argv[2] ?? fileURLToPath(new URL("..", import.meta.url)));
  const { faults, files, median } = checkStructure(root);
  for (const fault of faults) console.error(fault);
  if (faults.length > 0) process.exit(1);
  console.log(`structure: ${files} files, median ${median} lines, none over ${MAX_FILE_LINES}`);
}
