import { execFile } from "node:child_process";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { emulatedLibraries } from "./emulated.ts";

/**
 * Runs a program with `open` in scope, which opens a world of two ranks. Resolves to its output; rejects if it crashes.
 */
async function run(code: string): Promise<{ readonly stdout: string; readonly stderr: string }> {
  const resolveModule = (module: string): string => JSON.stringify(import.meta.resolve(module));
  const script = `const { world } = await import(${resolveModule("../dist/index.js")});
    const { cuda } = await import(${resolveModule("@mosaic/kernels-cuda")});
    const open = () => world(2, { device: () => cuda({ index: 0 }) });
    /** Devices close on separate threads. */
    const collectGarbage = async () => {
      for (let i = 0; i < 5; i++) {
        gc();
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    };
    ${code}`;
  const node = ["--expose-gc", "--input-type=module", "--eval", script];
  const env = { ...process.env, ...emulatedLibraries, MOSAIC_EMULATED_LEAKS: "1" };
  return await promisify(execFile)(process.execPath, node, { env, timeout: 60_000 });
}

test("a disposed device stays open for the ranks that use it, and closes after them", async () => {
  const { stdout, stderr } = await run(`const contexts = await open();
    for (const { device } of contexts) device[Symbol.dispose]();
    await collectGarbage();
    for (const ctx of contexts) ctx.world.barrier().wait();
    await Promise.all(contexts.map((ctx) => ctx.close()));
    process.stdout.write("closed");
    await collectGarbage();`);
  expect(stdout).toBe("closed");
  expect(stderr).toBe("leaked: 0 streams, 0 events, 0 modules, 0 pools, 0 allocations, 0 pinned allocations\n");
});

test("a process exits without an error after a context was garbage-collected that was not closed", async () => {
  const { stdout, stderr } = await run(`await (async () => {
      for (const ctx of await open()) ctx.world.barrier().wait();
    })();
    await collectGarbage();
    process.stdout.write("collected");`);
  expect([stdout, stderr]).toEqual(["collected", ""]);
});
