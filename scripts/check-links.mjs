// Every path that a document names must exist: relative links, and paths in backticks such as `packages/core/src`.
//
//   node scripts/check-links.mjs [root]
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { filesOf, packagesOf } from "./workspace.mjs";

const FOLDERS = ["packages", "apps", "benchmarks", "docs", "scripts"];
const LINK = /\]\(([^)\s]+)\)/g;
const QUOTED = new RegExp(String.raw`\`((?:${FOLDERS.join("|")})/[\w./*-]+)\``, "g");

/** A sentence for each path named by a document below `root` that is not there. */
export function checkLinks(root) {
  const documents = [
    ...readdirSync(root).filter((name) => name.endsWith(".md")),
    ...filesOf(join(root, "docs"), [".md"]).map((path) => `docs/${path}`),
    ...packagesOf(root).flatMap((one) => filesOf(one.dir, [".md"]).map((path) => `${one.path}/${path}`)),
  ];
  return documents.flatMap((path) => missing(root, path, readFileSync(join(root, path), "utf8")));
}

function missing(root, document, text) {
  const prose = text.replace(/^```[\s\S]*?^```/gm, "");
  const links = [...prose.matchAll(LINK)]
    .map((match) => match[1].split("#")[0])
    .filter((link) => link !== "" && !/^[a-z]+:/.test(link))
    .map((link) => ({ link, at: join(root, dirname(document), link) }));
  const quoted = [...prose.matchAll(QUOTED)]
    .map((match) => match[1].replace(/\/?\*.*$/, ""))
    .map((link) => ({ link, at: join(root, link) }));
  return [...links, ...quoted]
    .filter(({ at }) => !existsSync(at))
    .map(({ link }) => `${document} names ${link}, which is not there`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const faults = checkLinks(resolve(process.argv[2] ?? fileURLToPath(new URL("..", import.meta.url))));
  for (const fault of faults) console.error(fault);
  if (faults.length > 0) process.exit(1);
  console.log("links: every path that a document names is there");
}
