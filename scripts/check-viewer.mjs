// Tests pages of the planner's viewer in a headless Chromium: no requests, no errors, working keys and tables, smooth
// panning of 200 000 events, and unchanged pictures.
//
//   node scripts/check-viewer.mjs [--update]      (after a build; --update rewrites the pictures)
//
// CHROMIUM is the path of the browser. Default: /usr/bin/chromium.
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { availableParallelism, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const root = fileURLToPath(new URL("..", import.meta.url));
const pictures = join(root, "packages/planner/test/view/pictures");
const directory = mkdtempSync(join(tmpdir(), "mosaic-check-viewer-"));
process.on("exit", () => rmSync(directory, { recursive: true, force: true }));
const isUpdate = process.argv.includes("--update");

/** Maximum share of differing pixels. Other fonts and other versions of the browser move edges. */
const MAX_DIFFERING_PIXEL_SHARE = 0.03;
const MAX_FRAME_MS = 33;
const PAN_DURATION_MS = 5000;

const faults = [];
const expect = (condition, fault) => condition || faults.push(fault);

const files = await writePages();
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--force-color-profile=srgb"] });
try {
  const appearances = [
    ["light", { viewport: { width: 1280, height: 720 }, colorScheme: "light" }],
    ["dark", { viewport: { width: 1280, height: 720 }, colorScheme: "dark" }],
    ["phone", { viewport: { width: 390, height: 844 }, colorScheme: "light", deviceScaleFactor: 2, hasTouch: true }],
  ];
  for (const [name, options] of appearances) {
    await withPage("both", options, (page) => checkPicture(page, name));
  }
  await withPage("both", appearances[0][1], checkKeys);
  await withPage("both", appearances[0][1], checkNames);
  await withPage("traces", appearances[0][1], checkTraces);
  await withPage("large", appearances[0][1], async (page) => {
    await checkPicture(page, "large", false);
    await checkPanning(page);
  });
} finally {
  await browser.close();
}
for (const fault of faults) console.error(fault);
if (faults.length > 0) process.exit(1);
console.log("viewer: no fault");

/**
 * Writes pages of a ring, predicted and measured, of ranks that wrote traces, and of 1 024 ranks with 200 704 events.
 */
async function writePages() {
  const importModule = (path) => import(pathToFileURL(join(root, path)).href);
  const { predict, profiles, viewerHtml, viewerTemplate } = await importModule("packages/planner/dist/index.js");
  const { ring } = await importModule("packages/backend-ring/dist/index.js");
  const { masks } = await importModule("packages/core/dist/index.js");
  const attentionOptions = { tokens: 16_384, numHeads: 8, headDim: 128, mask: masks.causal(), placement: "zigzag" };
  const { simulation, record } = predict(
    { backend: ring(), mesh: { sp: 16 }, ...attentionOptions },
    profiles["h100-ib400"],
  );
  const addTenPercent = (seconds) => seconds * 1.1;
  const measuredTimeline = {
    seconds: addTenPercent(simulation.seconds),
    ranks: simulation.ranks.map(({ rank, at, events }) => ({
      ...{ rank, at },
      events: events.map((event) => ({ ...event, start: addTenPercent(event.start), end: addTenPercent(event.end) })),
    })),
  };
  const options = { title: "A ring of 16", subtitle: "16 384 tokens, causal, zigzag", record, ranksPerNode: 8 };
  const traces = [0, 1].map((rank) => createTrace(rank));
  const scripts = traces.map(
    (trace) => `<script type="application/json" class="trace-data">${JSON.stringify(trace)}</script>`,
  );
  const pages = {
    both: viewerHtml({ predicted: simulation, measured: measuredTimeline }, options),
    traces: viewerTemplate().replace("<!-- data -->", scripts.join("\n")),
    large: viewerHtml(createLargeTimeline(), { title: "1 024 ranks", maxEvents: 1_000_000 }),
  };
  return Object.fromEntries(
    Object.entries(pages).map(([name, text]) => {
      const path = join(directory, `${name}.html`);
      writeFileSync(path, text);
      return [name, pathToFileURL(path).href];
    }),
  );
}

/** Returns a trace as a rank writes it: two kernels, a transfer, and a wait, which does not count as compute. */
function createTrace(rank) {
  const kinds = [
    { lane: "compute", name: "attend" },
    { lane: "compute", name: "collective wait" },
    { lane: "communication", name: "sendRecv", label: "ring(sp)" },
  ];
  const events = {
    kinds,
    kind: [0, 2, 1, 0],
    start: [5e12 + 1e5 * rank, 1e5, 9e5, 1e6],
    duration: [1e6, 1.8e6, 9e5, 1e6],
    bytes: [4096, 4096],
  };
  const memory = { time: [5e12, 1e6], bytes: [1e6, 3e6] };
  const clock = { offset: 0, error: 0 };
  return { format: "mosaic-trace/1", rank, worldSize: 3, host: 0, at: { sp: rank }, clock, events, memory };
}

function createLargeTimeline() {
  const [ranks, steps] = [1024, 98];
  const rankTraces = Array.from({ length: ranks }, (_, rank) => {
    const events = Array.from({ length: steps }, (__, step) => {
      const start = 0.002 * step + 1e-6 * ((rank * 37) % 101);
      const name = step < steps / 2 ? "attend" : "attendBackward";
      return [
        { lane: "compute", name, start, end: start + 0.0014 + 1e-6 * ((rank * step) % 400) },
        {
          lane: "communication",
          name: "sendRecv",
          label: "ring(sp)",
          start,
          end: start + 0.0017,
          bytesSent: 1e6,
          bytesReceived: 1e6,
        },
      ];
    });
    return { rank, at: { sp: rank }, events: events.flat() };
  });
  return { seconds: 0.002 * steps, ranks: rankTraces };
}

async function withPage(name, options, check) {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  const requests = [];
  page.on("request", (request) => requests.push(request.url()));
  page.on("pageerror", (error) => faults.push(`${name}: ${error.stack}`));
  page.on("console", (message) => message.type() === "error" && faults.push(`${name}: ${message.text()}`));
  const startTime = performance.now();
  await page.goto(files[name]);
  await page.waitForSelector("html[data-ready]", { timeout: 60_000 });
  console.log(`${name}: shown after ${Math.round(performance.now() - startTime)} ms`);
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
  await check(page);
  expect(
    requests.length === 1 && requests[0] === files[name],
    `${name}: the page sent requests to ${requests.slice(1).join(", ")}`,
  );
  await context.close();
}

/** Compares a picture with the reference, and checks that the page is not wider than the viewport. */
async function checkPicture(page, name, fullPage = true) {
  const { wide: pageWidth, inner: viewportWidth } = await page.evaluate(() => ({
    wide: document.documentElement.scrollWidth,
    inner: innerWidth,
  }));
  expect(
    pageWidth <= viewportWidth,
    `${name}: the page is ${pageWidth} pixels wide, the screen is ${viewportWidth} pixels wide`,
  );
  const picture = await page.screenshot({ fullPage });
  const path = join(pictures, `${name}.png`);
  if (isUpdate || !existsSync(path)) {
    mkdirSync(pictures, { recursive: true });
    writeFileSync(path, picture);
    expect(isUpdate, `${name}: no reference picture existed; a new one was written to ${path}`);
    return;
  }
  const differingShare = await computeDifferingPixelShare(readFileSync(path), picture);
  console.log(`${name}: ${(100 * differingShare).toFixed(2)} % of the pixels differ`);
  if (differingShare <= MAX_DIFFERING_PIXEL_SHARE) return;
  const picturePath = join(tmpdir(), `mosaic-viewer-${name}.png`);
  writeFileSync(picturePath, picture);
  faults.push(
    `${name}: ${(100 * differingShare).toFixed(1)} % of the pixels differ from ${path}; the new picture was written to ${picturePath}`,
  );
}

/**
 * Returns the share of differing pixels. The browser decodes the pictures, in a separate page because the viewer's may
 * load none.
 */
async function computeDifferingPixelShare(before, after) {
  const page = await browser.newPage();
  const differingShare = await page.evaluate(
    async (texts) => {
      const [a, b] = await Promise.all(
        texts.map(async (text) => {
          const image = new Image();
          image.src = `data:image/png;base64,${text}`;
          await image.decode();
          const canvas = new OffscreenCanvas(image.width, image.height);
          const context = canvas.getContext("2d");
          context.drawImage(image, 0, 0);
          return context.getImageData(0, 0, image.width, image.height);
        }),
      );
      if (a.width !== b.width || Math.abs(a.height - b.height) > 40) return 1;
      const length = Math.min(a.data.length, b.data.length);
      let numDifferentPixels = 0;
      for (let pixelOffset = 0; pixelOffset < length; pixelOffset += 4) {
        const distance = [0, 1, 2].reduce(
          (sum, channel) => sum + Math.abs(a.data[pixelOffset + channel] - b.data[pixelOffset + channel]),
          0,
        );
        if (distance > 96) numDifferentPixels++;
      }
      return (4 * numDifferentPixels) / length;
    },
    [before, after].map((bytes) => Buffer.from(bytes).toString("base64")),
  );
  await page.close();
  return differingShare;
}

/** Checks the timeline with keys only, and the tables. */
async function checkKeys(page) {
  const readText = (selector) => page.textContent(selector);
  for (let i = 0; i < 40; i++) {
    await page.keyboard.press("Tab");
    if (await page.evaluate(() => document.activeElement?.getAttribute("role") === "application")) break;
  }
  expect(
    await page.evaluate(() => document.activeElement?.getAttribute("role") === "application"),
    "the Tab key does not focus the timeline",
  );
  const fullWindowText = await readText("output.window");
  await page.keyboard.press("+");
  expect((await readText("output.window")) !== fullWindowText, "the plus key does not zoom in");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Home");
  expect((await readText("output.window")) === fullWindowText, "the Home key does not show the whole timeline");
  await page.keyboard.press("n");
  const firstDetails = await readText(".details");
  expect(/rank 0 \(sp 0\): \w+; 0 s|rank 0 \(sp 0\)/.test(firstDetails), `the N key selects no event: ${firstDetails}`);
  await page.keyboard.press("n");
  expect((await readText(".details")) !== firstDetails, "the N key does not select the next event");
  await page.keyboard.press("j");
  expect(/rank 1 \(sp 1\)/.test(await readText(".details")), "the J key does not select the next rank");
  await page.locator("label:has-text('Critical path') input").press("Space");
  expect(
    /Critical path, predicted: \d+ events on \d+ ranks?/.test(await readText(".details")),
    `expected "Critical path, predicted: … events on … ranks", received "${await readText(".details")}"`,
  );
  const rows = {};
  for (const details of await page.locator("details").all()) {
    await details.locator("summary").press("Enter");
    // The rows are created when the table opens, shortly after the key press.
    await details.locator("tbody tr").first().waitFor({ state: "attached" });
    rows[await details.locator("summary").textContent()] = await details.locator("tbody tr").count();
  }
  const sizes = {
    "activity by rank": 32,
    "tiles by rank": 16,
    "bytes by link, in descending order": 16,
    "load by rank": 16,
  };
  for (const [caption, count] of Object.entries(sizes)) {
    expect(
      rows[`Table: ${caption}`] === count,
      `the table "${caption}": expected ${count} rows, received ${rows[`Table: ${caption}`]}`,
    );
  }
  await page.locator("input[type=search]").fill("no such event");
  await page.locator("#tiles input[type=range]").press("Home");
  expect(
    /^Step 1 of 16: 46 tiles computed in this step, 46 of 496 so far/.test((await readText("#tiles output")) ?? ""),
    `expected "Step 1 of 16: 46 tiles computed in this step, 46 of 496 so far", received "${await readText("#tiles output")}"`,
  );
}

/** Checks that every control and figure has a name, that headings are in order, and that no tabindex is positive. */
async function checkNames(page) {
  const unnamedControls = await page.evaluate(() => {
    const hasName = (element) =>
      element.getAttribute("aria-label") ||
      element.getAttribute("aria-labelledby") ||
      element.closest("label")?.textContent?.trim() ||
      element.textContent?.trim();
    const controls = [...document.querySelectorAll("button, input, select, summary, a, [role]")];
    return controls
      .filter((each) => !hasName(each) && each.getAttribute("role") !== "status")
      .map((each) => each.outerHTML.slice(0, 120));
  });
  expect(unnamedControls.length === 0, `controls without an accessible name: ${unnamedControls.join(", ")}`);
  const levels = await page.evaluate(() =>
    [...document.querySelectorAll("h1, h2, h3")].map(({ tagName }) => tagName).join(" "),
  );
  expect(/^H1( H2)+$/.test(levels), `expected one h1 followed by h2 headings, received ${levels}`);
  const numPositiveTabIndices = await page.evaluate(
    () => [...document.querySelectorAll("[tabindex]")].filter(({ tabIndex }) => tabIndex > 0).length,
  );
  expect(numPositiveTabIndices === 0, `expected no element with a tabindex > 0, received ${numPositiveTabIndices}`);
  const hidden = await page.evaluate(
    () =>
      [...document.querySelectorAll("#tiles canvas, #links canvas")].filter((each) => !each.getAttribute("aria-label"))
        .length,
  );
  expect(hidden === 0, `expected an aria-label on each canvas, received ${hidden} without one`);
}

/** Checks traces written by ranks. They are aligned, waits do not count as compute, and missing ranks are reported. */
async function checkTraces(page) {
  const factsText = (await page.locator(".facts li").allTextContents()).join(" ");
  for (const fact of ["Measured: 2 ranks, 3.1 ms, 6 events.", "1 of 3 ranks wrote no trace."])
    expect(factsText.includes(fact), `expected a summary with "${fact}", received "${factsText}"`);
  expect((await page.locator("#memory").count()) === 1, "the page has no memory chart for traces with memory samples");
}

/** Pans the timeline at every frame, with nearly all of it visible, and measures frames. Then drags it once. */
async function checkPanning(page) {
  const timeline = page.locator("[role=application]");
  const label = await timeline.getAttribute("aria-label");
  expect(
    /1024 ranks, 200704 events/.test(label),
    `the large page: expected a label with "1024 ranks, 200704 events", received "${label}"`,
  );
  const box = await page.locator(".u-over").first().boundingBox();
  const canvasCenter = [box.x + box.width / 2, box.y + box.height / 2];
  await page.mouse.move(...canvasCenter);
  await page.keyboard.down("Control");
  await page.mouse.wheel(0, -60);
  await page.keyboard.up("Control");
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const readTaskSeconds = async () => {
    const { metrics } = await session.send("Performance.getMetrics");
    return metrics.find(({ name }) => name === "TaskDuration").value;
  };
  const secondsBefore = await readTaskSeconds();
  const { frames: frameTimes, windows } = await timeline.evaluate(panInEveryFrame, PAN_DURATION_MS);
  const processorMs = (1000 * ((await readTaskSeconds()) - secondsBefore)) / frameTimes.length;
  expect(windows >= 2, `panning: expected at least 2 distinct time windows, received ${windows}`);
  const sortedFrameTimes = frameTimes.toSorted((a, b) => a - b);
  const quantileAt = (share) => sortedFrameTimes[Math.floor(share * (sortedFrameTimes.length - 1))].toFixed(1);
  console.log(
    `panning 200 704 events: ${frameTimes.length} frames, median ${quantileAt(0.5)} ms, 95 % within ${quantileAt(0.95)} ms; ${processorMs.toFixed(1)} ms of processor time per frame`,
  );
  expectFrames(Number(quantileAt(0.5)), processorMs);
  const windowText = await page.textContent("output.window");
  await page.mouse.down();
  await page.mouse.move(canvasCenter[0] + 80, canvasCenter[1], { steps: 4 });
  await page.mouse.up();
  expect((await page.textContent("output.window")) !== windowText, "a drag does not pan");
}

/** Checks frame times. On a busy machine frames wait for a core, so the page's processor time is checked instead. */
function expectFrames(median, processorMs) {
  const isHostBusy = loadavg()[0] > availableParallelism();
  const [metricName, ms] = isHostBusy ? ["processor time per frame", processorMs] : ["median frame", median];
  if (isHostBusy)
    console.log(
      `the load is ${loadavg()[0].toFixed(1)} on ${availableParallelism()} cores: checking processor time instead of frame times`,
    );
  expect(ms <= MAX_FRAME_MS, `the ${metricName} is ${ms.toFixed(1)} ms, expected at most ${MAX_FRAME_MS} ms`);
}

/** Runs in the page. Pans by a tenth of the width in one direction or the other at each frame. */
function panInEveryFrame(timeline, milliseconds) {
  const output = document.querySelector("output.window");
  const frameTimes = [];
  const windows = new Set();
  return new Promise((resolve) => {
    const startTime = performance.now();
    let lastFrameTime = startTime;
    const onFrame = (now) => {
      if (frameTimes.length > 0 || now - startTime > 0) frameTimes.push(now - lastFrameTime);
      lastFrameTime = now;
      if (now - startTime > milliseconds) return resolve({ frames: frameTimes.slice(1), windows: windows.size });
      const key = Math.floor(frameTimes.length / 2) % 2 === 0 ? "ArrowRight" : "ArrowLeft";
      timeline.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      windows.add(output.value);
      requestAnimationFrame(onFrame);
    };
    requestAnimationFrame(onFrame);
  });
}
