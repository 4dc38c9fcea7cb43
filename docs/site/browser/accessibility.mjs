// What axe-core finds on some pages of each kind, in light and dark, wide and narrow.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { PHONE } from "./pages.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export const DESKTOP = { width: 1440, height: 900 };
const RULES = { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], resultTypes: ["violations"] };

/** Violations of WCAG 2.1 A and AA on these pages, one sentence each. `pictures`: where screenshots go, if anywhere. */
export async function checkAccessibility(browser, { origin, paths, pictures }) {
  const faults = [];
  for (const colorScheme of ["light", "dark"]) {
    for (const [name, viewport] of Object.entries({ desktop: DESKTOP, phone: PHONE })) {
      const context = await browser.newContext({ viewport, colorScheme, reducedMotion: "reduce" });
      const page = await context.newPage();
      for (const path of paths) {
        await page.goto(`${origin}${path}`, { waitUntil: "load" });
        if (pictures) await page.screenshot({ path: `${pictures}/${fileName(path)}-${name}-${colorScheme}.png` });
        const clipped = await page.evaluate(clippedParts);
        faults.push(...clipped.map((text) => `${path}, ${name}, ${colorScheme}: is cut off: ${text}`));
        await page.evaluate(axe);
        const { violations } = await page.evaluate((rules) => globalThis.axe.run(document, rules), RULES);
        faults.push(
          ...violations.flatMap((each) => sentences(each).map((text) => `${path}, ${name}, ${colorScheme}: ${text}`)),
        );
      }
      await context.close();
    }
  }
  return faults;
}

/** Runs in the page: links of the sidebar and the navigation, where they are shown, that do not end within it. */
function clippedParts() {
  const parts = document.querySelectorAll(".VPSidebar .text, .VPNavBar a, .VPNavBar button");
  const isCut = (part) => {
    const { right, width } = part.getBoundingClientRect();
    const within = part.closest(".VPSidebar, .VPNavBar").getBoundingClientRect();
    return width > 0 && within.right > 0 && right > Math.min(within.right, innerWidth) + 1;
  };
  return [...parts].filter(isCut).map((part) => part.textContent.trim().slice(0, 60) || part.className);
}

const fileName = (path) => path.slice(1, -".html".length).replaceAll("/", "-");

const sentences = ({ id, help, nodes }) =>
  nodes.slice(0, 3).map(({ html, any }) => `${id}: ${help}: ${html.slice(0, 160)} ${any[0]?.message ?? ""}`);
