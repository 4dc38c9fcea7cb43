// Rejects upward, sideways, undeclared and deep imports between packages, and cycles within and among them.
//
//   node scripts/check-imports.mjs [root]
import { existsSync, readFileSync } from "node:fs";
import { builtinModules } from "node:module";
import { dirname, join, relative, resolve, sep } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { findCycles, parseImports } from "./imports.mjs";
import {
  INDEPENDENT_PACKAGES,
  TYPE_CYCLES,
  LAYERS,
  findLayer,
  RE_EXPORTED_PACKAGES,
  PROCESS_DEPENDENCIES,
  SHARED_PROGRAM_DIRECTORY,
} from "./layers.mjs";
import { listFiles, listPackages } from "./workspace.mjs";

const SOURCE_FILE_EXTENSIONS = [".ts", ".tsx", ".mts", ".mjs", ".js"];
const BUILTINS = new Set(builtinModules);

/** Returns a sentence for each fault in the imports below `root`. */
export function checkImports(root) {
  const packages = listPackages(root);
  const rootManifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const workspace = { root, rootManifest, byName: new Map(packages.map((each) => [each.name, each])) };
  return [
    ...packages.flatMap((each) => [...checkPackagePath(each), ...checkManifest(each, workspace)]),
    ...findPackageCycles(packages),
    ...packages.flatMap((each) => checkSources(each, workspace)),
  ];
}

function checkPackagePath({ path, directory, isProgram }) {
  if (isProgram || directory in INDEPENDENT_PACKAGES || findLayer(directory) !== undefined) return [];
  return [`${path} has no layer: add the package to scripts/layers.mjs`];
}

function checkManifest(importer, { byName: packagesByName }) {
  return Object.keys(importer.manifest.dependencies ?? {})
    .filter(
      (name) =>
        packagesByName.has(name) &&
        !PROCESS_DEPENDENCIES[importer.directory]?.includes(packagesByName.get(name).directory),
    )
    .flatMap((name) => findRefusal(importer, packagesByName.get(name)))
    .map((reason) => `${importer.path}/package.json: ${reason}`);
}

/** Returns the reasons why the published code of one package may not use another. Empty if it may. */
function findRefusal(importer, importedPackage) {
  if (importer.isProgram) {
    const isAllowed =
      !importedPackage.isProgram ||
      (importedPackage.directory === SHARED_PROGRAM_DIRECTORY && importer.directory !== SHARED_PROGRAM_DIRECTORY);
    return isAllowed ? [] : [`${importer.name} may not depend on another program, ${importedPackage.name}`];
  }
  if (importedPackage.isProgram) return [`${importer.name} may not depend on the program ${importedPackage.name}`];
  if (importer.directory in INDEPENDENT_PACKAGES) {
    return INDEPENDENT_PACKAGES[importer.directory].includes(importedPackage.directory)
      ? []
      : [`${importer.name} is independent and may not depend on ${importedPackage.name}`];
  }
  if (RE_EXPORTED_PACKAGES[importer.directory]?.includes(importedPackage.directory)) return [];
  if (importedPackage.directory in INDEPENDENT_PACKAGES)
    return [`${importedPackage.name} is for tests and programs; ${importer.name} may have it in devDependencies only`];
  const [importingLayer, importedLayer] = [findLayer(importer.directory), findLayer(importedPackage.directory)];
  if (importingLayer === undefined || importedLayer === undefined || importedLayer < importingLayer) return [];
  return [
    `${importer.name} (layer ${importingLayer}) may not import ${importedPackage.name} (layer ${importedLayer}): expected a package of a lower layer`,
  ];
}

/** Finds cycles of packages. Dev-dependencies count as well, because a build that depends on itself cannot start. */
function findPackageCycles(packages) {
  const names = new Set(packages.map((each) => each.name));
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
  for (const file of listFiles(importer.dir, SOURCE_FILE_EXTENSIONS)) {
    const edges = [];
    for (const { specifier, typeOnly: isTypeOnly } of parseImports(readFileSync(join(importer.dir, file), "utf8"))) {
      const location = `${importer.path}/${file} imports "${specifier}"`;
      const resolution = specifier.startsWith(".")
        ? checkRelativeImport(importer, file, specifier, workspace)
        : checkBareSpecifier(importer, file, specifier, workspace);
      faults.push(...resolution.faults.map((fault) => `${location}: ${fault}`));
      if (resolution.file && !(isTypeOnly && isAllowedTypeCycle(importer, file, resolution.file)))
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

function checkRelativeImport(importer, file, specifier, { root }) {
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

function checkBareSpecifier(importer, file, specifier, { byName: packagesByName, rootManifest }) {
  if (specifier.startsWith("node:")) return { faults: [] };
  if (BUILTINS.has(specifier)) return { faults: [`write "node:${specifier}"`] };
  const name = specifier.split("/", specifier.startsWith("@") ? 2 : 1).join("/");
  if (name === importer.name) return { faults: isSource(file) ? ["a package may not import itself by name"] : [] };
  const importedPackage = packagesByName.get(name);
  const faults = isDeclaredDependency(importer, file, name, rootManifest)
    ? []
    : [describeUndeclaredImport(importer, file, name)];
  if (!importedPackage) return { faults };
  const path = `.${specifier.slice(name.length)}`;
  if (!(path in (importedPackage.manifest.exports ?? { ".": "" })))
    faults.push(`deep import: ${name} does not export "${path}"`);
  if (isSource(file)) faults.push(...findRefusal(importer, importedPackage));
  else if (isInHigherLayer(importer, importedPackage))
    faults.push(`a test may not import ${name}, a package of a higher layer`);
  return { faults };
}

const isSource = (file) => file.startsWith(`src${sep}`);

/**
 * Whether a test imports a package of a higher layer. Packages of the same layer are allowed (a collective needs a
 * device).
 */
function isInHigherLayer(importer, importedPackage) {
  if (importer.isProgram) return false;
  if (importedPackage.isProgram) return true;
  if (importer.directory in INDEPENDENT_PACKAGES || importedPackage.directory in INDEPENDENT_PACKAGES) return false;
  return findLayer(importedPackage.directory) > findLayer(importer.directory);
}

function isDeclaredDependency({ manifest }, file, name, rootManifest) {
  const dependencyMaps = [manifest.dependencies, manifest.peerDependencies, manifest.optionalDependencies];
  if (!isSource(file)) dependencyMaps.push(manifest.devDependencies, rootManifest.devDependencies);
  return dependencyMaps.some((dependencyMap) => dependencyMap && name in dependencyMap);
}

function describeUndeclaredImport({ path }, file, name) {
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
