// Runs the README's demo, then every backend that it offers on fewer tokens, and checks their output and pictures:
// `node scripts/check-demo.mjs [demo options]`.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const directory = mkdtempSync(join(tmpdir(), "mosaic-check-demo-"));
process.on("exit", () => rmSync(directory, { recursive: true, force: true }));

const result = runDemo("demo", ["npm", "run", "--silent", "demo", "--"], process.argv.slice(2));
const tokens = readArgument("--tokens");
const ranks = readArgument("--ranks");
if (tokens && result.tokens !== Number(tokens)) fail(`expected ${tokens} tokens, received ${result.tokens}`);
if (ranks && result.ranks !== Number(ranks)) fail(`expected ${ranks} ranks, received ${result.ranks}`);

const demoCommand = [process.execPath, join(root, "apps/quickstart/dist/main.js")];
for (const backend of ["ring", "mesh2d", "ulysses", "flex", "composed", "hierarchical", "auto"]) {
  runDemo(backend, demoCommand, ["--backend", backend, "--tokens", "500", "--ranks", "4", "--backward", "--causal"]);
}

/** Runs the demo once, checks its output and picture, and returns its JSON output. */
function runDemo(name, [command, ...programArgs], options) {
  const svg = join(directory, `${name}.svg`);
  const startTime = performance.now();
  const demoResult = spawnSync(command, [...programArgs, "--svg", svg, "--json", ...options], {
    cwd: root,
    stdio: ["ignore", "pipe", name === "demo" ? "inherit" : "pipe"],
    encoding: "utf8",
  });
  if (name === "demo" || demoResult.status !== 0) process.stdout.write(demoResult.stdout);
  if (demoResult.status !== 0)
    fail(`${name}: expected exit code 0, received ${demoResult.status}\n${demoResult.stderr ?? ""}`);
  const summary = lastLine(demoResult.stdout);
  checkNumbers(name, summary);
  checkPicture(name, summary, options.includes("--svg") ? options[options.indexOf("--svg") + 1] : svg);
  const { ranks, tokens, errorRatio, bytesSent } = summary;
  const elapsedSeconds = ((performance.now() - startTime) / 1000).toFixed(1);
  console.log(
    `${name}: ${ranks} ranks, ${tokens} tokens, ${bytesSent} bytes sent, error ${errorRatio.toFixed(2)} × that of one device, ${elapsedSeconds} s`,
  );
  return summary;
}

/** Rejects impossible numbers. The demo itself judges accuracy, through its exit code. */
function checkNumbers(name, summary) {
  const { maxError, errorRatio, seconds, ranks, bytesSent, bytesSentClosedForm, bytesSentPlanned } = summary;
  if (!(maxError >= 0)) fail(`${name}: expected maxError ≥ 0, received ${maxError}`);
  if (!(errorRatio >= 0 && errorRatio < 4)) fail(`${name}: expected 0 ≤ errorRatio < 4, received ${errorRatio}`);
  if (!(seconds > 0)) fail(`${name}: expected seconds > 0, received ${seconds}`);
  if (!(bytesSent > 0 || ranks === 1)) fail(`${name}: expected bytesSent > 0, received ${bytesSent}`);
  // An automatically chosen strategy may be any nesting, for which there is no closed form.
  const expectedBytesSent = summary.backend === "auto" ? bytesSentPlanned : bytesSentClosedForm;
  if (bytesSent === expectedBytesSent && bytesSent === bytesSentPlanned) return;
  fail(
    `${name}: expected ${expectedBytesSent} bytes sent, received ${bytesSent}; closed form ${bytesSentClosedForm}, planned ${bytesSentPlanned}`,
  );
}

/** Checks that the picture has a row for every rank, attention events and, if bytes were sent, send events. */
function checkPicture(name, { ranks, bytesSent }, file) {
  if (file === "") return;
  const svg = readFileSync(file, "utf8");
  for (let rank = 0; rank < ranks; rank++) {
    if (!svg.includes(`>rank ${rank}<`)) fail(`${name}: expected a row for rank ${rank} in ${file}, received none`);
  }
  if (!svg.includes("attend to keys and values of"))
    fail(`${name}: expected attention events in ${file}, received none`);
  const hasSendEvents = /<title>(stage \d+: )?sends /.test(svg);
  if (bytesSent > 0 && !hasSendEvents) fail(`${name}: expected send events in ${file}, received none`);
}

function lastLine(output) {
  const line = output.trimEnd().split("\n").at(-1);
  try {
    return JSON.parse(line);
  } catch {
    return fail(`expected JSON in the last line of the output, received ${JSON.stringify(line)}`);
  }
}

function readArgument(name) {
  return process.argv[process.argv.indexOf(name) + 1 || Infinity];
}

function fail(reason) {
  console.error(`check-demo: ${reason}`);
  process.exit(1);
}
