import { AddonLoadError } from "@mosaic/core";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";

/** An addon to load, with the details for the error message if loading fails. */
export interface AddonFile {
  /** The package that ships the addon, for example "@mosaic/kernels-cpu". */
  readonly packageName: string;
  /** What the addon is, for example "the native CPU device". */
  readonly description: string;
  readonly path: string;
  /** Protocol version of the JavaScript package. The addon's `protocol` must be equal to it. */
  readonly protocol: number;
  /** Tools that are required to build the addon. */
  readonly requirements: string;
}

/** Platforms with published addons, as `<process.platform>-<process.arch>`. They require glibc, not musl. */
const PREBUILT_PLATFORMS: readonly string[] = ["linux-x64", "linux-arm64"];

/** Oldest glibc version that these addons support. */
const MIN_GLIBC_VERSION = "2.28";

/** Returns the name of this platform's directory of prebuilt addons, for example "linux-x64". */
function platformName(): string {
  return `${process.platform}-${process.arch}`;
}

/**
 * Returns the path of the addon `name` for this platform. If MOSAIC_PREBUILDS is set, it names the directory of
 * prebuilt addons. Otherwise this is the directory `prebuilds` of the package whose JavaScript is at `moduleUrl`, or,
 * for a bundle, the directory `prebuilds` next to that JavaScript. The file need not exist.
 *
 * @example
 * ```ts
 * import { findAddon } from "@mosaic/runtime";
 * const path = findAddon("example", "file:///project/node_modules/example/dist/index.js");
 * path.endsWith(`${process.platform}-${process.arch}/example.node`); // => true
 * ```
 */
export function findAddon(name: string, moduleUrl: string): string {
  const file = `${platformName()}/${name}.node`;
  if (process.env.MOSAIC_PREBUILDS) return resolve(process.env.MOSAIC_PREBUILDS, file);
  const candidates = ["../prebuilds/", "prebuilds/"].map((prefix) =>
    fileURLToPath(new URL(`${prefix}${file}`, moduleUrl)),
  );
  return candidates.find((prefix) => existsSync(prefix)) ?? candidates[0]!;
}

/**
 * Loads an addon, and checks that its protocol version is that of the JavaScript package.
 *
 * @example
 * ```ts
 * import { loadAddon } from "@mosaic/runtime";
 * const file = { packageName: "@mosaic/example", description: "an example", path: "/nowhere/example.node" };
 * loadAddon({ ...file, protocol: 1, requirements: "g++ and CMake" }); // throws AddonLoadError
 * ```
 * @throws AddonLoadError that states the remedy for any failure.
 */
export function loadAddon<Native extends { readonly protocol: number }>(file: AddonFile): Native {
  try {
    const native = createRequire(file.path)(file.path) as Native;
    if (native.protocol === file.protocol) return native;
    throw new Error(
      `protocol version mismatch: the addon uses version ${native.protocol}, the JavaScript package uses version ${file.protocol}`,
    );
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === "ERR_DLOPEN_DISABLED") throw addonsDisabledError(file, cause);
    const host = describeHost();
    throw host === undefined
      ? new AddonLoadError(explainLoadFailure(file, cause), { cause })
      : unsupportedHostError(file, host, cause);
  }
}

/** Returns a description of this host if no addon is published for it, else undefined. */
function describeHost(): string | undefined {
  const platform = platformName();
  if (!PREBUILT_PLATFORMS.includes(platform)) return platform;
  const { header } = process.report.getReport() as { readonly header: { readonly glibcVersionRuntime?: string } };
  const glibc = header.glibcVersionRuntime;
  if (glibc === undefined) return `${platform} with musl`;
  return isOlder(glibc, MIN_GLIBC_VERSION) ? `${platform} with glibc ${glibc}` : undefined;
}

function isOlder(version: string, other: string): boolean {
  const [[major = 0, minor = 0], [otherMajor = 0, otherMinor = 0]] = [version, other].map((text) =>
    text.split(".").map(Number),
  ) as [number[], number[]];
  return major < otherMajor || (major === otherMajor && minor < otherMinor);
}

function addonsDisabledError({ packageName, description }: AddonFile, cause: unknown): AddonLoadError {
  const errorDetails = {
    where: `${packageName}: ${description}`,
    expected: "a process that may load native addons",
    received: "one in which Node has disabled them",
    remedy: "omit --no-addons, and under Node's permission model pass --allow-addons",
  };
  return new AddonLoadError(errorDetails, { cause });
}

function unsupportedHostError({ packageName, description }: AddonFile, host: string, cause: unknown): AddonLoadError {
  const errorDetails = {
    where: `${packageName}: ${description}`,
    expected: `${PREBUILT_PLATFORMS.join(" or ")} with glibc ${MIN_GLIBC_VERSION} or newer`,
    received: host,
    remedy:
      "use a host, container or virtual machine with a supported platform; " +
      "@mosaic/core, @mosaic/planner and @mosaic/launcher have no addon and run on all platforms supported by Node",
  };
  return new AddonLoadError(errorDetails, { cause });
}

function explainLoadFailure(file: AddonFile, cause: unknown): string {
  const { packageName, description, path } = file;
  const reason = cause instanceof Error ? cause.message.split("\n")[0] : String(cause);
  const isMissing = !existsSync(path);
  // Published packages contain no sources of addons.
  const isCheckout = existsSync(resolve(path, "../../../native"));
  const prebuilds = process.env.MOSAIC_PREBUILDS;
  const likelyCauses = [
    ...(prebuilds
      ? [`MOSAIC_PREBUILDS is ${prebuilds}: set it to the prebuilds directory of this version, or unset it`]
      : []),
    ...(isCheckout ? listCausesInCheckout(file, isMissing) : listCausesInInstallation(file, isMissing)),
  ];
  return [
    `${packageName}: cannot load ${description} (Node ${process.versions.node}, ${platformName()})`,
    `  file: ${path}${isMissing ? " (does not exist)" : ""}`,
    `  reason: ${reason}`,
    "Likely causes:",
    ...likelyCauses.map((likelyCause) => `  - ${likelyCause}`),
  ].join("\n");
}

function listCausesInCheckout({ packageName, requirements }: AddonFile, isMissing: boolean): readonly string[] {
  const directory = packageName.replace("@mosaic", "packages");
  const command = `\`npm run build:native\` in ${directory} (needs ${requirements})`;
  if (isMissing) return [`the addon was not built: run ${command}`];
  return [
    `the addon and this JavaScript were built from different sources: rebuild it with ${command}`,
    "the addon was built for a different platform, libc or architecture, or with a newer glibc: rebuild it on this host",
  ];
}

function listCausesInInstallation({ packageName }: AddonFile, isMissing: boolean): readonly string[] {
  const reinstall = "delete node_modules and install again";
  if (isMissing) {
    return [
      `the installation of ${packageName} is incomplete: ${reinstall}`,
      "a bundler moved the JavaScript away from the package: copy the package's prebuilds directory next to the bundle, or set MOSAIC_PREBUILDS to its path",
    ];
  }
  return [
    `the installed packages have different versions, which \`npm ls @mosaic/runtime ${packageName}\` lists: install the same version of all`,
    "the addon is of another version, because it was copied next to a bundle or MOSAIC_PREBUILDS names it: copy the prebuilds directory of the installed package",
    `the addon file is damaged: ${reinstall}`,
  ];
}
