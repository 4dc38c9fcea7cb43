import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";

const TOP_LEVEL_FILES = [
  "package.json",
  "tsconfig.base.json",
  "vitest.program.ts",
  "vitest.world.ts",
  "vitest.setup.ts",
  "vitest.config.ts",
  "README.md",
  "LICENSE",
  "docs",
  "scripts",
];

/**
 * Returns the paths of source files that git lists, of the packages and of what they share, except for the reference
 * screenshots of browser tests.
 */
export function listSources(root, packages) {
  const paths = [...TOP_LEVEL_FILES, ...packages.map(({ path }) => path)];
  const gitArguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", ...paths];
  const { status, stdout, stderr } = spawnSync("git", gitArguments, {
    cwd: root,
    encoding: "utf8",
    maxBuffer: 1 << 26,
  });
  if (status !== 0) throw new Error(`git ls-files failed: ${stderr}`);
  // git still lists files whose removal is not committed.
  return [...new Set(stdout.split("\0"))].filter(
    (path) => path !== "" && !path.endsWith(".png") && existsSync(join(root, path)),
  );
}
