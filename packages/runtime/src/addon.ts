import { AddonLoadError } from "@mosaic/core";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";

/** Which addon to load, and its error message if that fails. */
export interface AddonFile {
  /** The package that ships it: "@mosaic/kernels-cpu". */
  readonly packageName: string;
  /** What it is: "the native CPU device". */
  readonly what: string;
  readonly path: string;
  /** What the JavaScript understands: the addon's `protocol` must be the same. */
  readonly protocol: number;
  /** What it takes to build it. */
  readonly needs: string;
}

/** `linux-x64`, as folders of prebuilt addons are called. */
export const platform: string = `${process.platform}-${process.arch}`;

/** Loads an addon; every failure becomes an AddonLoadError that reports what to do. */
export function loadAddon<Native extends { readonly protocol: number }>(file: AddonFile): Native {
  try {
    const native = createRequire(file.path)(file.path) as Native;
    if (native.protocol === file.protocol) return native;
    throw new Error(`it has protocol version ${native.protocol}, this JavaScript ${file.protocol}`);
  } catch (cause) {
    throw new AddonLoadError(explainLoadFailure(file, cause), { cause });
  }
}

function explainLoadFailure({ packageName, what, path, needs }: AddonFile, cause: unknown): string {
  const reason = cause instanceof Error ? cause.message.split("\n")[0] : String(cause);
  const missing = !existsSync(path);
  const folder = packageName.replace("@mosaic", "packages");
  const causes = missing
    ? [
        `the addon was not built: run \`npm run build:native\` in ${folder} (needs ${needs})`,
        `no prebuilt addon exists for ${platform}: the package ships one for linux-x64, build from source elsewhere`,
        `a bundler moved the JavaScript away from its prebuilds folder: mark ${packageName} as external`,
      ]
    : [
        "the addon was built from other sources than this JavaScript: rebuild it with `npm run build:native`",
        "it was built for another platform, libc or architecture: rebuild it with `npm run build:native`",
        "the host's glibc is older than the one it was built with: rebuild it on this host",
        "the file is damaged: remove prebuilds and reinstall",
      ];
  return [
    `${packageName}: cannot load ${what} (Node ${process.versions.node}, ${platform})`,
    `  file: ${path}${missing ? " (does not exist)" : ""}`,
    `  reason: ${reason}`,
    "Likely causes:",
    ...causes.map((each) => `  - ${each}`),
  ].join("\n");
}
