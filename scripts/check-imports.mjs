// Rejects upward, sideways, undeclared and deep imports between packages, and cycles within and among them.
//
//   node scripts/check-imports.mjs [root]
import { existsSync, readFileSync } from "node:fs";
import { builtinModules } from "node:module";
import { dirname, join, relative, resolve, sep } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { findCycles, parseImports } from "./imports.mjs";
import { INDEPENDENT, TYPE_CYCLES, LAYERS, findLayer, RE_EXPORTED, PROCESSES, SHARED_PROGRAM } from "./layers.mjs";
import { listFiles, listPackages } from "./workspace.mjs";

const SOURCE_ENDINGS = [".ts", ".tsx", ".mts", ".mjs", ".js"];
const BUILTINS = new Set(builtinModules);

/** Everything wrong with the imports below `root`, one sentence each; empty when all is well. */
export function checkImports(root) {
  const packages = listPackages(root);
  const rootManifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const workspace = { root, rootManifest, byName: new Map(packages.map((one) => [one.name, one])) };
  return [
    ...packages.flatMap((one) => [...checkPackagePath(one), ...checkManifest(one, workspace)]),
    ...packageCycles(packages),
    ...packages.flatMap((one) => checkSources(one, workspace)),
  ];
}

function checkPackagePath({ path, directory, isProgram }) {
  if (isProgram || directory in INDEPENDENT || findLayer(directory) !== undefined) return [];
  return [`${path} has no layer: add the package to scripts/layers.mjs`];
}

function checkManifest(one, { byName }) {
  return Object.keys(one.manifest.dependencies ?? {})
    .filter((name) => byName.has(name) && !PROCESSES[one.directory]?.includes(byName.get(name).directory))
    .flatMap((name) => findRefusal(one, byName.get(name)))
    .map((reason) => `${one.path}/package.json: ${reason}`);
}

/** Why the published half of `from` may not use `to`; empty when it may. */
function findRefusal(from, to) {
  if (from.isProgram) {
    const isAllowed = !to.isProgram || (to.directory === SHARED_PROGRAM && from.directory !== SHARED_PROGRAM);
    return isAllowed ? [] : [`${from.name} may not depend on another program, ${to.name}`];
  }
  if (to.isProgram) return [`${from.name} may not depend on the program ${to.name}`];
  if (from.directory in INDEPENDENT) {
    return INDEPENDENT[from.directory].includes(to.directory)
      ? []
      : [`${from.name} is independent and may not depend on ${to.name}`];
  }
  if (RE_EXPORTED[from.directory]?.includes(to.directory)) return [];
  if (to.directory in INDEPENDENT)
    return [`${to.name} is for tests and programs; ${from.name} may only dev-depend on it`];
  const [importingLayer, importedLayer] = [findLayer(from.directory), findLayer(to.directory)];
  if (importingLayer === undefined || importedLayer === undefined || importedLayer < importingLayer) return [];
  return [
    `${from.name} (layer ${importingLayer}) may not import ${importedLayer === importingLayer ? "sideways" : "upward"}: ${to.name} (layer ${importedLayer})`,
  ];
}

/** Dev-dependencies count: a build that waits for itself cannot start. */
function packageCycles(packages) {
  const names = new Set(packages.map((one) => one.name));
  const graph = new Map(
    packages.map(({ name, manifest }) => [
      name,
      Object.keys({ ...manifest.dependencies, ...manifest.devDependencies }).filter((dependency) =>
        names.has(dependency),
      ),
    ]),
  );
  return findCycles(graph).map((path) => `packages depend on each other in a cycle: ${path.join(" → ")}`);
}

function checkSources(one, workspace) {
  const graph = new Map();
  const faults = [];
  for (const file of listFiles(one.dir, SOURCE_ENDINGS)) {
    const edges = [];
    for (const { specifier, typeOnly } of parseImports(readFileSync(join(one.dir, file), "utf8"))) {
      const at = `${one.path}/${file} imports "${specifier}"`;
      const found = specifier.startsWith(".")
        ? checkRelative(one, file, specifier, workspace)
        : checkBareSpecifier(one, file, specifier, workspace);
      faults.push(...found.faults.map((fault) => `${at}: ${fault}`));
      if (found.file && !(typeOnly && isAllowedTypeCycle(one, file, found.file))) edges.push(found.file);
    }
    graph.set(file, edges);
  }
  const cycles = findCycles(graph).map(
    (path) => `files of ${one.path} import each other in a cycle: ${path.join(" → ")}`,
  );
  return [...faults, ...cycles];
}

function isAllowedTypeCycle({ directory }, a, b) {
  return (TYPE_CYCLES[directory] ?? []).some((files) => files.includes(a) && files.includes(b));
}

function checkRelative(one, file, specifier, { root }) {
  const target = resolve(one.dir, dirname(file), specifier);
  if (target.startsWith(one.dir + sep)) {
    const pathInPackage = relative(one.dir, target);
    if (isSource(file) && !isSource(pathInPackage) && pathInPackage !== "package.json") {
      return { faults: [`a source file may import only published files below src/`] };
    }
    return { faults: [], file: pathInPackage };
  }
  const isSharedConfig = dirname(target) === root && !isSource(file);
  return { faults: isSharedConfig ? [] : ["the path is outside the package; import the other package by name"] };
}

function checkBareSpecifier(one, file, specifier, { byName, rootManifest }) {
  if (specifier.startsWith("node:")) return { faults: [] };
  if (BUILTINS.has(specifier)) return { faults: [`write "node:${specifier}"`] };
  const name = specifier.split("/", specifier.startsWith("@") ? 2 : 1).join("/");
  if (name === one.name) return { faults: isSource(file) ? ["a package may not import itself by name"] : [] };
  const to = byName.get(name);
  const faults = isDeclaredDependency(one, file, name, rootManifest) ? [] : [describeUndeclared(one, file, name)];
  if (!to) return { faults };
  const path = `.${specifier.slice(name.length)}`;
  if (!(path in (to.manifest.exports ?? { ".": "" }))) faults.push(`deep import: ${name} does not export "${path}"`);
  if (isSource(file)) faults.push(...findRefusal(one, to));
  else if (isInParentOf(one, to)) faults.push(`a test may not import upward: ${name}`);
  return { faults };
}

const isSource = (file) => file.startsWith(`src${sep}`);

/** Tests may use what stands beside them (a collective needs some device), but nothing above. */
function isInParentOf(from, to) {
  if (from.isProgram) return false;
  if (to.isProgram) return true;
  if (from.directory in INDEPENDENT || to.directory in INDEPENDENT) return false;
  return findLayer(to.directory) > findLayer(from.directory);
}

function isDeclaredDependency({ manifest }, file, name, rootManifest) {
  const dependencyMaps = [manifest.dependencies, manifest.peerDependencies, manifest.optionalDependencies];
  if (!isSource(file)) dependencyMaps.push(manifest.devDependencies, rootManifest.devDependencies);
  return dependencyMaps.some((dependencyMap) => dependencyMap && name in dependencyMap);
}

function describeUndeclared({ path }, file, name) {
  const dependencyField = isSource(file) ? "dependencies" : "devDependencies";
  return `undeclared: add "${name}" to the ${dependencyField} of ${path}/package.json`;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const root = resolve(process.argv[2] ?? fileURLToPath(new URL("..", import.meta.url)));
  if (!existsSync(join(root, "package.json"))) throw new Error(`${root} has no package.json`);
  const faults = checkImports(root);
  for (const fault of faults) console.error(fault);
  if (faults.length > 0) process.exit(1);
  console.log(`imports: ${listPackages(root).length} packages in ${LAYERS.length} layers, no errors`);
}
