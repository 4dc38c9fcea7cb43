import { readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { option } from "@mosaic/core";
import { expect, test } from "vitest";
import { updateTables } from "../options-tables.mjs";
import { describePackage, createRepository } from "./fixture.mjs";

const [START, END] = ["<!-- options: node scripts/options-tables.mjs -->", "<!-- /options -->"];
const README = `# A package\n\n${START}\n${END}\n\nMIT license.\n`;

/**
 * Creates a repository with core, whose source declares no options, and with packages by name, each with one source.
 */
function createPackages(sources, readme = README) {
  const packages = Object.entries(sources).map(([name, text]) =>
    describePackage(name, {}, { "src/index.ts": text, "README.md": readme }),
  );
  const root = createRepository(Object.assign(describePackage("core", {}, { "src/index.ts": "" }), ...packages));
  // Declarations import @mosaic/core.
  symlinkSync(fileURLToPath(new URL("../../node_modules", import.meta.url)), join(root, "node_modules"));
  return root;
}

const formatDeclaration = (fields) =>
  `import { defineOptions, option } from "@mosaic/core";\nexport const dropOptions = defineOptions("drop", {\n${fields}});\n`;

const readReadme = (root, name = "a") => readFileSync(join(root, "packages", name, "README.md"), "utf8");

const everyKind = `
  /** Its own test, and | in a cell. */
  custom: option.custom("an even | odd number", (value): value is number => Number.isInteger(value)),
  /** Of an element to become 0. Default 0.00001. */
  number: option.number({ min: 0, below: 1, default: 1e-5 }),
  /**
   * Over two
   * lines. Default 2.
   */
  integer: option.integer({ min: 1, default: 2 }),
  /** Whether memory is kept. Default false. */
  boolean: option.boolean({ default: false }),
  /** What messages call it. Default: its kind. */
  string: option.string({ optional: true }),
  /** How it combines. Default "sum". */
  oneOf: option.oneOf(["sum", "mean"], { default: "sum" }),
  /** Who is counted. */
  instance: option.instance(Map),
  /** Sizes of heads. Default [64, 128]. */
  array: option.array(option.integer({ min: 1 }), { default: [64, 128] }),
  /** Decay rates. Default [0.9, 0.95]. */
  pair: option.pair(option.number(), { default: [0.9, 0.95] }),
  /** A size, or all. */
  either: option.either(option.integer(), option.oneOf(["all"])),
  /** Null for no limit. Default null. */
  nullable: option.nullable(option.number({ above: 0 }), { default: null }),
  /** Mesh axes by what they stand for. */
  nested: option.nested({ fields: { node: option.string(), gpu: option.string() } }),
  /** Of the parameters. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
  /** What it begins with. */
  tensor: option.tensor(),
  /** Which keys each query sees. Default: all. */
  mask: option.mask({ optional: true }),
  /** How the sequence is cut. Default "contiguous". */
  placement: option.placement({ default: "contiguous" }),
  /** Where the sequence lies. */
  layout: option.layout(),
  /** The ranks. */
  meshShape: option.meshShape(),
  /** Who attends. */
  backend: option.backend(),
  /** A name that must be quoted. */
  "by-place": option.boolean(),
`;

const expectedTable = `**drop**

| option | accepts | default | |
|---|---|---|---|
| \`custom\` | an even \\| odd number | required | Its own test, and \\| in a cell. |
| \`number\` | a number ≥ 0 and < 1 | \`0.00001\` | Of an element to become 0. |
| \`integer\` | an integer ≥ 1 | \`2\` | Over two lines. |
| \`boolean\` | a boolean | \`false\` | Whether memory is kept. |
| \`string\` | a string | its kind | What messages call it. |
| \`oneOf\` | "sum" or "mean" | \`"sum"\` | How it combines. |
| \`instance\` | a Map | required | Who is counted. |
| \`array\` | an array, each element an integer ≥ 1 | \`[64, 128]\` | Sizes of heads. |
| \`pair\` | an array of length 2, each element a finite number | \`[0.9, 0.95]\` | Decay rates. |
| \`either\` | an integer, or "all" | required | A size, or all. |
| \`nullable\` | a number > 0, or null | \`null\` | Null for no limit. |
| \`nested\` | { node, gpu } | required | Mesh axes by what they stand for. |
| \`dtype\` | "float32", "bfloat16" or "float16" | \`"float32"\` | Of the parameters. |
| \`tensor\` | a Tensor | required | What it begins with. |
| \`mask\` | a Mask, such as masks.causal() or masks.documents([3, 5]) | all | Which keys each query sees. |
| \`placement\` | contiguous, zigzag, striped or a Placement | \`"contiguous"\` | How the sequence is cut. |
| \`layout\` | a Layout from layoutOf() | required | Where the sequence lies. |
| \`meshShape\` | axis lengths by name, such as { dp: 2, sp: 4 } | required | The ranks. |
| \`backend\` | an AttentionBackend, such as ring() | required | Who attends. |
| \`by-place\` | a boolean | required | A name that must be quoted. |
`;

test("every kind of option has a row with its accepted values, its default and its comment", async () => {
  const kinds = Object.keys(option).filter((name) => !/^(is|has|accepts|check)[A-Z]/.test(name));
  const declared = [...everyKind.matchAll(/^ {2}\S+: option\.(\w+)\(/gm)].map(([, kind]) => kind);
  expect(new Set(declared)).toEqual(new Set(kinds));
  const root = createPackages({ a: formatDeclaration(everyKind) });
  expect(await updateTables(root)).toEqual([]);
  expect(readReadme(root)).toBe(`# A package\n\n${START}\n\n${expectedTable}\n${END}\n\nMIT license.\n`);
});

test("a README with outdated tables is reported and not changed", async () => {
  const root = createPackages({
    a: formatDeclaration(
      "  /** Whether memory is kept. Default false. */\n  keep: option.boolean({ default: false }),\n",
    ),
  });
  await updateTables(root);
  expect(await updateTables(root, { isCheck: true })).toEqual([]);
  const edited = readReadme(root).replace("memory is kept", "memory is freed");
  writeFileSync(join(root, "packages/a/README.md"), edited);
  expect(await updateTables(root, { isCheck: true })).toEqual([
    "packages/a/README.md: the option tables are out of date; run node scripts/options-tables.mjs",
  ]);
  expect(readReadme(root)).toBe(edited);
});

test("a README without a section for tables is reported", async () => {
  const root = createPackages(
    { a: formatDeclaration("  /** Whether. */\n  keep: option.boolean(),\n") },
    "# A package\n",
  );
  expect(await updateTables(root)).toEqual([`packages/a/README.md: expected a section ${START} … ${END}, found none`]);
  expect(readReadme(root)).toBe("# A package\n");
});

test.each([
  [
    "another default",
    "/** Rows. Default 3. */",
    "option.integer({ default: 2 })",
    'keep: expected the comment to end with "Default 2.", received "Default 3"',
  ],
  [
    "no default",
    "/** Rows. */",
    "option.integer({ default: 2 })",
    'keep: expected the comment to end with "Default 2.", received "Default "',
  ],
  [
    "a default of another type",
    '/** Rows. Default "2". */',
    "option.integer({ default: 2 })",
    'keep: expected the comment to end with "Default 2.", received "Default "2""',
  ],
  [
    "nothing on what stands in for it",
    "/** Rows. */",
    "option.integer({ optional: true })",
    'keep: the comment has no "Default: …"',
  ],
  ["nothing at all", "", "option.integer()", "keep has no comment"],
])("a comment that states %s is reported", async (_, comment, kind, fault) => {
  const root = createPackages({ a: formatDeclaration(`  ${comment}\n  keep: ${kind},\n`) });
  expect(await updateTables(root)).toEqual([`packages/a: drop: ${fault}`]);
});

test("options that are spread from another object have the comments of their declaration", async () => {
  const sharedOption = "  /** Sequences. Default 1. */\n  batch: option.integer({ default: 1 }),\n";
  const taken = formatDeclaration("  ...shared,\n").replace(
    "export",
    `const shared = { batch: option.integer({ default: 1 }) };\nexport`,
  );
  const root = createPackages({ a: formatDeclaration(sharedOption), b: taken });
  expect(await updateTables(root)).toEqual([]);
  expect(readReadme(root, "b")).toContain("| `batch` | an integer | `1` | Sequences. |");
});

test("an option without a comment whose option object has two different comments is reported", async () => {
  const shared = formatDeclaration("  /** Sequences. */\n  batch: option.integer(),\n");
  const declare = (name, text) =>
    `export const ${name}Options = defineOptions("${name}", {\n${text}\n  batch: dropOptions.fields.batch,\n});\n`;
  const unambiguous = createPackages({ a: shared + declare("more", "  /** Rows. */") });
  expect(await updateTables(unambiguous)).toEqual([]);
  const root = createPackages({ a: shared + declare("more", "  /** Rows. */") + declare("most", "") });
  expect(await updateTables(root)).toEqual([
    "packages/a: most: batch has no comment, and its option object has several",
  ]);
});

test("options that are spread from another package have the first of several comments on the same option", async () => {
  const declare = (comment) => formatDeclaration(`  /** ${comment} */\n  batch: option.integer(),\n`);
  const taken = formatDeclaration("  ...shared,\n").replace(
    "export",
    "const shared = { batch: option.integer() };\nexport",
  );
  const root = createPackages({ a: declare("Sequences."), b: declare("Rows."), c: taken });
  expect(await updateTables(root)).toEqual([]);
  expect(readReadme(root, "b")).toContain("| `batch` | an integer | required | Rows. |");
  expect(readReadme(root, "c")).toContain("| `batch` | an integer | required | Sequences. |");
});
