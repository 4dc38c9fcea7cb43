// The API reference: TypeDoc over the entry points of every package, a page for each.
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, posix } from "node:path";
import { fileURLToPath } from "node:url";
import { Application } from "typedoc";
import { listAnchors } from "../../scripts/check-links.mjs";
import { listFiles, listPackages } from "../../scripts/workspace.mjs";

const SETTINGS = {
  plugin: [fileURLToPath(import.meta.resolve("typedoc-plugin-markdown"))],
  name: "API",
  readme: "none",
  skipErrorChecking: true,
  excludeInternal: true,
  excludePrivate: true,
  excludeExternals: true,
  disableSources: true,
  validation: false,
  logLevel: "Error",
  router: "module",
  entryFileName: "index",
  hidePageHeader: true,
  hideBreadcrumbs: true,
  useCodeBlocks: true,
  sanitizeComments: true,
  parametersFormat: "table",
  typeAliasPropertiesFormat: "table",
};

/** The entry points of the packages that are published: `{ name, source }`, such as `@mosaic/core/context-parallel`. */
export function entryPointsOf(root) {
  return listPackages(root)
    .filter(({ isProgram }) => !isProgram)
    .flatMap(({ name, dir, manifest }) =>
      Object.entries(manifest.exports ?? {})
        .map(([subpath, target]) => ({ name: name + subpath.slice(1), file: target.types ?? target.default ?? target }))
        .filter(({ file }) => /^\.\/dist\/.*\.(d\.ts|js)$/.test(file))
        .map((entry) => ({ name: entry.name, source: join(dir, sourceOf(entry.file)) })),
    )
    .filter(({ source }) => existsSync(source));
}

const sourceOf = (file) => file.replace("./dist/", "src/").replace(/(\.d\.ts|\.js)$/, ".ts");

/** Writes the pages into `out` and returns them as `pagesOf` does. */
export async function writeApi(root, out) {
  const scratch = join(out, "../../api");
  rmSync(scratch, { recursive: true, force: true });
  mkdirSync(scratch, { recursive: true });
  const app = await Application.bootstrapWithPlugins({
    ...SETTINGS,
    entryPoints: documentedEntries(root).map(({ source }) => source),
    tsconfig: writeCompilerOptions(root, scratch),
    outputs: [{ name: "markdown", path: out }],
  });
  const project = await app.convert();
  if (!project) throw new Error("TypeDoc could not read the sources");
  for (const module of project.children ?? []) {
    module.name = `@mosaic/${module.name.replace(/^@mosaic\//, "").replace("/src", "")}`;
  }
  await app.generateOutputs(project);
  const files = listFiles(out, [".md"]);
  correctAnchors(out, files);
  return files.map((file) => apiPage(out, file));
}

/** TypeDoc numbers some anchors of headings that occur once: those links lead to the heading of that name. */
function correctAnchors(out, files) {
  const anchors = new Map(files.map((file) => [file, listAnchors(readFileSync(join(out, file), "utf8"))]));
  for (const file of files) {
    const text = readFileSync(join(out, file), "utf8");
    const corrected = text.replace(/\]\(([\w@./-]*)#([\w-]+?)(-\d+)\)/g, (link, path, name, number) => {
      const target = anchors.get(path === "" ? file : posix.join(posix.dirname(file), path));
      return target && !target.has(name + number) && target.has(name) ? `](${path}#${name})` : link;
    });
    if (corrected !== text) writeFileSync(join(out, file), corrected);
  }
}

/** The umbrella comes last, and lists what the others have; its subpaths are those packages over again. */
function documentedEntries(root) {
  const entries = entryPointsOf(root).filter(({ name }) => !name.startsWith("@mosaic/attention/"));
  return entries.toSorted((a, b) => Number(a.name === "@mosaic/attention") - Number(b.name === "@mosaic/attention"));
}

function apiPage(out, file) {
  const text = readFileSync(join(out, file), "utf8");
  const title = file === "index.md" ? "All packages" : (/^# (.+)$/m.exec(text)?.[1] ?? file);
  return { source: `api/${file}`, path: `api/${file.slice(0, -3)}`, title, section: "API" };
}

/** Names of packages lead to sources, so that types of one package link to those of another. */
function writeCompilerOptions(root, scratch) {
  const paths = Object.fromEntries(entryPointsOf(root).map(({ name, source }) => [name, [source]]));
  const compilerOptions = { paths, noEmit: true, skipLibCheck: true, composite: false, types: ["node"] };
  const path = join(scratch, "tsconfig.json");
  const base = join(root, "tsconfig.base.json");
  writeFileSync(path, JSON.stringify({ extends: base, compilerOptions, include: [`${root}/packages/*/src`] }));
  return path;
}
