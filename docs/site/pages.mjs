// Which documents of the repository are pages of the site, where, and under which heading of the sidebar.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, posix } from "node:path";
import { listFiles, listPackages } from "../../scripts/workspace.mjs";

/** The sidebar, by section: documents of `docs` by name, others by path. */
const SECTIONS = [
  ["Begin", ["start", "../README.md", "coming-from"]],
  [
    "Use",
    ["backends", "masks", "placements", "training", "weights", "decoding", "clusters", "gpu", "arm", "troubleshooting"],
  ],
  ["Understand", ["how-it-works", "algorithms", "ordering", "performance", "glossary"]],
  ["Extend", ["own-backend", "own-transport", "own-device", "transports", "control-plane", "../CONTRIBUTING.md"]],
];

const PACKAGES_FIRST = ["attention", "core", "nn", "launcher", "planner", "strategies"];

/** Every page: `{ source, path, title, section }`; `source` from the root of the repository, `path` on the site, without ending. */
export function pagesOf(root) {
  const page = (source, path, section) => ({ source, path, section, title: titleOf(root, source) });
  const pages = [
    ...SECTIONS.flatMap(([section, names]) => names.map((name) => page(...placeOf(name), section))),
    ...packagePages(root).map(({ source, path }) => page(source, path, "Packages")),
    ...listFiles(join(root, "docs/decisions"), [".md"]).map((name) =>
      page(`docs/decisions/${name}`, `decisions/${name === "README.md" ? "index" : name.slice(0, -3)}`, "Decisions"),
    ),
    ...listFiles(join(root, "benchmarks/results"), [".md"]).map((name) =>
      page(`benchmarks/results/${name}`, `benchmarks/${name.slice(0, -3)}`, "Results"),
    ),
  ];
  return pages.filter(({ source }) => existsSync(join(root, source)));
}

function placeOf(name) {
  if (!name.startsWith("../")) return [`docs/${name}.md`, name];
  return [name.slice(3), name === "../README.md" ? "overview" : "contributing"];
}

function packagePages(root) {
  const rank = ({ path }) => {
    const place = PACKAGES_FIRST.indexOf(path.split("/").at(-1));
    return place < 0 ? PACKAGES_FIRST.length : place;
  };
  return listPackages(root)
    .map(({ path }) => ({ source: `${path}/README.md`, path: path === "benchmarks" ? "benchmarks/index" : path }))
    .filter(({ source }) => existsSync(join(root, source)))
    .toSorted((a, b) => Number(a.path.startsWith("apps/")) - Number(b.path.startsWith("apps/")) || rank(a) - rank(b));
}

function titleOf(root, source) {
  if (source === "README.md") return "Overview";
  const path = join(root, source);
  const heading = existsSync(path) ? /^# (.+)$/m.exec(readFileSync(path, "utf8")) : undefined;
  return (heading?.[1] ?? source).replaceAll("`", "").split(": ")[0];
}

/** Documents of `docs` that no section has: a page nobody finds. */
export function unlistedDocuments(root) {
  const listed = new Set(pagesOf(root).map(({ source }) => source));
  return readdirSync(join(root, "docs"))
    .filter((name) => name.endsWith(".md") && !listed.has(`docs/${name}`))
    .map((name) => `docs/${name}`);
}

/** A Markdown text as the site has it: links lead to pages, pictures to `pictures`, and links to sources become text. */
export function siteText(text, { source, bySource, pictures }) {
  return outsideFences(text, (prose) =>
    prose
      .replace(/^<!-- \/?options.*-->$/gm, "")
      .replace(/(!?)\[((?:[^[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)/g, (whole, picture, label, target) => {
        if (/^([a-z]+:|#)/.test(target)) return whole;
        const [file, hash] = target.split("#");
        const path = posix.join(posix.dirname(source), file).replace(/\/$/, "");
        if (picture) return `![${label}](/${pictures(path)})`;
        const found = bySource.get(path) ?? bySource.get(posix.join(path, "README.md"));
        return found ? `[${label}](/${found}.md${hash ? `#${hash}` : ""})` : label;
      }),
  );
}

/** Changes what stands between fenced blocks of code. */
function outsideFences(text, change) {
  const parts = text.split(/(^[ \t]*```[^\n]*\n[\s\S]*?^[ \t]*```[ \t]*$)/m);
  return parts.map((part, i) => (i % 2 === 1 ? part.replace(UNHIGHLIGHTED, "$1txt") : change(part))).join("");
}

/** Languages of code blocks that the highlighter does not have. */
const UNHIGHLIGHTED = /^([ \t]*```)(?:frame|nft)\b/;
