// Writes the tables of options in the READMEs of packages. Names, accepted values and defaults come from a declaration
// (`defineOptions` of core), and the meaning from the comment above each name. A default in a comment must be equal to
// the declared one.
//
//   node scripts/options-tables.mjs [--check]
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { build } from "esbuild";
import { listFiles } from "./workspace.mjs";

const START_MARKER = "<!-- options: node scripts/options-tables.mjs -->";
const END_MARKER = "<!-- /options -->";

/** Returns the comments of options by name, for each declaration of a source. */
function parseComments(source) {
  const declarations = [...source.matchAll(/^(?:export )?const (\w+)(?: = defineOptions\("([^"]+)", \{| = \{)$/gm)];
  return new Map(
    declarations.map(({ 1: constant, index }) => {
      const body = source.slice(index, source.indexOf("\n}", index));
      const comments = [...body.matchAll(/^ {2}\/\*\*([^]*?)\*\/\n {2}"?([\w-]+)"?:/gm)];
      return [
        constant,
        new Map(comments.map(([, text, name]) => [name, text.replaceAll(/\s*\n\s*\*\s?/g, " ").trim()])),
      ];
    }),
  );
}

const formatValue = (value) =>
  Array.isArray(value)
    ? `[${value.map(formatValue).join(", ")}]`
    : typeof value === "string"
      ? `"${value}"`
      : String(value);

/** Returns a table with a row for each option, and the faults of its comments. */
function createTable({ name, fields }, comments) {
  const faults = [];
  const rows = Object.entries(fields).map(([option, { expected, presence, default: declaredDefault }]) => {
    const comment = comments.get(option);
    if (!comment) faults.push(`${name}: ${option} has no comment`);
    const [, meaning, statedDefault = ""] = /^([^]*?)(?:\s*Default:? ([^]*?)\.?)?$/.exec(comment ?? "") ?? [];
    if (presence === "default" && !isSameDefault(statedDefault, declaredDefault)) {
      faults.push(
        `${name}: ${option}: expected the comment to end with "Default ${formatValue(declaredDefault)}.", received "Default ${statedDefault}"`,
      );
    }
    if (presence === "optional" && statedDefault === "")
      faults.push(`${name}: ${option}: the comment has no "Default: …"`);
    const defaultText =
      presence === "required"
        ? "required"
        : presence === "default"
          ? `\`${formatValue(declaredDefault)}\``
          : statedDefault;
    return [`\`${option}\``, expected, defaultText, meaning].map((cell) => cell.replaceAll("|", "\\|")).join(" | ");
  });
  const head = "| option | accepts | default | |\n|---|---|---|---|";
  return { text: `**${name}**\n\n${head}\n${rows.map((row) => `| ${row} |`).join("\n")}\n`, faults };
}

/** Whether a stated default is the declared one. Numbers are compared by value, so "1e-5" and 0.00001 are equal. */
function isSameDefault(statedDefault, declaredDefault) {
  return (
    statedDefault === formatValue(declaredDefault) ||
    (typeof declaredDefault === "number" && statedDefault !== "" && Number(statedDefault) === declaredDefault)
  );
}

/** Returns the declarations that the sources of a package export, with their comments. */
async function parseDeclarations(directory) {
  const sources = listFiles(join(directory, "src"), [".ts"])
    .map((path) => join(directory, "src", path))
    .filter((path) => /^export const \w+ = defineOptions\(/m.test(readFileSync(path, "utf8")));
  if (sources.length === 0) return [];
  mkdirSync(join(directory, "build"), { recursive: true });
  const scratchDirectory = mkdtempSync(join(directory, "build", "options-"));
  try {
    const contents = sources
      .map((path, i) => `export * as m${i} from ${JSON.stringify(`./${relative(directory, path)}`)};`)
      .join("\n");
    const outfile = join(scratchDirectory, "options.mjs");
    const options = {
      bundle: true,
      packages: "external",
      platform: "node",
      format: "esm",
      target: "node20",
      logLevel: "error",
      outfile,
    };
    await build({ ...options, stdin: { contents, resolveDir: directory } });
    const modules = await import(pathToFileURL(outfile).href);
    return sources.map((path, i) => ({
      module: modules[`m${i}`],
      comments: parseComments(readFileSync(path, "utf8")),
    }));
  } finally {
    rmSync(scratchDirectory, { recursive: true });
  }
}

/**
 * Returns a key of an option that is the same in every declaration that contains it. Declarations share options by
 * spreading their fields.
 */
const optionKey = (name, { expected, presence, default: declaredDefault }) =>
  [name, expected, presence, formatValue(declaredDefault)].join(" ");

const isDeclaration = ([, value]) => typeof value?.parse === "function" && typeof value.fields === "object";

/**
 * Adds the comments of a package's options to `knownComments`. Returns the option objects that have several different
 * comments.
 */
function collectComments(declarations, knownComments) {
  const ambiguousFields = new Set();
  for (const { module, comments } of declarations) {
    for (const [constant, { fields }] of Object.entries(module).filter(isDeclaration)) {
      for (const [name, comment] of comments.get(constant) ?? []) {
        if ((knownComments.get(fields[name]) ?? comment) !== comment) ambiguousFields.add(fields[name]);
        knownComments.set(fields[name], comment);
        const key = optionKey(name, fields[name]);
        if (!knownComments.has(key)) knownComments.set(key, comment);
      }
    }
  }
  return ambiguousFields;
}

/**
 * Returns the section of a package's README, and the faults of its declarations. `knownComments` are comments of other
 * packages' options. An option without a comment of its own must not be one of `ambiguousFields`.
 */
function createSection(declarations, knownComments, ambiguousFields = new Set()) {
  const faults = [];
  const tables = declarations.flatMap(({ module, comments }) => {
    const fileComments = new Map([...comments.values()].flatMap((each) => [...each]));
    return Object.entries(module)
      .filter(isDeclaration)
      .map(([constant, declaration]) => {
        const ownComments = comments.get(constant) ?? new Map();
        const getComment = (option) => {
          const field = declaration.fields[option];
          if (!ownComments.has(option) && ambiguousFields.has(field))
            faults.push(`${declaration.name}: ${option} has no comment, and its option object has several`);
          return (
            ownComments.get(option) ??
            knownComments.get(field) ??
            knownComments.get(optionKey(option, field)) ??
            fileComments.get(option)
          );
        };
        return createTable(declaration, { get: getComment });
      });
  });
  return {
    text: tables.map(({ text }) => text).join("\n"),
    faults: [...faults, ...tables.flatMap((table) => table.faults)],
  };
}

/** Writes the tables of all packages, or only compares them. Returns the faults of declarations and READMEs. */
export async function updateTables(root, { isCheck = false } = {}) {
  const faults = [];
  const knownComments = new Map();
  const names = readdirSync(join(root, "packages")).filter((name) => name !== "core");
  // Core is first, because the other packages include its options.
  const packages = ["core", ...names].map((name) => join(root, "packages", name));
  for (const directory of packages) {
    const path = join(directory, "README.md");
    const declarations = await parseDeclarations(directory);
    if (declarations.length === 0) continue;
    const ambiguousFields = collectComments(declarations, knownComments);
    const { text, faults: sectionFaults } = createSection(declarations, knownComments, ambiguousFields);
    faults.push(...sectionFaults.map((fault) => `${relative(root, directory)}: ${fault}`));
    const readme = readFileSync(path, "utf8");
    const [textBefore, textAfterStart] = readme.split(START_MARKER);
    const textAfterSection = textAfterStart?.split(END_MARKER)[1];
    if (textAfterSection === undefined) {
      faults.push(`${relative(root, path)}: expected a section ${START_MARKER} … ${END_MARKER}, found none`);
      continue;
    }
    const updatedReadme = `${textBefore}${START_MARKER}\n\n${text}\n${END_MARKER}${textAfterSection}`;
    if (updatedReadme === readme) continue;
    if (isCheck)
      faults.push(`${relative(root, path)}: the option tables are out of date; run node scripts/options-tables.mjs`);
    else writeFileSync(path, updatedReadme);
  }
  return faults;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const root = fileURLToPath(new URL("..", import.meta.url));
  const faults = await updateTables(root, { isCheck: process.argv.includes("--check") });
  for (const fault of faults) console.error(fault);
  process.exit(faults.length > 0 ? 1 : 0);
}
