// Keeps the code in pieces that a reader can hold: no file too long, no directory of unrelated things.
//
//   node scripts/check-structure.mjs [root]
import { readFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { listFiles } from "./workspace.mjs";

const SOURCES = [".ts", ".tsx", ".mjs", ".js", ".cc", ".cpp", ".c", ".h", ".hpp", ".cu", ".cuh", ".cmake"];
const FOLDERS = ["packages", "apps", "benchmarks", "docs", "scripts"];
const NATIVE_SOURCE = /\.(cc|cpp|c|h|hpp|cu|cuh)$/;
const MAX_LINES = 500;
const MAX_COLUMNS = 120;
const MAX_MEDIAN = 200;
const BANNED = /^(utils?|common|misc|helpers?)$/i;

/** `{ faults, files, median }` of the sources below `root`. */
export function checkStructure(root) {
  const files = FOLDERS.flatMap((directory) =>
    listFiles(join(root, directory), SOURCES).map((path) => `${directory}/${path}`),
  );
  const texts = files.map((path) => readFileSync(join(root, path), "utf8").trimEnd().split("\n"));
  const lengths = texts.map((lines) => lines.length);
  const median = lengths.toSorted((a, b) => a - b)[Math.floor(lengths.length / 2)] ?? 0;
  const faults = [
    ...files.flatMap((path, i) =>
      lengths[i] > MAX_LINES
        ? [`${path} has ${lengths[i]} lines, the limit is ${MAX_LINES}: split the file by subject`]
        : [],
    ),
    ...files
      .filter(isBannedName)
      .map((path) => `${path}: the file name is not descriptive; rename the file after its contents`),
  ];
  // TypeScript is the formatter's business.
  for (const [i, path] of files.entries()) {
    const wideLine = NATIVE_SOURCE.test(path) ? texts[i].findIndex((line) => [...line].length > MAX_COLUMNS) : -1;
    if (wideLine >= 0) faults.push(`${path}:${wideLine + 1} is wider than ${MAX_COLUMNS} columns`);
  }
  if (median > MAX_MEDIAN) faults.push(`the median file has ${median} lines, the limit is ${MAX_MEDIAN}`);
  return { faults, files: files.length, median };
}

const isBannedName = (path) => path.split("/").some((part) => BANNED.test(basename(part).split(".")[0]));

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const root = resolve(process.argv[2] ?? fileURLToPath(new URL("..", import.meta.url)));
  const { faults, files, median } = checkStructure(root);
  for (const fault of faults) console.error(fault);
  if (faults.length > 0) process.exit(1);
  console.log(`structure: ${files} files, median ${median} lines, none over ${MAX_LINES}`);
}
