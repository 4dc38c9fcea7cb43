// The scenarios that `compare.mjs` runs, each in its own process: `node scenarios.mjs <checkout> <name>` prints
// milliseconds. They use only the API that both revisions have, loaded from the packages built in the checkout. This
// file is plain JavaScript, and each process exits after its scenario, so few resources are closed explicitly.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [root, name] = process.argv.slice(2);
const importPackage = (directory) => import(pathToFileURL(join(root, "packages", directory, "dist/index.js")).href);

/** Returns the minimum time of several runs after a warm-up, because other load only adds time. */
async function measureMinMilliseconds(repetitions, body) {
  await body();
  let minMilliseconds = Number.POSITIVE_INFINITY;
  for (let i = 0; i < repetitions; i++) {
    const start = performance.now();
    await body();
    minMilliseconds = Math.min(minMilliseconds, performance.now() - start);
  }
  return minMilliseconds;
}

/** Times attention on one device with two threads: [1,8,2048,64] float32. */
async function timeAttention(isBackward) {
  const core = await importPackage("core");
  const { cpu } = await importPackage("kernels-cpu");
  const ctx = await core.init({ device: cpu({ threads: 2 }), rank: 0, worldSize: 1 });
  const [q, k, v] = [0, 1, 2].map((stream) => core.randn(ctx, [1, 8, 2048, 64], { seed: 1, stream }));
  const layout = core.layoutOf({ mesh: ctx.mesh.shape, axes: [], length: 2048 });
  for (const x of [q, k, v]) x.requiresGrad = isBackward;
  return measureMinMilliseconds(7, async () => {
    const outputs = [core.attention(ctx, q, k, v, { queries: layout, keys: layout })];
    if (isBackward) outputs.push(core.sum(outputs[0]));
    if (isBackward) outputs[1].backward();
    await ctx.device.stream.synchronize();
    for (const x of outputs) x[Symbol.dispose]();
  });
}

/**
 * Times ring attention on two ranks of one thread each, in one process: [1,4,1024,64] per rank, forward and backward.
 */
async function timeRing() {
  const core = await importPackage("core");
  const { cpu } = await importPackage("kernels-cpu");
  const { world } = await importPackage("collectives-local");
  const { ring: backend } = await importPackage("backend-ring");
  const contexts = await world(2, { device: () => cpu({ threads: 1 }), backends: [backend()] });
  const layout = core.layoutOf({ mesh: contexts[0].mesh.shape, axes: ["sp"], length: 2048 });
  const shards = contexts.map((ctx) =>
    [0, 1, 2].map((stream) => {
      const x = core.randn(ctx, [1, 4, 1024, 64], { seed: 1, stream });
      x.requiresGrad = true;
      return x;
    }),
  );
  const milliseconds = await measureMinMilliseconds(7, async () => {
    const outs = contexts.map((ctx, i) =>
      core.attention(ctx, ...shards[i], { backend: "ring", queries: layout, keys: layout }),
    );
    const sums = outs.map((out) => core.sum(out));
    for (const sum of sums) sum.backward();
    await Promise.all(contexts.map((ctx) => ctx.device.stream.synchronize()));
    for (const x of [...outs, ...sums]) x[Symbol.dispose]();
  });
  for (const ctx of contexts) await ctx.close();
  return milliseconds;
}

/** Returns the milliseconds per collective of two ranks in one process, posted in batches. */
async function timeCollective(elements, { repetitions, batches }) {
  const core = await importPackage("core");
  const { cpu } = await importPackage("kernels-cpu");
  const { world } = await importPackage("collectives-local");
  const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
  const x = contexts.map((ctx) => core.zeros(ctx, [elements]));
  const y = contexts.map((ctx) => core.zeros(ctx, [elements]));
  const milliseconds = await measureMinMilliseconds(batches, async () => {
    for (let i = 0; i < repetitions; i++) {
      for (const [rank, ctx] of contexts.entries()) {
        const exchangeOperations = [
          { tensor: x[rank], to: 1 - rank },
          { tensor: y[rank], from: 1 - rank },
        ];
        ctx.world.sendRecv(exchangeOperations).wait();
        ctx.world.allReduce(x[rank]).wait();
      }
    }
    await Promise.all(contexts.map((ctx) => ctx.device.stream.synchronize()));
  });
  for (const ctx of contexts) await ctx.close();
  return milliseconds / repetitions / 2;
}

/** Times 10 000 additions of 16 elements, each of whose results is disposed. */
async function timeSmallOperations() {
  const core = await importPackage("core");
  const { cpu } = await importPackage("kernels-cpu");
  const ctx = await core.init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  const [a, b] = [core.ones(ctx, [16]), core.ones(ctx, [16])];
  return measureMinMilliseconds(5, async () => {
    for (let i = 0; i < 10_000; i++) core.add(a, b)[Symbol.dispose]();
    await ctx.device.stream.synchronize();
  });
}

/** Records, proves and counts 1 024 symbolic ranks. */
async function timeProof(createBackend) {
  const { masks, causal = masks.causal, zigzag } = await importPackage("core");
  const { count, prove, record } = await importPackage("planner");
  const start = performance.now();
  // Before 0.2.0 these options were called heads and kvHeads, and masks had no namespace.
  const headOptions = masks ? { numHeads: 4, numKvHeads: 2 } : { heads: 4, kvHeads: 2 };
  const sizes = { mesh: { sp: 1024 }, tokens: 65_536, ...headOptions, headDim: 64 };
  const attentionRecord = record({ backend: await createBackend(), mask: causal(), placement: zigzag(), ...sizes });
  const { violations } = prove(attentionRecord);
  if (violations.length > 0) throw new Error(violations[0].message);
  count(attentionRecord);
  return performance.now() - start;
}

/** Times the launch of two ranks: from the command to the first output line of either. */
async function timeLaunch() {
  const directory = mkdtempSync(join(tmpdir(), "compare-"));
  const script = join(directory, "rank.mjs");
  const quotedPackageUrl = (packageName) =>
    JSON.stringify(pathToFileURL(join(root, "packages", packageName, "dist/index.js")).href);
  writeFileSync(
    script,
    `import { init } from ${quotedPackageUrl("core")};
import { cpu } from ${quotedPackageUrl("kernels-cpu")};
import { local } from ${quotedPackageUrl("collectives-local")};
const ctx = await init({ device: cpu({ threads: 1 }), collectives: local() });
ctx.world.barrier().wait();
await ctx.device.stream.synchronize();
console.log("here");
await ctx.close();
`,
  );
  try {
    let minMilliseconds = Number.POSITIVE_INFINITY;
    for (let i = 0; i < 3; i++) minMilliseconds = Math.min(minMilliseconds, await timeFirstLine(script));
    return minMilliseconds;
  } finally {
    rmSync(directory, { recursive: true });
  }
}

async function timeFirstLine(script) {
  const start = performance.now();
  const cli = join(root, "packages/launcher/bin/mosaic-run.js");
  const child = spawn(process.execPath, [cli, "-n", "2", script], { stdio: ["ignore", "pipe", "inherit"] });
  const exitPromise = once(child, "exit");
  let elapsedMilliseconds;
  child.stdout.once("data", () => {
    elapsedMilliseconds = performance.now() - start;
  });
  const [status] = await exitPromise;
  if (status !== 0 || elapsedMilliseconds === undefined) {
    throw new Error(`mosaic-run: expected output and exit code 0, received exit code ${status}`);
  }
  return elapsedMilliseconds;
}

const scenarios = {
  "attention.forward": () => timeAttention(false),
  "attention.backward": () => timeAttention(true),
  "ring.2x1": timeRing,
  "collectives.small": () => timeCollective(16, { repetitions: 100, batches: 100 }),
  "collectives.large": () => timeCollective(1 << 20, { repetitions: 20, batches: 5 }),
  "operations.small": timeSmallOperations,
  "proof.1024.ring": () => timeProof(async () => (await importPackage("backend-ring")).ring()),
  "proof.1024.mesh2d": () =>
    timeProof(async () => {
      const { mesh2d } = await importPackage("backend-mesh2d");
      // Before 0.2.0 the option `schedule` was called `form`.
      try {
        return mesh2d({ shape: [32, 32], schedule: "fused" });
      } catch {
        return mesh2d({ shape: [32, 32], form: "fused" });
      }
    }),
  launch: timeLaunch,
};

if (name === "--list") console.log(Object.keys(scenarios).join("\n"));
else console.log(await scenarios[name]());
process.exit(0);
