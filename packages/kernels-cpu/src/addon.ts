import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { AddonLoadError } from "@mosaic/core";
import type { Bound, KernelCall, KernelCalls } from "@mosaic/core/native";

/** Keeps a native device alive. */
export type External = { readonly __brand: "mosaic.device" };

/**
 * The exports of native/binding. Arguments travel through the scratch array that `bind` was given, so most
 * calls take none.
 */
export interface Native extends Bound, KernelCalls {
  readonly protocol: number;
  open(): External;
  close(device: External): void;
  account(device: External): void;
  write(values: Float32Array): void;
  read(values: Float32Array): void;
  failure(): readonly [code: number, message: string] | undefined;
  takeTrace(): readonly (string | number)[];
  features(): string;
  /** For tests: makes a stream fail through its handle. */
  fail(stream: bigint, message: string): void;
  readonly allocate: KernelCall;
  readonly free: KernelCall;
  readonly memory: KernelCall;
  readonly resetPeak: KernelCall;
  readonly trim: KernelCall;
  readonly synchronize: KernelCall;
  readonly record: KernelCall;
  readonly wait: KernelCall;
  readonly startTrace: KernelCall;
  readonly stopTrace: KernelCall;
  readonly fmaPeak: KernelCall;
}

/** What this JavaScript understands; `kProtocol` in native/binding/addon.h. */
const protocol = 2;

const platform: string = `${process.platform}-${process.arch}`;

/** Where the addon of this platform lies. */
export const addonPath: string = fileURLToPath(
  new URL(`../prebuilds/${platform}/mosaic_kernels_cpu.node`, import.meta.url),
);

/** Loads the addon at `path`; every failure becomes an AddonLoadError that says what to do. */
export function loadAddon(path: string = addonPath): Native {
  try {
    const native = createRequire(import.meta.url)(path) as Native;
    if (native.protocol === protocol) return native;
    throw new Error(`it speaks protocol ${native.protocol}, this JavaScript protocol ${protocol}`);
  } catch (cause) {
    throw new AddonLoadError(explain(path, cause), { cause });
  }
}

function explain(path: string, cause: unknown): string {
  const reason = cause instanceof Error ? cause.message.split("\n")[0] : String(cause);
  const missing = !existsSync(path);
  const causes = missing
    ? [
        "the addon was not built: run `npm run build:native` in packages/kernels-cpu (needs g++ and CMake)",
        `no prebuilt addon exists for ${platform}: the package ships one for linux-x64, build from source elsewhere`,
        "a bundler moved the JavaScript away from its prebuilds folder: mark @mosaic/kernels-cpu as external",
      ]
    : [
        "the addon was built from other sources than this JavaScript: rebuild it with `npm run build:native`",
        "it was built for another platform, libc or architecture: rebuild it with `npm run build:native`",
        "the host's glibc is older than the one it was built with: rebuild it on this host",
        "the file is damaged: remove prebuilds and reinstall",
      ];
  return [
    `@mosaic/kernels-cpu: cannot load the native CPU device (Node ${process.versions.node}, ${platform})`,
    `  file: ${path}${missing ? " (does not exist)" : ""}`,
    `  reason: ${reason}`,
    "Likely causes:",
    ...causes.map((each) => `  - ${each}`),
  ].join("\n");
}
