// Stages packages as they are published: with the versions that changesets give them, and the addons of all platforms.
// Everything is copied, so the work tree does not change.
import { cpSync, existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { listPackages } from "../workspace.mjs";
import { listAddons, prebuildPath } from "./prebuilds.mjs";
import { PLATFORMS } from "./sysroot.mjs";
import { run } from "./tools.mjs";

/** Files that npm publishes with any package, besides its `files`. */
const ALWAYS_PUBLISHED_FILES = ["package.json", "README.md", "LICENSE"];

/**
 * Stages every published package below `directory`. Returns `{ name, version, directory }` of each in an order in which
 * they can be published: dependencies come first.
 */
export function stageAll(root, directory) {
  rmSync(directory, { recursive: true, force: true });
  const manifests = computeNextManifests(root, join(directory, "versions"));
  const stagedPackages = listPackages(root)
    .filter(({ isProgram, manifest }) => !isProgram && !manifest.private)
    .map((each) => stagePackage(root, each, manifests.get(each.name), directory));
  return sortByDependency(stagedPackages);
}

/**
 * Returns the manifests of all packages after `changeset version`, which runs in a copy of the files that it reads and
 * writes.
 */
export function computeNextManifests(root, copy) {
  const paths = ["package.json", ".changeset", ...listPackages(root).map(({ path }) => `${path}/package.json`)];
  for (const path of paths) {
    mkdirSync(dirname(join(copy, path)), { recursive: true });
    cpSync(join(root, path), join(copy, path), { recursive: true });
  }
  const runGit = (...args) =>
    run("git", ["-c", "user.name=release", "-c", "user.email=release@localhost", ...args], { cwd: copy });
  runGit("init", "--quiet");
  runGit("add", "--all");
  runGit("commit", "--quiet", "--no-verify", "--message", "build: prepare the release");
  const program = join(root, "node_modules/@changesets/cli/bin.js");
  run(process.execPath, [program, "version"], { cwd: copy });
  return new Map(
    listPackages(copy).map(({ name, manifest, dir }) => [name, { manifest, changelog: join(dir, "CHANGELOG.md") }]),
  );
}

function stagePackage(root, { dir, path, name }, { manifest, changelog }, directory) {
  const stagePath = join(directory, path);
  mkdirSync(stagePath, { recursive: true });
  const listedFiles = manifest.files.filter((file) => !file.startsWith("prebuilds"));
  for (const file of [...ALWAYS_PUBLISHED_FILES, ...listedFiles]) {
    if (existsSync(join(dir, file))) cpSync(join(dir, file), join(stagePath, file), { recursive: true });
  }
  if (existsSync(changelog)) cpSync(changelog, join(stagePath, "CHANGELOG.md"));
  // Fields that only this repository uses are removed.
  const publishedFields = Object.entries(manifest).filter(
    ([key]) => !["scripts", "devDependencies", "entries"].includes(key),
  );
  const publishedManifest = { ...Object.fromEntries(publishedFields), ...findRepository(path) };
  writeFileSync(join(stagePath, "package.json"), `${JSON.stringify(publishedManifest, null, 2)}\n`);
  for (const addon of listAddons(root).filter((each) => each.dir === dir)) {
    for (const platform of Object.keys(PLATFORMS)) copyAddon(addon, platform, stagePath);
  }
  return { name, version: manifest.version, directory: stagePath, manifest: publishedManifest };
}

/**
 * Returns the `repository` field. Provenance is accepted only for packages that name the repository whose workflow
 * publishes them.
 */
function findRepository(directory) {
  const { GITHUB_SERVER_URL: server, GITHUB_REPOSITORY: name } = process.env;
  return name === undefined ? {} : { repository: { type: "git", url: `git+${server}/${name}.git`, directory } };
}

function copyAddon(addon, platform, packageDirectory) {
  const prebuild = prebuildPath(addon, platform);
  if (!existsSync(prebuild))
    throw new Error(`release: expected ${prebuild}, received none; run node scripts/release/prebuilds.mjs`);
  cpSync(prebuild, join(packageDirectory, "prebuilds", platform, `${addon.target}.node`));
}

function sortByDependency(packages) {
  const sortedPackages = [];
  const visit = (visitedPackage) => {
    if (visitedPackage === undefined || sortedPackages.includes(visitedPackage)) return;
    for (const name of Object.keys(visitedPackage.manifest.dependencies ?? {}))
      visit(packages.find((each) => each.name === name));
    sortedPackages.push(visitedPackage);
  };
  for (const listedPackage of packages) visit(listedPackage);
  return sortedPackages;
}
