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
    ...findPackageCycles(packages),
    ...packages.flatMap((one) => checkSources(one, workspace)),
  ];
}

function checkPackagePath({ path, directory, isProgram }) {
  if (isProgram || directory in INDEPENDENT || findLayer(directory) !== undefined) return [];
  return [`${path} has no layer: add the package to scripts/layers.mjs`];
}

function checkManifest(importer, { byName }) {
  return Object.keys(importer.manifest.dependencies ?? {})
    .filter((name) => byName.has(name) && !PROCESSES[importer.directory]?.includes(byName.get(name).directory))
    .flatMap((name) => findRefusal(importer, byName.get(name)))
    .map((reason) => `${importer.path}/package.json: ${reason}`);
}

/** Why the published half of `from` may not use `to`; empty when it may. */
function findRefusal(importer, imported) {
  if (importer.isProgram) {
    const isAllowed =
      !imported.isProgram || (imported.directory === SHARED_PROGRAM && importer.directory !== SHARED_PROGRAM);
    return isAllowed ? [] : [`${importer.name} may not depend on another program, ${imported.name}`];
  }
  if (imported.isProgram) return [`${importer.name} may not depend on the program ${imported.name}`];
  if (importer.directory in INDEPENDENT) {
    return INDEPENDENT[importer.directory].includes(imported.directory)
      ? []
      : [`${importer.name} is independent and may not depend on ${imported.name}`];
  }
  if (RE_EXPORTED[importer.directory]?.includes(imported.directory)) return [];
  if (imported.directory in INDEPENDENT)
    return [`${imported.name} is for tests and programs; ${importer.name} may only dev-depend on it`];
  const [importingLayer, importedLayer] = [findLayer(importer.directory), findLayer(imported.directory)];
  if (importingLayer === undefined || importedLayer === undefined || importedLayer < importingLayer) return [];
  return [
    `${importer.name} (layer ${importingLayer}) may not import ${importedLayer === importingLayer ? "sideways" : "upward"}: ${imported.name} (layer ${importedLayer})`,
  ];
}

/** Dev-dependencies count: a build that waits for itself cannot start. */
function findPackageCycles(packages) {
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

function checkSources(importer, workspace) {
  const graph = new Map();
  const faults = [];
  for (const file of listFiles(importer.dir, SOURCE_ENDINGS)) {
    const edges = [];
    for (const { specifier, typeOnly } of parseImports(readFileSync(join(importer.dir, file), "utf8"))) {
      const location = `${importer.path}/${file} imports "${specifier}"`;
      const resolution = specifier.startsWith(".")
        ? checkRelative(importer, file, specifier, workspace)
        : checkBareSpecifier(importer, file, specifier, workspace);
      faults.push(...resolution.faults.map((fault) => `${location}: ${fault}`));
      if (resolution.file && !(typeOnly && isAllowedTypeCycle(importer, file, resolution.file)))
        edges.push(resolution.file);
    }
    graph.set(file, edges);
  }
  const cycles = findCycles(graph).map(
    (path) => `files of ${importer.path} import each other in a cycle: ${path.join(" → ")}`,
  );
  return [...faults, ...cycles];
}

function isAllowedTypeCycle({ directory }, a, b) {
  return (TYPE_CYCLES[directory] ?? []).some((files) => files.includes(a) && files.includes(b));
}

function checkRelative(importer, file, specifier, { root }) {
  const target = resolve(importer.dir, dirname(file), specifier);
  if (target.startsWith(importer.dir + sep)) {
    const pathInPackage = relative(importer.dir, target);
    if (isSource(file) && !isSource(pathInPackage) && pathInPackage !== "package.json") {
      return { faults: [`a source file may import only published files below src/`] };
    }
    return { faults: [], file: pathInPackage };
  }
  const isSharedConfig = dirname(target) === root && !isSource(file);
  return { faults: isSharedConfig ? [] : ["the path is outside the package; import the other package by name"] };
}

function checkBareSpecifier(importer, file, specifier, { byName, rootManifest }) {
  if (specifier.startsWith("node:")) return { faults: [] };
  if (BUILTINS.has(specifier)) return { faults: [`write "node:${specifier}"`] };
  const name = specifier.split("/", specifier.startsWith("@") ? 2 : 1).join("/");
  if (name === importer.name) return { faults: isSource(file) ? ["a package may not import itself by name"] : [] };
  const imported = byName.get(name);
  const faults = isDeclaredDependency(importer, file, name, rootManifest)
    ? []
    : [describeUndeclared(importer, file, name)];
  if (!imported) return { faults };
  const path = `.${specifier.slice(name.length)}`;
  if (!(path in (imported.manifest.exports ?? { ".": "" })))
    faults.push(`deep import: ${name} does not export "${path}"`);
  if (isSource(file)) faults.push(...findRefusal(importer, imported));
  else if (isInParentOf(importer, imported)) faults.push(`a test may not import upward: ${name}`);
  return { faults };
}

const isSource = (file) => file.startsWith(`src${sep}`);

/** Tests may use what stands beside them (a collective needs some device), but nothing above. */
function isInParentOf(importer, imported) {
  if (importer.isProgram) return false;
  if (imported.isProgram) return true;
  if (importer.directory in INDEPENDENT || imported.directory in INDEPENDENT) return false;
  return findLayer(imported.directory) > findLayer(importer.directory);
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
