// Checks that every path in a document exists: relative links with their anchors, and paths in backticks such as
// `packages/core/src`.
//
//   node scripts/check-links.mjs [root]
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { listFiles, listPackages } from "./workspace.mjs";

const DIRECTORIES = ["packages", "apps", "benchmarks", "docs", "scripts"];
const LINK_PATTERN = /\]\(([^)\s]+)\)/g;
const HEADING_PATTERN = /^#{1,6} +(.+?) *#*$/gm;
const INLINE_CODE_PATH_PATTERN = new RegExp(String.raw`\`((?:${DIRECTORIES.join("|")})/[\w./*-]+)\``, "g");

/** Returns a sentence for each path in a document below `root` that does not exist. */
export function checkLinks(root) {
  const documents = [
    ...readdirSync(root).filter((name) => name.endsWith(".md")),
    ...listFiles(join(root, "docs"), [".md"]).map((path) => `docs/${path}`),
    ...listPackages(root).flatMap((each) => listFiles(each.dir, [".md"]).map((path) => `${each.path}/${path}`)),
  ];
  return documents.flatMap((path) => findMissingFiles(root, path, readFileSync(join(root, path), "utf8")));
}

/** Returns the anchor that GitHub creates for a heading. */
export function createAnchor(heading) {
  return heading
    .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, "$1")
    .trim()
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{M}\p{N}\p{Pc}\- ]/gu, "")
    .replaceAll(" ", "-");
}

/** Returns the anchors of all headings of a Markdown text. Repeated headings get a number as suffix. */
export function listAnchors(text) {
  const anchors = new Set();
  for (const [, heading] of removeCodeBlocks(text).matchAll(HEADING_PATTERN)) {
    const anchor = createAnchor(heading);
    let uniqueAnchor = anchor;
    for (let i = 1; anchors.has(uniqueAnchor); i++) uniqueAnchor = `${anchor}-${i}`;
    anchors.add(uniqueAnchor);
  }
  return anchors;
}

const removeCodeBlocks = (text) => text.replace(/^ *```[\s\S]*?^ *```/gm, "");

/** Returns a sentence for each link to a heading that does not exist. */
function findMissingAnchors(root, document, prose) {
  return [...prose.matchAll(LINK_PATTERN)]
    .map(([, link]) => link)
    .filter((link) => !/^[a-z]+:/.test(link) && link.includes("#"))
    .filter((link) => {
      const [path, anchor] = link.split("#");
      const targetPath = path === "" ? join(root, document) : join(root, dirname(document), path);
      const file =
        existsSync(targetPath) && statSync(targetPath).isDirectory() ? join(targetPath, "README.md") : targetPath;
      return file.endsWith(".md") && existsSync(file) && !listAnchors(readFileSync(file, "utf8")).has(anchor);
    })
    .map((link) => `${document}: link ${link} has no matching heading`);
}

function findMissingFiles(root, document, text) {
  const prose = removeCodeBlocks(text);
  const links = [...prose.matchAll(LINK_PATTERN)]
    .map((match) => match[1].split("#")[0])
    .filter((link) => link !== "" && !/^[a-z]+:/.test(link))
    .map((link) => ({ link, at: join(root, dirname(document), link) }));
  const quotedPaths = [...prose.matchAll(INLINE_CODE_PATH_PATTERN)]
    .map((match) => match[1].replace(/\/?\*.*$/, ""))
    .map((link) => ({ link, at: join(root, link) }));
  const paths = [...links, ...quotedPaths]
    .filter(({ at }) => !existsSync(at))
    .map(({ link }) => `${document}: link target ${link} does not exist`);
  return [...paths, ...findMissingAnchors(root, document, prose)];
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const faults = checkLinks(resolve(process.argv[2] ?? fileURLToPath(new URL("..", import.meta.url))));
  for (const fault of faults) console.error(fault);
  if (faults.length > 0) process.exit(1);
  console.log("links: all linked paths and anchors exist");
}
