import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { AddonLoadError } from "@mosaic/core";
import { expect, onTestFinished, test } from "vitest";
import { libraryCandidates } from "../src/addon.ts";

// Each case runs in a separate process, because a process loads UCX only once. None of them needs UCX.
const connect = `const { cpu } = await import(${resolveModule("@mosaic/kernels-cpu")});
  await world(2, { device: () => cpu({ threads: 1 }), timeout: 5 })`;

test("a missing UCX is reported with the library that was searched for and what to install", async () => {
  const { name, message } = await getError(connect, { MOSAIC_UCX_LIBRARY: "/nonexistent/libucp.so.0" });
  expect(name).toBe(AddonLoadError.name);
  expect(message).toMatch(
    /^ucx: no usable UCX library: \/nonexistent\/libucp\.so\.0: .*; install UCX 1\.13 or newer: apt-get install libucx0, .*set MOSAIC_UCX_LIBRARY to the library's path$/,
  );
});

test("a library that is not UCX is rejected with the missing symbol", async () => {
  const { message } = await getError("ucxSystem()", { MOSAIC_UCX_LIBRARY: "libdl.so.2" });
  expect(message).toMatch(/no usable UCX library: libdl\.so\.2 without the symbol ucp_get_version; install UCX/);
});

test("a UCX that is too old is rejected with its version", async () => {
  const library = await compileLibrary(
    "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 1, *b = 12, *c = 3; }",
  );
  const { message } = await getError("ucxSystem()", { MOSAIC_UCX_LIBRARY: library });
  expect(message).toMatch(
    /^ucx: no usable UCX library: .*libucp\.so\.0 version 1\.12\.3, which is too old; install UCX 1\.13/,
  );
});

test("variables that UCX reads are set only while it is loaded, and values of the user are kept", async () => {
  const names = [
    "UCX_ERROR_SIGNALS",
    "UCX_HANDLE_ERRORS",
    "UCX_DEBUG_SIGNO",
    "UCX_MEM_EVENTS",
    "UCX_WARN_UNUSED_ENV_VARS",
    "UCX_LOG_LEVEL",
    "UCX_LOG_FILE",
  ];
  const report = `fprintf(stderr, "%s=%s\\n", name, getenv(name) ? getenv(name) : "unset");`;
  const library = await compileLibrary(`#include <stdio.h>
    #include <stdlib.h>
    __attribute__((constructor)) static void load(void) {
      const char *names[] = {${names.map((name) => JSON.stringify(name)).join()}};
      for (int i = 0; i < ${names.length}; i++) { const char *name = names[i]; ${report} }
    }`);
  const code = `try { ucxSystem(); } catch {}
    throw new Error(JSON.stringify(Object.keys(process.env).filter((name) => name.startsWith("UCX_"))))`;
  const { message, stderr } = await getError(code, { MOSAIC_UCX_LIBRARY: library, UCX_LOG_LEVEL: "info" });
  expect(stderr.trim().split("\n")).toEqual([
    "UCX_ERROR_SIGNALS=",
    "UCX_HANDLE_ERRORS=none",
    "UCX_DEBUG_SIGNO=0",
    "UCX_MEM_EVENTS=n",
    "UCX_WARN_UNUSED_ENV_VARS=n",
    "UCX_LOG_LEVEL=info",
    "UCX_LOG_FILE=stderr",
  ]);
  expect(JSON.parse(message)).toEqual(["UCX_LOG_LEVEL"]);
});

test.each(["libucp.so.0", "libucp.so"])("UCX is found in Python's packages as %s", (name) => {
  const directory = createTemporaryDirectory();
  const file = join(directory, "libucx/lib", name);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, "");
  expect(libraryCandidates({ PYTHONPATH: directory })).toContain(file);
});

function createTemporaryDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-ucx-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  return directory;
}

/** Compiles a library from C source. Resolves to its path. */
async function compileLibrary(source: string): Promise<string> {
  const directory = createTemporaryDirectory();
  const [input, output] = [join(directory, "ucp.c"), join(directory, "libucp.so.0")];
  writeFileSync(input, source);
  await promisify(execFile)(process.env.CC ?? "cc", ["-shared", "-fPIC", "-o", output, input]);
  return output;
}

function resolveModule(module: string): string {
  return JSON.stringify(import.meta.resolve(module));
}

/** Resolves to the error that `code` throws in a process with this environment. The process is killed if it hangs. */
async function getError(
  code: string,
  env: Readonly<Record<string, string>>,
): Promise<{ name: string; message: string; stderr: string }> {
  const script = `const { ucxSystem, world } = await import(${resolveModule("../dist/index.js")});
    let thrown = { name: "nothing", message: "" };
    try { ${code}; } catch ({ name, message }) { thrown = { name, message }; }
    process.stdout.write(JSON.stringify(thrown), () => process.exit());`;
  const node = ["--input-type=module", "--eval", script];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, node, {
    env: { ...process.env, ...env },
    timeout: 60_000,
  });
  return { ...(JSON.parse(stdout) as { name: string; message: string }), stderr };
}
