// Builds the site: documents and READMEs as pages, the API from the sources' doc comments, into docs/dist.
//
//   node docs/site/build.mjs [--base /mosaic/]
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { build } from "vitepress";
import { writeApi } from "./api.mjs";
import { pagesOf, siteText } from "./pages.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const staged = join(root, "docs/build/site");

/** Writes all pages as VitePress reads them. */
function stage(pages) {
  rmSync(staged, { recursive: true, force: true });
  const bySource = new Map(pages.map(({ source, path }) => [source, path]));
  const pictures = (path) => {
    mkdirSync(join(staged, "public/images"), { recursive: true });
    cpSync(join(root, path), join(staged, "public/images", basename(path)));
    return `images/${basename(path)}`;
  };
  for (const { source, path } of pages) {
    const text = siteText(readFileSync(join(root, source), "utf8"), { source, bySource, pictures });
    write(`${path}.md`, text);
  }
  write("index.md", readFileSync(new URL("home.md", import.meta.url), "utf8"));
}

function write(path, text) {
  mkdirSync(dirname(join(staged, path)), { recursive: true });
  writeFileSync(join(staged, path), text);
}

const { values } = parseArgs({ options: { base: { type: "string", default: "/" } } });
const pages = pagesOf(root);
stage(pages);
const api = await writeApi(root, join(staged, "api"));
cpSync(new URL("theme", import.meta.url), join(staged, ".vitepress/theme"), { recursive: true });
const settings = fileURLToPath(new URL("config.mjs", import.meta.url));
write(
  ".vitepress/config.mjs",
  `import { settingsOf } from ${JSON.stringify(settings)};
export default settingsOf(${JSON.stringify([...pages, ...api])});
`,
);
await build(staged, { base: values.base, outDir: join(root, "docs/dist") });
console.log(`site: ${pages.length} pages, ${api.length} of the API, in docs/dist`);
