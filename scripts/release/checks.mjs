// Checks a package before it is published, in addition to scripts/check-packages.mjs: contents and size of its tarball,
// host requirements of its addons, its license, and the resolution of its types.
import { existsSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { publint } from "publint";
import { formatMessage } from "publint/utils";
import { findPortabilityFaults } from "./elf.mjs";
import { root, run } from "./tools.mjs";

/**
 * Maximum size of each package's tarball in KiB, about a third above its current size, so that growth is a decision.
 */
export const SIZE_BUDGETS_KIB = {
  "@mosaic/attention": 150,
  "@mosaic/backend-flex": 150,
  "@mosaic/backend-mesh2d": 100,
  "@mosaic/backend-ring": 100,
  "@mosaic/backend-ulysses": 100,
  "@mosaic/collectives-local": 250,
  "@mosaic/collectives-nccl": 250,
  "@mosaic/collectives-ucx": 300,
  "@mosaic/conformance": 200,
  "@mosaic/core": 400,
  "@mosaic/create": 50,
  "@mosaic/kernels-cpu": 3100,
  "@mosaic/kernels-cuda": 12_000,
  "@mosaic/launcher": 200,
  "@mosaic/meta-attention": 150,
  "@mosaic/models": 150,
  "@mosaic/nn": 250,
  "@mosaic/planner": 250,
  "@mosaic/runtime": 900,
  "@mosaic/strategies": 200,
};

/** External packages that are allowed as dependencies, at one version, and their licenses: decision 0041. */
export const FOREIGN_LICENSES = { "@huggingface/jinja": "MIT", "@huggingface/tokenizers": "Apache-2.0" };

const INSTALL_SCRIPTS = ["preinstall", "install", "postinstall"];

/** Packs a staged package and returns `{ file, size, unpackedSize, files }`, with sizes in bytes. */
export function packPackage({ directory }, destination) {
  const packResults = JSON.parse(
    run("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", destination], { cwd: directory }),
  );
  const [{ filename, files, unpackedSize }] = Array.isArray(packResults) ? packResults : Object.values(packResults);
  const file = join(destination, filename.replace("@", "").replace("/", "-"));
  return { file, size: statSync(file).size, unpackedSize, files: files.map(({ path }) => path).toSorted() };
}

/** Returns a sentence for each fault of a staged package and its tarball. */
export async function checkPackage(stagedPackage, tarball, { attw, platforms }) {
  return [
    ...findBudgetFaults(stagedPackage.name, tarball.size),
    ...findLicenseFaults(stagedPackage),
    ...findAddonFaults(stagedPackage.directory, tarball.files, platforms),
    ...findManifestFaults(stagedPackage.manifest),
    ...(await findPublintFaults(stagedPackage)),
    ...findTypeFaults(stagedPackage, tarball, attw),
  ].map((fault) => `${stagedPackage.name}: ${fault}`);
}

export function findBudgetFaults(name, size, budgets = SIZE_BUDGETS_KIB) {
  const limit = budgets[name];
  if (limit === undefined) return ["the package has no size budget in scripts/release/checks.mjs"];
  const kib = Math.ceil(size / 1024);
  return kib > limit ? [`the tarball has ${kib} KiB, the budget is ${limit} KiB`] : [];
}

/** Checks that the license is MIT and that its text is included. */
export function findLicenseFaults({ directory, manifest }) {
  const file = join(directory, "LICENSE");
  const isMitLicensed =
    manifest.license === "MIT" && existsSync(file) && readFileSync(file, "utf8").startsWith("MIT License");
  const received = `license ${manifest.license} ${existsSync(file) ? "with" : "without"} a LICENSE file`;
  return isMitLicensed
    ? []
    : [`expected license MIT and a LICENSE file that begins with "MIT License", received ${received}`];
}

/** Checks that there is an addon for each platform, or none at all. */
export function findAddonFaults(directory, files, platforms) {
  const addons = files.filter((path) => path.endsWith(".node"));
  if (addons.length === 0) return [];
  const missingPlatforms = platforms.filter(
    (platform) => !addons.some((path) => path.startsWith(`prebuilds/${platform}/`)),
  );
  const faults = addons.flatMap((path) =>
    findPortabilityFaults(join(directory, path), path.split("/")[1]).map((fault) => `${path}: ${fault}`),
  );
  return [...missingPlatforms.map((platform) => `the addon for ${platform} is missing`), ...faults];
}

/** Checks that there are no install scripts, and no external dependencies except those in `FOREIGN_LICENSES`. */
export function findManifestFaults(manifest, modules = join(root, "node_modules")) {
  const foreignDependencies = Object.entries(manifest.dependencies ?? {}).filter(
    ([name]) => !name.startsWith("@mosaic/"),
  );
  return [
    ...INSTALL_SCRIPTS.filter((hook) => manifest.scripts?.[hook] !== undefined).map(
      (hook) => `install script ${hook} is not allowed`,
    ),
    ...foreignDependencies.flatMap(([name, version]) => findForeignDependencyFaults(name, version, modules)),
  ];
}

/** Returns the faults of an external dependency, by the manifest of its version that is installed here. */
function findForeignDependencyFaults(name, version, modules) {
  if (FOREIGN_LICENSES[name] === undefined) return [`dependency ${name} is not allowed`];
  const installedManifest = JSON.parse(readFileSync(join(modules, name, "package.json"), "utf8"));
  const dependencies = Object.keys(installedManifest.dependencies ?? {});
  const hooks = INSTALL_SCRIPTS.filter((hook) => installedManifest.scripts?.[hook] !== undefined);
  const conditions = [
    [installedManifest.version === version, `the checked version ${installedManifest.version}, received ${version}`],
    [
      installedManifest.license === FOREIGN_LICENSES[name],
      `the license ${FOREIGN_LICENSES[name]}, received ${installedManifest.license}`,
    ],
    [dependencies.length === 0, `a package without dependencies, received ${dependencies.join(", ")}`],
    [hooks.length === 0, `a package without install scripts, received ${hooks.join(", ")}`],
  ];
  return conditions
    .filter(([condition]) => !condition)
    .map(([, expected]) => `dependency ${name}: expected ${expected}`);
}

async function findPublintFaults({ directory, manifest }) {
  const { messages } = await publint({ pkgDir: directory, strict: true, pack: false });
  return messages.map((message) => formatMessage(message, manifest, { color: false }) ?? message.code);
}

/**
 * Checks that the types of every entry point resolve for TypeScript in ES modules. Entry points without types are
 * programs.
 */
function findTypeFaults({ manifest }, { file }, attw) {
  const programs = Object.keys(manifest.exports).filter((entry) => /\.js$/.test(manifest.exports[entry]));
  const excludeOptions = programs.length > 0 ? ["--exclude-entrypoints", ...programs] : [];
  try {
    run(process.execPath, [attw, file, "--profile", "esm-only", "--format", "ascii", "--no-color", ...excludeOptions]);
    return [];
  } catch (error) {
    return [`type resolution (attw): ${error.message}`];
  }
}
