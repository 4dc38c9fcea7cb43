import { expect, test } from "vitest";
import { emulatedBlas } from "./emulated.ts";
import { run } from "./processes.ts";

// Each test runs in a separate process, because leaks are counted when the process's last context is released.
const env = { MOSAIC_EMULATED_LEAKS: "1", MOSAIC_CUBLASLT_LIBRARY: emulatedBlas };
const noLeaksText = "leaked: 0 streams, 0 events, 0 modules, 0 pools, 0 allocations, 0 pinned allocations\n";

const setUpCode = `const device = cuda(); const x = device.empty([8, 8], "float32"); device.kernels.fill(x, 1);`;
/** Devices close on separate threads, and fences are released by garbage collection. */
const collectGarbageCode = `for (let i = 0; i < 5; i++) {
    gc();
    await new Promise((resolve) => setTimeout(resolve, 20));
  }`;

test.concurrent("a disposed device releases all driver resources, even those in use", async () => {
  const { stderr } = await run({
    env,
    code: `${setUpCode}
      const table = device.empty([8, 8], "bfloat16");
      device.startTrace();
      device.kernels.matmul(device.empty([8, 8], "float32"), x, x, false);
      for (let i = 0; i < 20; i++) device.stream.wait(device.stream.record());
      device.write(table, new Float32Array(64));
      await Promise.all([x.read(), table.read(), device.stopTrace()]);
      device.startTrace();
      device.kernels.fill(x, 2);
      x.read();
      device[Symbol.dispose]();
      ${collectGarbageCode}`,
  });
  expect(stderr).toBe(noLeaksText);
});

test.concurrent("a failed device releases all driver resources when it is disposed", async () => {
  const { stderr } = await run({
    env: { ...env, MOSAIC_EMULATED_FAILING_LAUNCH: "2" },
    code: `${setUpCode}
      device.kernels.fill(x, 2);
      await x.read().catch(() => {});
      device[Symbol.dispose]();
      ${collectGarbageCode}`,
  });
  expect(stderr).toBe(`emulated GPU: fill: injected failure\n${noLeaksText}`);
});

test.concurrent("pinned memory of a read that failed is not reused before its copy is done", async () => {
  const { stdout } = await run({
    env: { ...env, MOSAIC_EMULATED_FAILING_PINNED: "2" },
    code: `const device = cuda();
      const [x, y] = [device.empty([1024], "float32"), device.empty([1024], "float32")];
      const large = device.empty([2 ** 20], "float32");
      device.kernels.fill(x, 1);
      for (let i = 0; i < 5; i++) device.kernels.fill(large, 0); // the copies of the read and the write are pending
      const message = await x.read().catch((error) => error.message);
      device.write(y, new Float32Array(1024).fill(7));
      console.log(message + "; " + (await y.read())[1023]);`,
  });
  expect(stdout).toMatch(/pinning 4096 bytes of host memory: out of memory.*; 7\n$/);
});

test.concurrent("a fence may outlive its device", async () => {
  const { stderr } = await run({
    env,
    code: `${setUpCode}
      let fence = device.stream.record();
      device[Symbol.dispose]();
      ${collectGarbageCode}
      fence = undefined;
      ${collectGarbageCode}`,
  });
  expect(stderr).toBe(noLeaksText);
});

test.concurrent("hundreds of operations and dozens of devices leak no memory or threads", async () => {
  const { stdout } = await run({
    code: `
      const { readdirSync, readFileSync } = await import("node:fs");
      const resident = () => Number(/^\\d+ (\\d+)/.exec(readFileSync("/proc/self/statm", "utf8"))[1]) * 4096;
      const threads = () => readdirSync("/proc/self/task").length;
      const round = async () => {
        const device = cuda();
        const x = device.empty([16, 8], "float32");
        device.kernels.fill(x, 0.5);
        for (let i = 0; i < 20; i++) {
          const y = device.empty([16, 16], "float32");
          device.kernels.matmul(y, x, x.transpose(0, 1), false);
          device.kernels.copy(y, x.slice(1, 0, 1));
          if (i % 5 === 0) await y.read();
          y[Symbol.dispose]();
        }
        x[Symbol.dispose]();
        device[Symbol.dispose]();
      };
      for (let i = 0; i < 5; i++) await round();
      ${collectGarbageCode}
      const [bytes, alive] = [resident(), threads()];
      for (let i = 0; i < 25; i++) await round();
      ${collectGarbageCode}
      console.log(JSON.stringify([resident() - bytes, threads() - alive]));`,
  });
  const [grown, more] = JSON.parse(stdout) as [number, number];
  expect(grown).toBeLessThan(24 * 2 ** 20); // V8's young generation varies in size
  expect(more).toBeLessThanOrEqual(0);
});

test.concurrent("a process exits while its device is open and idle", async () => {
  const { stdout } = await run({ code: `${setUpCode} await x.read(); console.log("done");` });
  expect(stdout).toBe("done\n");
});

test.concurrent("a process waits for pending reads before it exits", async () => {
  const { stdout } = await run({ code: `${setUpCode} x.read().then((values) => console.log(values[9]));` });
  expect(stdout).toBe("1\n");
});

test.concurrent("worker threads have their own devices, and may be terminated at any time", async () => {
  const worker = `
    const { parentPort } = await import("node:worker_threads");
    const { cuda } = await import(process.env.ENTRY);
    ${setUpCode}
    parentPort.postMessage((await x.read())[5]);
    for (let i = 0; i < 200; i++) {
      device.kernels.unary("gelu", x, x);
      x.read();
    }
    parentPort.postMessage("busy");`;
  const { stdout } = await run({
    env: { ENTRY: new URL("../dist/index.js", import.meta.url).href },
    code: `
      const { Worker } = await import("node:worker_threads");
      for (let i = 0; i < 3; i++) {
        const worker = new Worker(new URL("data:text/javascript," + ${JSON.stringify(encodeURIComponent(worker))}));
        const messages = [];
        await new Promise((resolve, reject) => {
          worker.on("error", reject);
          worker.on("message", (message) => { messages.push(message); if (message === "busy") resolve(); });
        });
        await worker.terminate();
        console.log(messages.join());
      }
      ${setUpCode}
      console.log((await x.read())[0]);
      process.exit();`,
  });
  expect(stdout).toBe("1,busy\n1,busy\n1,busy\n1\n");
});

test.runIf(process.platform === "linux")(
  "the thread that waits for events has a name, and blocks SIGTERM",
  async () => {
    const { stdout } = await run({
      code: `import { readdirSync, readFileSync } from "node:fs";
      const device = cuda();
      const tasks = readdirSync("/proc/self/task").map((task) => readFileSync("/proc/self/task/" + task + "/status", "utf8"));
      const status = tasks.find((text) => /^Name:\\tmosaic-events$/m.test(text)) ?? "";
      process.stdout.write(/^SigBlk:\\t(\\w+)$/m.exec(status)?.[1] ?? "none", () => process.exit());`,
    });
    const terminate = 1n << 14n; // SIGTERM is 15
    expect(BigInt(`0x${stdout}`) & terminate).toBe(terminate);
  },
);
