// Publishes the packages that a dry release has staged without faults, with provenance. Only for the release workflow.
// Versions that the registry already has are skipped, so that the script can be run again.
//
//   npm run release:publish        (after npm run release:dry)
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { spawnSync } from "node:child_process";
import { outputDirectory, run } from "./release/tools.mjs";

const { GITHUB_ACTIONS } = process.env;
if (GITHUB_ACTIONS !== "true")
  throw new Error(
    `release:publish: expected GITHUB_ACTIONS=true, received ${GITHUB_ACTIONS}; run the release workflow`,
  );
const packageListPath = join(outputDirectory, "packages.json");
if (!existsSync(packageListPath))
  throw new Error(`release:publish: expected ${packageListPath}, received none; run npm run release:dry`);

for (const { name, version, directory } of JSON.parse(readFileSync(packageListPath, "utf8"))) {
  if (spawnSync("npm", ["view", `${name}@${version}`, "version"], { encoding: "utf8" }).stdout.trim() === version)
    continue;
  run("npm", ["publish", directory, "--provenance", "--access", "public", "--ignore-scripts"]);
  console.log(`New tag: ${name}@${version}`);
}
