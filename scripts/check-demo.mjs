// Runs the README's demo and holds it to what it prints: `node scripts/check-demo.mjs [demo options]`.
import { spawnSync } from "node:child_process";

const demo = spawnSync("npm", ["run", "--silent", "demo", "--", "--json", ...process.argv.slice(2)], {
  stdio: ["ignore", "pipe", "inherit"],
  encoding: "utf8",
});
process.stdout.write(demo.stdout);
if (demo.status !== 0) fail(`it exited with ${demo.status}`);

const result = lastLine(demo.stdout);
const tokens = argument("--tokens");
const ranks = argument("--ranks");
if (tokens && result.tokens !== Number(tokens)) fail(`asked for ${tokens} tokens, it reports ${result.tokens}`);
if (ranks && result.ranks !== Number(ranks)) fail(`asked for ${ranks} ranks, it reports ${result.ranks}`);
if (!(result.maxError >= 0)) fail(`maxError is ${result.maxError}`);
if (!(result.errorRatio <= 2))
  fail(`errorRatio is ${result.errorRatio}, at most twice the local kernel's error is allowed`);
if (!(result.seconds > 0)) fail(`seconds is ${result.seconds}`);
if (!(result.bytesSent > 0)) fail(`bytesSent is ${result.bytesSent}`);
console.log(
  `demo: ${result.ranks} ranks, ${result.tokens} tokens, ${result.errorRatio.toFixed(2)} of the allowed 2 times the error`,
);

function lastLine(output) {
  try {
    return JSON.parse(output.trimEnd().split("\n").at(-1));
  } catch {
    return fail("its last line is not a JSON object");
  }
}

function argument(name) {
  return process.argv[process.argv.indexOf(name) + 1 || Infinity];
}

function fail(why) {
  console.error(`demo: ${why}`);
  process.exit(1);
}
