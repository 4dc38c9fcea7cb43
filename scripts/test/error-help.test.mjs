import { existsSync, readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { MosaicError } from "@mosaic/core";
import { RendezvousError, StoreError, UsageError } from "@mosaic/launcher";
import { expect, it } from "vitest";
import { listAnchors } from "../check-links.mjs";

const root = fileURLToPath(new URL("../../", import.meta.url));
const page = readFileSync(`${root}docs/troubleshooting.md`, "utf8");

const isErrorClass = (value) => typeof value === "function" && value.prototype instanceof Error;

/** Returns every error class that an entry point of a package exports, by name. */
async function listExportedErrors() {
  const errorsByName = new Map();
  for (const directory of readdirSync(`${root}packages`)) {
    const path = `${root}packages/${directory}/package.json`;
    if (!existsSync(path)) continue;
    const { exports } = JSON.parse(readFileSync(path, "utf8"));
    for (const target of Object.values(exports)) {
      if (typeof target !== "object") continue;
      const module = await import(`${root}packages/${directory}/${target.default}`);
      for (const [key, value] of Object.entries(module)) if (isErrorClass(value)) errorsByName.set(key, value);
    }
  }
  return errorsByName;
}

it("docs/troubleshooting.md has a heading for every exported error class, and for no other", async () => {
  const names = new Set((await listExportedErrors()).keys());
  const headings = [...page.matchAll(/^### (\w+Error)$/gm)].map((match) => match[1]);
  expect(names.size).toBeGreaterThan(15);
  expect(new Set(headings)).toEqual(names);
  expect(headings).toHaveLength(names.size);
});

it.each(["core", "launcher"])("the package %s contains the page, without links to pages that it lacks", (name) => {
  const packagePage = readFileSync(`${root}packages/${name}/dist/troubleshooting.md`, "utf8");
  const linkTargets = [...packagePage.matchAll(/\]\(([^)]*)\)/g)].map((match) => match[1]);
  expect(linkTargets.length).toBeGreaterThan(5);
  for (const target of linkTargets) expect(target).toMatch(/^(#|https?:)/);
});

it("errors refer to their heading in `help`, and not in the message", async () => {
  const errors = [...(await listExportedErrors()).values()].filter((each) => each.prototype instanceof MosaicError);
  expect(errors.length).toBeGreaterThan(10);
  const details = { where: "here", expected: "this" };
  const argumentsByName = {
    NonFiniteError: ["here", { step: 1, norms: [] }],
    ParameterMismatchError: [new Map([["weight", [1]]])],
  };
  const errorInstances = [
    new MosaicError(details),
    ...errors.map((each) => new each(...(argumentsByName[each.name] ?? [details]))),
    ...[new UsageError("no"), new RendezvousError("no"), new StoreError("AUTH", "no")],
  ];
  for (const { help, message, name } of errorInstances) {
    const [path, anchor] = help.split("#");
    expect(path).toMatch(/^node_modules\/@mosaic\/(core|launcher)\/dist\/troubleshooting\.md$/);
    expect(listAnchors(readFileSync(root + path, "utf8"))).toContain(anchor);
    expect(anchor).toBe(name.toLowerCase());
    expect(message).not.toContain("docs/");
  }
});
