// Checks the built site in a headless Chromium: links and anchors, order of headings, contrast and the rest of WCAG 2.1 A and AA,
// keyboard, width on a phone, light and dark, and that no request leaves the site.
//
//   npm run docs && npm run check:docs -- [--screenshots DIR] [--browser /usr/bin/chromium]     (apt-get install chromium)
import { mkdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { listFiles } from "../../scripts/workspace.mjs";
import { checkAccessibility } from "./browser/accessibility.mjs";
import { checkKeyboard } from "./browser/keyboard.mjs";
import { checkPages } from "./browser/pages.mjs";
import { serve } from "./browser/server.mjs";

/** One page of each kind. */
const KINDS = [
  "index",
  "start",
  "coming-from",
  "backends",
  "how-it-works",
  "troubleshooting",
  "packages/core",
  "decisions/index",
];

const { values } = parseArgs({
  options: { screenshots: { type: "string" }, browser: { type: "string", default: "/usr/bin/chromium" } },
});
const site = join(resolve(dirname(fileURLToPath(import.meta.url)), ".."), "dist");
const paths = listFiles(site, [".html"])
  .map((path) => `/${path}`)
  .filter((path) => path !== "/404.html");
if (paths.length === 0) throw new Error("docs/dist has no pages: npm run docs builds them");
if (values.screenshots) mkdirSync(values.screenshots, { recursive: true });

const { origin, close } = await serve(site);
const browser = await chromium.launch({
  executablePath: values.browser,
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
const samples = [...KINDS.map((name) => `/${name}.html`), "/api/@mosaic/backend-ring.html"];
const steps = {
  pages: () => checkPages(browser, { origin, paths }),
  accessibility: () => checkAccessibility(browser, { origin, paths: samples, pictures: values.screenshots }),
  keyboard: () => checkKeyboard(browser, { origin }),
};
let faults = 0;
for (const [name, check] of Object.entries(steps)) {
  const start = performance.now();
  const found = await check();
  for (const fault of found) console.error(fault);
  console.log(`${name}: ${found.length} faults, ${((performance.now() - start) / 1000).toFixed(1)} s`);
  faults += found.length;
}
await browser.close();
close();
console.log(`site: ${paths.length} pages`);
process.exit(faults === 0 ? 0 : 1);
