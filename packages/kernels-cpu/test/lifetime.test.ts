import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { Worker } from "node:worker_threads";
import { expect, test } from "vitest";
import { cpu } from "../src/index.ts";

const residentBytes = (): number => Number(/^\d+ (\d+)/.exec(readFileSync("/proc/self/statm", "utf8"))![1]) * 4096;
const countThreads = (): number => readdirSync("/proc/self/task").length;
const entry = new URL("../dist/index.js", import.meta.url).href;

/** Waits for closed devices to end their threads, which each does once its stream is empty. */
async function waitForThreads(maxThreads: number): Promise<void> {
  while (countThreads() > maxThreads) await new Promise((resolve) => setImmediate(resolve));
}

test("10 000 small operations leak no memory", async () => {
  using device = cpu({ threads: 1 });
  using a = device.empty([64, 64], "float32");
  device.kernels.fill(a, 0.01);
  const step = async (): Promise<void> => {
    for (let i = 0; i < 500; i++) {
      using b = device.empty([64, 64], "float32");
      using view = b.transpose(0, 1);
      device.kernels.matmul(b, a, a, false);
      device.kernels.unary("gelu", view, b);
      if (i % 100 === 0) await view.read();
    }
    await device.stream.synchronize();
  };
  for (let i = 0; i < 4; i++) await step();
  const bytesBefore = residentBytes();
  for (let i = 0; i < 20; i++) await step();
  expect(residentBytes() - bytesBefore).toBeLessThan(24 * 2 ** 20); // V8's young generation varies in size
  expect(device.memory().allocated).toBe(64 * 64 * 4);
});

test("hundreds of devices are created and disposed without leaks", async () => {
  const runRound = async (): Promise<void> => {
    const devices = Array.from({ length: 8 }, (_, index) => cpu({ threads: 2, index }));
    const reads = devices.map((device, i) => {
      const x = device.empty([1000], "float32");
      device.kernels.fill(x, i);
      return x.read();
    });
    for (const device of devices) device[Symbol.dispose]();
    expect((await Promise.all(reads)).map((values) => values[999])).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  };
  await runRound();
  const threadCount = countThreads();
  for (let i = 0; i < 5; i++) await runRound();
  const bytesBefore = residentBytes();
  for (let i = 0; i < 40; i++) await runRound();
  await waitForThreads(threadCount);
  expect(residentBytes() - bytesBefore).toBeLessThan(32 * 2 ** 20);
});

/** Runs a program in a separate process. */
function run(
  program: string,
  limits = "",
): { status: number | null; stdout: string; stderr: string; milliseconds: number } {
  const start = performance.now();
  const source = `import { cpu } from ${JSON.stringify(entry)};\n${program}`;
  const shell = ["-c", `${limits} exec "$0" --input-type=module -e "$1"`, process.execPath, source];
  const { status, stdout, stderr } = spawnSync("sh", shell, { encoding: "utf8" });
  return { status, stdout, stderr, milliseconds: performance.now() - start };
}

const setUp = `const device = cpu({ threads: 2 }); const x = device.empty([2 ** 20], "float32"); device.kernels.fill(x, 1);`;

test("a process exits while its device is open and idle", () => {
  expect(run(`${setUp} await x.read(); console.log("done");`)).toMatchObject({ status: 0, stdout: "done\n" });
});

test("a process waits for pending reads before it exits", () => {
  const { status, stdout } = run(`${setUp} x.read().then((values) => console.log(values[9]));`);
  expect({ status, stdout }).toEqual({ status: 0, stdout: "1\n" });
});

test("process.exit does not wait for a long queue", () => {
  const { status, stderr, milliseconds } = run(`
    ${setUp}
    for (let i = 0; i < 20_000; i++) device.kernels.unary("gelu", x, x);
    x.read();
    process.exit(7);`);
  expect({ status, stderr }).toEqual({ status: 7, stderr: "" });
  expect(milliseconds).toBeLessThan(20_000); // the queued work would take minutes
});

test("a device whose threads cannot all be created is rejected, and other devices and signals still work", () => {
  const { status, stdout } = run(
    `
    process.on("SIGTERM", () => { console.log("signal"); process.exit(3); });
    try { cpu({ threads: 1024 }); } catch (error) { console.log(error.name, error.message); }
    const device = cpu({ threads: 2 });
    const x = device.empty([2 ** 16], "float32");
    device.kernels.fill(x, 1);
    console.log((await x.read())[9]);
    process.kill(process.pid, "SIGTERM");
    setTimeout(() => {}, 60_000);`,
    // 8 MiB of address space for the stack of each thread
    "ulimit -s 8192; ulimit -v 6000000;",
  );
  expect(stdout).toMatch(/^DeviceError cpu: cannot create 1024 threads: .*; request fewer .*\n1\nsignal\n$/);
  expect(status).toBe(3);
});

test("worker threads have their own devices, and may be terminated at any time", async () => {
  const source = `
    import { parentPort } from "node:worker_threads";
    import { cpu } from ${JSON.stringify(entry)};
    ${setUp}
    parentPort.postMessage((await x.read())[5]);
    for (let i = 0; i < 5000; i++) device.kernels.unary("gelu", x, x);
    x.read();
    parentPort.postMessage("busy");`;
  for (let i = 0; i < 3; i++) {
    const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(source)}`));
    const messages: unknown[] = [];
    await new Promise<void>((resolve, reject) => {
      worker.on("error", reject);
      worker.on("message", (message) => {
        messages.push(message);
        if (message === "busy") resolve();
      });
    });
    await worker.terminate();
    expect(messages).toEqual([1, "busy"]);
  }
  using device = cpu({ threads: 1 });
  using x = device.empty([1], "float32");
  device.kernels.fill(x, 3);
  expect((await x.read())[0]).toBe(3);
});
