// Every page, as a phone has it: width, headings, links, requests.

/** The width of a small phone, in CSS pixels. */
export const PHONE = { width: 360, height: 740 };

/** What is wrong with all pages, one sentence each. */
export async function checkPages(browser, { origin, paths }) {
  const context = await browser.newContext({ viewport: PHONE, reducedMotion: "reduce" });
  const page = await context.newPage();
  const faults = [];
  let current = "";
  const fault = (text) => faults.push(`${current}: ${text}`);
  page.on("pageerror", (error) => fault(`throws ${error.message}`));
  page.on("console", (message) => message.type() === "error" && fault(`prints ${message.text()}`));
  page.on("request", (request) => {
    if (!/^data:|^blob:/.test(request.url()) && !request.url().startsWith(origin)) fault(`requests ${request.url()}`);
  });
  const found = new Map();
  for (const path of paths) {
    current = path;
    const response = await page.goto(`${origin}${path}`, { waitUntil: "load" });
    if (response.status() !== 200) fault(`status ${response.status()}`);
    const seen = await page.evaluate(inspectPage);
    found.set(path, seen);
    if (seen.width > PHONE.width) fault(`is ${seen.width} pixels wide on a phone of ${PHONE.width}: ${seen.widest}`);
    for (const text of headingFaults(seen.levels)) fault(text);
    for (const name of seen.unnamed) fault(`a picture without a description: ${name}`);
  }
  await context.close();
  return [...faults, ...linkFaults(found, origin)];
}

/** Runs in the page. */
function inspectPage() {
  const main = document.querySelector("#VPContent");
  const shown = (element) => element.offsetParent !== null;
  const clips = (element) => element !== document.body && getComputedStyle(element).overflowX !== "visible";
  const isClipped = (element) => {
    for (let at = element.parentElement; at; at = at.parentElement) if (clips(at)) return true;
    return false;
  };
  const wide = [...main.querySelectorAll("*")].find(
    (each) => each.getBoundingClientRect().right > innerWidth + 1 && !isClipped(each),
  );
  return {
    width: document.documentElement.scrollWidth,
    widest: wide ? `${wide.tagName} ${wide.textContent.slice(0, 60)}` : "",
    levels: [...main.querySelectorAll("h1,h2,h3,h4,h5,h6")].filter(shown).map((each) => Number(each.tagName[1])),
    unnamed: [...main.querySelectorAll("img:not([alt]),img[alt='']")].map((each) => each.src),
    ids: [...document.querySelectorAll("[id]")].map((each) => each.id),
    links: [...document.querySelectorAll("a[href]")].map((each) => each.href),
  };
}

function headingFaults(levels) {
  const titles = levels.filter((level) => level === 1).length;
  const skips = levels.flatMap((level, i) =>
    i > 0 && level > levels[i - 1] + 1 ? [`${levels[i - 1]} to ${level}`] : [],
  );
  return [
    ...(titles === 1 ? [] : [`has ${titles} headings of the first level`]),
    ...[...new Set(skips)].map((skip) => `headings skip from level ${skip}`),
  ];
}

/** Links of the site to pages or headings that are not there. */
function linkFaults(found, origin) {
  const faults = new Set();
  for (const [path, { links }] of found) {
    for (const link of links) {
      if (!link.startsWith(origin)) continue;
      const { pathname, hash } = new URL(link);
      const to = pathname.endsWith("/") ? `${pathname}index.html` : pathname;
      const target = found.get(to);
      const id = decodeURIComponent(hash.slice(1));
      if (!target) faults.add(`${path}: a link to ${pathname}, which is not there`);
      else if (id !== "" && !target.ids.includes(id))
        faults.add(`${path}: a link to ${pathname}${hash}, whose heading is not there`);
    }
  }
  return [...faults];
}
