import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";

/** What of scripts/doc-examples.mjs, which runs the packages' examples, serves here. */
interface Examples {
  parseBlocks(markdown: string): { readonly code: string }[];
  instrument(code: string): string;
}

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

it("runs the README's example", async () => {
  const { parseBlocks, instrument } = (await import(here("../../../scripts/doc-examples.mjs"))) as Examples;
  const blocks = parseBlocks(readFileSync(here("../README.md"), "utf8"));
  expect(blocks).toHaveLength(1);
  const code = instrument(blocks[0]!.code);
  expect(code).toContain("__value(");
  const path = here("../build/readme-example.ts");
  mkdirSync(here("../build"), { recursive: true });
  const head = `import { expectValue as __value } from ${JSON.stringify(here("../../../scripts/example-value.ts"))};\n`;
  writeFileSync(path, head + code.replace('"@mosaic/tabular"', '"../src/index.ts"'));
  await import(path);
});
