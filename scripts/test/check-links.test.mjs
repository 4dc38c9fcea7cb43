import { expect, test } from "vitest";
import { checkLinks } from "../check-links.mjs";
import { describePackage, createRepository } from "./fixture.mjs";

const core = describePackage("core", {}, { "src/index.ts": "", "README.md": "[up](../../README.md)" });

test("existing paths, URLs and code pass", () => {
  const text =
    "[a](docs/a.md#a-part-2-times) [b](https://example.org) [c](#title) `packages/core/src/` `packages/core/*`\n```\n[x](y)\n```\n# Title";
  expect(
    checkLinks(createRepository({ ...core, "README.md": text, "docs/a.md": "# A `part`: 2 times\n[r](../README.md)" })),
  ).toEqual([]);
});

test.each(["[a](docs/b.md)", "`packages/core/src/gone.ts`", "`scripts/gone.mjs`"])(
  "finds the missing target of %s",
  (text) => {
    expect(checkLinks(createRepository({ ...core, "README.md": text }))).toEqual([
      expect.stringMatching(/^README.md: link target .* does not exist/),
    ]);
  },
);

test.each(["[a](#gone)", "[a](docs/a.md#gone)", "[a](docs/a.md#part-2)", "[a](packages/core#gone)"])(
  "finds the missing anchor of %s",
  (text) => {
    const files = { ...core, "README.md": text, "docs/a.md": "# Part\n# Part\n```\n# gone\n```" };
    expect(checkLinks(createRepository(files))).toEqual([
      expect.stringMatching(/^README.md: link .* has no matching heading/),
    ]);
  },
);
