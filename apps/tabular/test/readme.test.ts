import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";

/** Functions of scripts/doc-examples.mjs, which runs the packages' examples, that are used here. */
interface Examples {
  parseBlocks(markdown: string): { readonly code: string }[];
  instrument(code: string): string;
}

const resolvePath = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

it("runs the README's example", async () => {
  const { parseBlocks, instrument } = (await import(resolvePath("../../../scripts/doc-examples.mjs"))) as Examples;
  const blocks = parseBlocks(readFileSync(resolvePath("../README.md"), "utf8"));
  expect(blocks).toHaveLength(1);
  const code = instrument(blocks[0]!.code);
  expect(code).toContain("__value(");
  const path = resolvePath("../build/readme-example.ts");
  mkdirSync(resolvePath("../build"), { recursive: true });
  const importLine = `import { expectValue as __value } from ${JSON.stringify(resolvePath("../../../scripts/example-value.ts"))};\n`;
  writeFileSync(path, importLine + code.replace('"@mosaic/tabular"', '"../src/index.ts"'));
  await import(path);
});
