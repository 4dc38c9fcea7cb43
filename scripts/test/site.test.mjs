import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { pagesOf, siteText, unlistedDocuments } from "../../docs/site/pages.mjs";
import { file, createTable } from "../backend-figures.mjs";
import { PICTURES, picturePath } from "../site-pictures.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));

it("the sidebar of the site has every document of docs, and no path twice", () => {
  expect(unlistedDocuments(root)).toEqual([]);
  const paths = pagesOf(root).map(({ path }) => path);
  expect(new Set(paths).size).toBe(paths.length);
  expect(paths).toEqual(expect.arrayContaining(["start", "troubleshooting", "packages/nn", "decisions/index"]));
});

it("siteText rewrites links to pages and pictures, and replaces links to sources by their text", () => {
  const bySource = new Map([
    ["docs/masks.md", "masks"],
    ["packages/nn/README.md", "packages/nn"],
  ]);
  const changeText = (text) =>
    siteText(text, { source: "docs/start.md", bySource, pictures: (path) => `images/${path.split("/").at(-1)}` });
  expect(changeText("[a\nb](masks.md#c)")).toBe("[a\nb](/masks.md#c)");
  expect(changeText("[`nn`](../packages/nn)")).toBe("[`nn`](/packages/nn.md)");
  expect(changeText("[x](../packages/nn/src/x.ts)")).toBe("x");
  expect(changeText("[a](#b) [c](https://example.org/d)")).toBe("[a](#b) [c](https://example.org/d)");
  expect(changeText("![a](images/a.svg)")).toBe("![a](/images/a.svg)");
  expect(changeText("```ts\n[a](masks.md)\n```\n[a](masks.md)")).toBe("```ts\n[a](masks.md)\n```\n[a](/masks.md)");
});

it.each(Object.entries(PICTURES))("%s equals the picture that the command draws, byte for byte", (name, draw) => {
  expect(readFileSync(picturePath(name), "utf8") === draw()).toBe(true);
});

it("docs/backends.md has the planner's current table of documents (npm run check:docs compares all)", () => {
  expect(readFileSync(file, "utf8")).toContain(createTable("documents"));
}, 180_000);
