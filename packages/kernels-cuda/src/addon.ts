import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { AddonLoadError } from "@mosaic/core";
import type { Bound, KernelCall, KernelCalls } from "@mosaic/core/native";

/** Keeps a native device alive. */
export type External = { readonly __brand: "mosaic.cuda.device" };
/** A mark in a stream. */
export type Event = { readonly __brand: "mosaic.cuda.event" };

/** The exports of native/binding. Arguments travel through the scratch array that `bind` was given. */
export interface Native extends Bound, KernelCalls {
  readonly protocol: number;
  open(): External;
  close(device: External): void;
  account(device: External): void;
  write(values: Float32Array): void;
  read(values: Float32Array): void;
  failure(): readonly [code: number, message: string] | undefined;
  record(): Event;
  wait(event: Event): void;
  takeTrace(): readonly (string | number)[];
  /** Version and name of the driver; then name, compute capability and bytes of each GPU. */
  probe(): readonly string[];
  readonly allocate: KernelCall;
  readonly free: KernelCall;
  readonly memory: KernelCall;
  readonly resetPeak: KernelCall;
  readonly trim: KernelCall;
  readonly synchronize: KernelCall;
  readonly startTrace: KernelCall;
  readonly stopTrace: KernelCall;
}

/** What this JavaScript understands; `kProtocol` in native/binding/addon.h. */
const protocol = 1;

const platform: string = `${process.platform}-${process.arch}`;

/** Where the addon of this platform lies. */
export const addonPath: string = fileURLToPath(
  new URL(`../prebuilds/${platform}/mosaic_kernels_cuda.node`, import.meta.url),
);

/** Loads the addon at `path`; every failure becomes an AddonLoadError that says what to do. It needs no driver. */
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
        "the addon was not built: run `npm run build:native` in packages/kernels-cuda (needs g++ and CMake; nvcc for kernels)",
        `no prebuilt addon exists for ${platform}: the package ships one for linux-x64, build from source elsewhere`,
        "a bundler moved the JavaScript away from its prebuilds folder: mark @mosaic/kernels-cuda as external",
      ]
    : [
        "the addon was built from other sources than this JavaScript: rebuild it with `npm run build:native`",
        "it was built for another platform, libc or architecture: rebuild it on this host",
      ];
  return [
    `@mosaic/kernels-cuda: cannot load the native CUDA device (Node ${process.versions.node}, ${platform})`,
    `  file: ${path}${missing ? " (does not exist)" : ""}`,
    `  reason: ${reason}`,
    "Likely causes:",
    ...causes.map((each) => `  - ${each}`),
  ].join("\n");
}
