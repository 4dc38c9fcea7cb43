// Checks every publishable package as npm would publish it: the contents of the tarball, and that entry points resolve.
//
//   node scripts/check-packages.mjs [root]        (after a build)
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { publint } from "publint";
import { formatMessage } from "publint/utils";
import { listPackages } from "./workspace.mjs";

/** Keywords of every package for npm's search. Each package adds its own. */
const KEYWORDS = ["mosaic", "attention"];
const INSTALL_HOOKS = ["preinstall", "install", "postinstall", "prepare"];

/** Returns a sentence for each fault in the packages below `root` as npm would publish them. */
export async function checkPackages(root) {
  const packages = listPackages(root).filter((each) => !each.isProgram);
  const contents = listContents(root, packages);
  const lockfile = JSON.parse(readFileSync(join(root, "package-lock.json"), "utf8"));
  const faults = [];
  for (const publicPackage of packages) {
    const { messages } = await publint({ pkgDir: publicPackage.dir, strict: true, pack: false });
    const packageFaults = [
      ...findManifestFaults(publicPackage, packages[0].manifest.version),
      ...findLockfileFaults(publicPackage, lockfile),
      ...findContentFaults(publicPackage, contents.get(publicPackage.name)),
      ...findReadmeFaults(publicPackage),
      ...messages.map((message) => formatMessage(message, publicPackage.manifest, { color: false }) ?? message.code),
    ];
    faults.push(...packageFaults.map((fault) => `${publicPackage.name}: ${fault}`));
  }
  return faults;
}

/** Returns the paths in the tarball of each package, by package name. */
function listContents(root, packages) {
  const directories = packages.map(({ path }) => `./${path}`);
  const packArgs = ["pack", "--dry-run", "--json", "--ignore-scripts", ...directories];
  const { stdout, status, stderr } = spawnSync("npm", packArgs, { cwd: root, encoding: "utf8", maxBuffer: 1 << 28 });
  if (status !== 0) throw new Error(`npm pack failed in ${root}:\n${stderr}`);
  const packResults = JSON.parse(stdout);
  const tarballs = Array.isArray(packResults) ? packResults : Object.values(packResults);
  return new Map(tarballs.map(({ name, files }) => [name, files.map((file) => file.path)]));
}

function findManifestFaults({ manifest }, version) {
  const faults = [];
  const expect = (condition, fault) => condition || faults.push(fault);
  expect(manifest.license === "MIT", `expected license MIT, received ${manifest.license}`);
  expect(manifest.type === "module", `expected "type": "module", received ${JSON.stringify(manifest.type)}`);
  const nodeRange = manifest.engines?.node;
  expect(nodeRange === ">=20.19", `expected engines.node ">=20.19", received ${JSON.stringify(nodeRange)}`);
  expect(manifest.description, "the description is missing");
  const words = manifest.keywords ?? [];
  expect(
    KEYWORDS.every((word) => words.includes(word)) && words.length > KEYWORDS.length,
    `expected the keywords ${KEYWORDS.join(" and ")} and package-specific keywords, received ${JSON.stringify(words)}`,
  );
  const duplicate = words.find((word, i) => words.indexOf(word) < i);
  expect(duplicate === undefined, `a keyword is duplicated: "${duplicate}"`);
  expect(
    manifest.version === version,
    `expected version ${version} of the other packages, received ${manifest.version}`,
  );
  // npm 12 does not run the scripts of dependencies, so addons must be prebuilt.
  for (const hook of INSTALL_HOOKS) expect(!manifest.scripts?.[hook], `install script "${hook}" is not allowed`);
  return faults;
}

/** Returns faults of the lockfile. `npm ci` links only the commands that it lists. */
function findLockfileFaults({ path, manifest }, { packages }) {
  const lockedCommands = packages[path]?.bin ?? {};
  const missingCommands = Object.keys(manifest.bin ?? {}).filter((command) => !(command in lockedCommands));
  return missingCommands.map((command) => `package-lock.json lacks the command "${command}": run npm install`);
}

function findContentFaults({ dir, manifest }, files) {
  const pages = (manifest.pages ?? []).map((page) => `dist/${page}`);
  const requiredFiles = ["package.json", "README.md", "LICENSE", "dist/index.js", "dist/index.d.ts", ...pages];
  const faults = requiredFiles.filter((path) => !files.includes(path)).map((path) => `${path} is not in the tarball`);
  if (existsSync(join(dir, "CMakeLists.txt"))) {
    const addon = new RegExp(`^prebuilds/${process.platform}-${process.arch}/.*\\.node$`);
    if (!files.some((path) => addon.test(path))) faults.push("the native addon is not in the tarball");
  }
  const strayFiles = files.filter((path) => /(^|\/)(test|build|build-cmake|node_modules|\.turbo)\//.test(path));
  return [...faults, ...strayFiles.map((path) => `${path} should not be in the tarball`)];
}

/** Returns the packages that the first example of a README imports but that its first `npm install` line lacks. */
function findReadmeFaults({ dir }) {
  const readmePath = join(dir, "README.md");
  if (!existsSync(readmePath)) return [];
  const readme = readFileSync(readmePath, "utf8");
  const installedPackages = /^npm install (.*)$/m.exec(readme)?.[1].split(/\s+/);
  const [, example] = /^```(?:ts|js)\b[^\n]*\n([^]*?)^```/m.exec(readme) ?? [];
  if (installedPackages === undefined || example === undefined) return [];
  const importedPackages = new Set([...example.matchAll(/from "(@mosaic\/[\w-]+)/g)].map(([, name]) => name));
  return [...importedPackages]
    .filter((name) => !installedPackages.includes(name))
    .map((name) => `README.md: the first example imports ${name}, which npm install does not name`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const faults = await checkPackages(resolve(process.argv[2] ?? fileURLToPath(new URL("..", import.meta.url))));
  for (const fault of faults) console.error(fault);
  if (faults.length > 0) process.exit(1);
  console.log("packages: ready to publish");
}
