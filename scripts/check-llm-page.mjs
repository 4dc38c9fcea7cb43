// Tests the page of `npm run llm -- serve` in a headless Chromium. The page must send requests only to its own server,
// log no errors, stream and stop answers, ask for a key, fit the width of a phone, and be readable in light and dark.
//
//   node scripts/check-llm-page.mjs [--pictures DIRECTORY]      (after a build)
//
// CHROMIUM is the path of the browser. Default: /usr/bin/chromium.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const root = fileURLToPath(new URL("..", import.meta.url));
const directory = mkdtempSync(join(tmpdir(), "mosaic-check-llm-"));
process.on("exit", () => rmSync(directory, { recursive: true, force: true }));
const picturesIndex = process.argv.indexOf("--pictures");
const pictures = picturesIndex < 0 ? undefined : process.argv[picturesIndex + 1];
const apiKey = "a key";

const faults = [];
const expect = (condition, fault) => condition || faults.push(fault);

await writeModel(join(directory, "tiny"));
const { url, server } = await serve(join(directory, "tiny"));
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--force-color-profile=srgb"] });
try {
  const desktop = { viewport: { width: 1280, height: 720 } };
  const phone = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, hasTouch: true };
  for (const colorScheme of ["light", "dark"]) {
    await withPage(`desktop ${colorScheme}`, { ...desktop, colorScheme }, checkAppearance);
    await withPage(`phone ${colorScheme}`, { ...phone, colorScheme }, checkAppearance);
  }
  await withPage("conversation", desktop, checkConversation);
  await withPage("key", desktop, checkKey);
} finally {
  await browser.close();
  server.kill("SIGTERM");
}
const [code] = await once(server, "exit");
expect(code === 0, `expected exit code 0 of the server, received ${code}`);
for (const fault of faults) console.error(fault);
if (faults.length > 0) process.exit(1);
console.log("llm page: no errors");

/** Writes a model with random weights, a byte-level tokenizer and a chat template. */
async function writeModel(folder) {
  const importModule = (path) => import(pathToFileURL(join(root, path)).href);
  const { world } = await importModule("packages/attention/dist/index.js");
  const { createModel } = await importModule("packages/models/dist/index.js");
  const sizes = { vocab_size: 257, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2 };
  const heads = { num_attention_heads: 2, max_position_embeddings: 2048, eos_token_id: 256 };
  mkdirSync(folder);
  const [ctx] = await world(1, { seed: 0 });
  const model = createModel(ctx, { model_type: "llama", ...sizes, ...heads });
  await model.save(folder);
  model.dispose();
  await ctx.close();
  // Byte-to-character mapping of GPT-2.
  const isShown = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  let nextId = 256;
  const vocab = Object.fromEntries(
    Array.from({ length: 256 }, (_, byte) => [String.fromCodePoint(isShown(byte) ? byte : nextId++), byte]),
  );
  const endToken = { id: 256, content: "<end>", special: true, normalized: false, lstrip: false, rstrip: false };
  const byteLevel = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };
  const tokenizer = {
    ...{ version: "1.0", truncation: null, padding: null, normalizer: null, post_processor: null },
    ...{ added_tokens: [endToken], pre_tokenizer: byteLevel, decoder: byteLevel },
    model: { type: "BPE", vocab: { ...vocab, "<end>": 256 }, merges: [] },
  };
  writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(tokenizer));
  const template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:";
  writeFileSync(join(folder, "tokenizer_config.json"), JSON.stringify({ chat_template: template }));
}

async function serve(model) {
  const args = [join(root, "apps/llm/dist/main.js"), "serve", "--model", model, "--port", "0", "--key", apiKey];
  const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
  const [line] = await once(createInterface({ input: child.stdout }), "line");
  return { url: line.replace(/^.* at /, ""), server: child };
}

async function withPage(name, options, check) {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.on("request", (request) => {
    const isOwnRequest = request.url().startsWith(`${url}/`) || request.url().startsWith("data:");
    expect(isOwnRequest, `${name}: the page sent a request to ${request.url()}`);
  });
  page.on("pageerror", (error) => faults.push(`${name}: ${error.stack}`));
  page.on("console", (message) => {
    // The browser logs each refusal with its status.
    const isRefusal = /status of 401/.test(message.text());
    expect(message.type() !== "error" || isRefusal, `${name}: ${message.text()}`);
  });
  await page.goto(url);
  await page.waitForSelector("html[data-ready]", { timeout: 30_000 });
  await check(page, name);
  await context.close();
}

async function enterApiKey(page) {
  await page.fill("#key", apiKey);
  await page.press("#key", "Tab");
  await page.waitForFunction(() => document.querySelector("#model").textContent === "tiny");
}

async function sendMessage(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

/** Checks that an answer is not wider than the page, and that colors have enough contrast. */
async function checkAppearance(page, name) {
  await enterApiKey(page);
  await page.fill("#tokens", "60");
  await sendMessage(page, `In the beginning ${"w".repeat(120)}`);
  await page.waitForSelector(".assistant small", { timeout: 30_000 });
  const {
    wide: pageWidth,
    inner: viewportWidth,
    faint,
  } = await page.evaluate(() => {
    const computeLuminance = (color) => {
      const [r, g, b] = color.match(/[\d.]+/g).map((value) => {
        const share = Number(value) / 255;
        return share <= 0.040_45 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const findBackground = (node) => {
      const { backgroundColor } = getComputedStyle(node);
      return /, 0\)$/.test(backgroundColor) && node.parentElement
        ? findBackground(node.parentElement)
        : backgroundColor;
    };
    const computeContrast = (element) => {
      const [a, b] = [computeLuminance(getComputedStyle(element).color), computeLuminance(findBackground(element))];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    const textElements = [
      ...document.querySelectorAll("h1, #state, .text, .text small, label, textarea, input, button:enabled"),
    ];
    return {
      wide: document.documentElement.scrollWidth,
      inner: innerWidth,
      faint: textElements
        .filter((each) => computeContrast(each) < 4.5)
        .map((each) => `${each.tagName} ${computeContrast(each).toFixed(2)}`),
    };
  });
  expect(
    pageWidth <= viewportWidth,
    `${name}: the page is ${pageWidth} pixels wide, the screen is ${viewportWidth} pixels wide`,
  );
  expect(faint.length === 0, `${name}: contrast below 4.5: ${faint.join(", ")}`);
  const numUnnamedControls = await page.evaluate(
    () =>
      [...document.querySelectorAll("input, textarea")].filter((each) => !each.labels[0]?.textContent.trim()).length,
  );
  expect(numUnnamedControls === 0, `${name}: ${numUnnamedControls} controls without a label`);
  if (pictures === undefined) return;
  mkdirSync(pictures, { recursive: true });
  await page.screenshot({ path: join(pictures, `${name.replace(" ", "-")}.png`) });
}

/** Checks two turns (the second request includes the first), a stopped answer, and a new conversation. */
async function checkConversation(page, name) {
  await enterApiKey(page);
  const requestBodies = [];
  page.on("request", (request) => request.method() === "POST" && requestBodies.push(request.postDataJSON()));
  await page.fill("#tokens", "20");
  for (const [i, text] of ["first", "second"].entries()) {
    await sendMessage(page, text);
    await page.waitForFunction((count) => document.querySelectorAll(".assistant small").length === count, i + 1);
  }
  expect(
    requestBodies[1]?.messages.map(({ role }) => role).join() === "user,assistant,user",
    `${name}: ${requestBodies[1]?.messages}`,
  );
  expect(
    (await page.textContent(".assistant small")).includes("+ 20 tokens"),
    `${name}: expected "+ 20 tokens" below the answer, received "${await page.textContent(".assistant small")}"`,
  );
  await page.fill("#tokens", "1500");
  const stopPromise = page.evaluate(stopAtFirstWord, 2);
  await sendMessage(page, "third");
  await stopPromise;
  await page.waitForFunction(() => document.querySelector("#stop").disabled);
  expect((await page.locator(".fault").count()) === 0, `${name}: ${await page.locator(".fault").allTextContents()}`);
  // A refusal is shown, and the page remains usable.
  await page.fill("#tokens", "100000");
  await page.evaluate(() => document.querySelector("#tokens").removeAttribute("max"));
  page.removeAllListeners("console");
  await sendMessage(page, "fourth");
  await page.waitForSelector(".fault");
  expect(
    /maximum context length is 2048 tokens/.test(await page.textContent(".fault")),
    `${name}: expected an error with "maximum context length is 2048 tokens", received "${await page.textContent(".fault")}"`,
  );
  await page.click("#clear");
  expect((await page.locator(".text").count()) === 0, `${name}: the conversation is not cleared`);
}

/**
 * Runs in the page. Presses stop as soon as that answer has text. From outside the page, the answer could end before
 * the click.
 */
function stopAtFirstWord(answerIndex) {
  return new Promise((resolve) => {
    const observer = new MutationObserver(() => {
      const stopButton = document.querySelector("#stop");
      if (stopButton.disabled || !document.querySelectorAll(".assistant")[answerIndex]?.textContent) return;
      observer.disconnect();
      stopButton.click();
      resolve();
    });
    observer.observe(document.body, { subtree: true, childList: true, characterData: true });
  });
}

async function checkKey(page, name) {
  expect(
    /API key .* received no key/.test(await page.textContent("#state")),
    `${name}: ${await page.textContent("#state")}`,
  );
  page.removeAllListeners("console");
  await page.fill("#key", "wrong");
  await page.press("#key", "Tab");
  await page.waitForFunction(() => /received a different key$/.test(document.querySelector("#state").textContent));
  await enterApiKey(page);
  expect(
    /at most 2048 tokens/.test(await page.textContent("#state")),
    `${name}: expected a status with "at most 2048 tokens", received "${await page.textContent("#state")}"`,
  );
}
