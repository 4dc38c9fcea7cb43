// Packs every publishable package into build/packages, for installation elsewhere while none is on npm:
//
//   npm run pack
//   npm install <this directory>/build/packages/*.tgz        (in another project)
import { spawnSync } from "node:child_process";
import { mkdirSync, rmSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { listPackages } from "./workspace.mjs";

/**
 * Packs the built packages below `root` into `destination`, which is emptied first. Returns the paths of the archives.
 */
export function packAll(root, destination = join(root, "build/packages")) {
  rmSync(destination, { recursive: true, force: true });
  mkdirSync(destination, { recursive: true });
  const directories = listPackages(root)
    .filter(({ isProgram }) => !isProgram)
    .map(({ path }) => `./${path}`);
  const packArgs = ["pack", "--json", "--ignore-scripts", "--pack-destination", destination, ...directories];
  const { stdout, status, stderr } = spawnSync("npm", packArgs, { cwd: root, encoding: "utf8", maxBuffer: 1 << 28 });
  if (status !== 0) throw new Error(`npm pack failed in ${root}:\n${stderr}`);
  const packResults = JSON.parse(stdout);
  const archives = Array.isArray(packResults) ? packResults : Object.values(packResults);
  return archives.map(({ filename }) => join(destination, filename.replace("@", "").replace("/", "-")));
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const root = resolve(process.argv[2] ?? fileURLToPath(new URL("..", import.meta.url)));
  const archives = packAll(root);
  console.log(`${archives.length} packages in build/packages; to install them in another project:`);
  console.log(`  npm install ${join(root, "build/packages")}/*.tgz`);
}
