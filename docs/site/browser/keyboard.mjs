// The site without a mouse: search, the sidebar, the way to the content.
import { DESKTOP } from "./accessibility.mjs";

/** What cannot be done with a keyboard, one sentence each. */
export async function checkKeyboard(browser, { origin }) {
  const context = await browser.newContext({ viewport: DESKTOP, reducedMotion: "reduce" });
  const page = await context.newPage();
  const faults = [];
  const expect = async (text, holds) => {
    const held = await holds().catch(() => false);
    if (held === false) faults.push(`keyboard: ${text}`);
  };
  await page.goto(`${origin}/start.html`, { waitUntil: "networkidle" });
  await checkSkipLink(page, expect);
  await checkSidebar(page, expect);
  await checkSearch(page, expect);
  await context.close();
  return faults;
}

const focused = (page) =>
  page.evaluate(() => {
    const { tagName, textContent, className } = document.activeElement;
    const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(document.activeElement);
    const visible = (outlineStyle !== "none" && outlineWidth !== "0px") || boxShadow !== "none";
    return { tagName, text: textContent.trim(), className: String(className), visible };
  });

/** Presses Tab until what has the focus fits; undefined if nothing among so many does. */
async function tabTo(page, fits, most = 80) {
  for (let i = 0; i < most; i++) {
    await page.keyboard.press("Tab");
    const at = await focused(page);
    if (fits(at)) return at;
  }
  return undefined;
}

async function checkSkipLink(page, expect) {
  await page.keyboard.press("Tab");
  await expect("the first Tab does not reach the link to the content", async () =>
    /skip to content/i.test((await focused(page)).text),
  );
}

async function checkSidebar(page, expect) {
  const link = await tabTo(page, ({ text }) => text === "Masks");
  await expect("Tab does not reach the sidebar's links", async () => link !== undefined);
  await expect("the focus of a sidebar's link is not visible", async () => link?.visible === true);
  const group = await tabTo(page, ({ text, className }) => /^Packages/.test(text) && /item/.test(className));
  await expect("Tab does not reach a folded group", async () => group !== undefined);
  const linkOfGroup = page.locator(".VPSidebar a", { hasText: "@mosaic/nn" }).first();
  await page.keyboard.press("Enter");
  await expect("Enter does not open a folded group", () => linkOfGroup.waitFor({ state: "visible", timeout: 5000 }));
}

async function checkSearch(page, expect) {
  await page.keyboard.press("Control+k");
  const box = page.locator(".VPLocalSearchBox input");
  await expect("Control+K does not open the search", () => box.waitFor({ state: "visible", timeout: 15_000 }));
  await page.keyboard.type("CollectiveTimeoutError");
  const result = page.locator(".VPLocalSearchBox .result").first();
  await expect("the search finds nothing", () => result.waitFor({ state: "visible", timeout: 15_000 }));
  await page.keyboard.press("Enter");
  await expect("Enter does not open the first result", () => page.waitForURL(/#/, { timeout: 15_000 }));
  await page.keyboard.press("Control+k");
  await box.waitFor({ state: "visible", timeout: 15_000 }).catch(() => undefined);
  await page.keyboard.press("Escape");
  await expect("Escape does not close the search", () => box.waitFor({ state: "detached", timeout: 15_000 }));
}
