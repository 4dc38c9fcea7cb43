import { expect, test } from "vitest";
import { checkLinks } from "../check-links.mjs";
import { pack, repository } from "./fixture.mjs";

const core = pack("core", {}, { "src/index.ts": "", "README.md": "[up](../../README.md)" });

test("paths that exist, addresses and code pass", () => {
  const text =
    "[a](docs/a.md#part) [b](https://example.org) [c](#here) `packages/core/src/` `packages/core/*`\n```\n[x](y)\n```";
  expect(checkLinks(repository({ ...core, "README.md": text, "docs/a.md": "[r](../README.md)" }))).toEqual([]);
});

test.each(["[a](docs/b.md)", "`packages/core/src/gone.ts`", "`scripts/gone.mjs`"])("finds %s", (text) => {
  expect(checkLinks(repository({ ...core, "README.md": text }))).toEqual([expect.stringMatching(/^README.md names/)]);
});
