// Unpacks the parts of Debian 11 (glibc 2.31) that addons are linked against and run in, into
// build/sysroots/<platform>. Does not require root, because packages are unpacked, not installed. They are downloaded
// by an apt with its own lists, which verifies signatures and hashes. Proxies and credentials are those of the host's
// apt.
//
//   node scripts/release/sysroot.mjs [linux-x64] [linux-arm64]        MOSAIC_DEBIAN_MIRROR is the URL of another mirror
import { spawnSync } from "node:child_process";
import { existsSync, lstatSync, mkdirSync, readdirSync, readlinkSync, renameSync, rmSync } from "node:fs";
import { symlinkSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));
const MIRROR = process.env.MOSAIC_DEBIAN_MIRROR ?? "http://deb.debian.org/debian";
const SUITE = "bullseye";
const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";

/** Packages that addons are compiled and linked with, and that Node.js needs to run with the sysroot as its root. */
const PACKAGES = ["libc6", "libc6-dev", "linux-libc-dev", "libgcc-s1", "libstdc++6"];

/** Platforms that addons are built for, with their names in Node.js, in Debian and of the compiler. */
export const PLATFORMS = {
  "linux-x64": { debian: "amd64", triple: "x86_64-linux-gnu", processor: "x86_64" },
  "linux-arm64": { debian: "arm64", triple: "aarch64-linux-gnu", processor: "aarch64" },
};

/** Returns the path of the sysroot of a platform. Unpacks it first if it does not exist. */
export function createSysroot(platform, directory = join(root, "build/sysroots")) {
  const sysroot = join(directory, platform);
  if (existsSync(sysroot)) return sysroot;
  const [aptDirectory, partialDirectory] = [`${sysroot}.apt`, `${sysroot}.partial`];
  for (const directoryPath of [aptDirectory, partialDirectory]) {
    rmSync(directoryPath, { recursive: true, force: true });
    mkdirSync(directoryPath, { recursive: true });
  }
  const options = createAptOptions(aptDirectory, PLATFORMS[platform].debian);
  run("apt-get", [...options, "update"], aptDirectory);
  run("apt-get", [...options, "download", ...PACKAGES], aptDirectory);
  for (const file of readdirSync(aptDirectory).filter((name) => name.endsWith(".deb"))) {
    run("dpkg-deb", ["-x", join(aptDirectory, file), partialDirectory], aptDirectory);
  }
  makeLinksRelative(partialDirectory, partialDirectory);
  renameSync(partialDirectory, sysroot);
  rmSync(aptDirectory, { recursive: true });
  return sysroot;
}

/**
 * Returns options with which apt keeps all its files below a directory, for one architecture and one suite. The host's
 * lists do not change.
 */
export function createAptOptions(directory, architecture) {
  for (const path of ["state/lists/partial", "cache/archives/partial"]) {
    mkdirSync(join(directory, path), { recursive: true });
  }
  const [sources, status] = [join(directory, "sources.list"), join(directory, "state/status")];
  writeFileSync(sources, `deb [arch=${architecture} signed-by=${KEYRING}] ${MIRROR} ${SUITE} main\n`);
  writeFileSync(status, "");
  const settings = {
    "APT::Architecture": architecture,
    "APT::Architectures": architecture,
    "APT::Sandbox::User": "root", // has write permission here
    "APT::Update::Error-Mode": "any",
    "Acquire::Languages": "none",
    "Dir::Cache": join(directory, "cache"),
    "Dir::Etc::sourcelist": sources,
    "Dir::Etc::sourceparts": "-",
    "Dir::State": join(directory, "state"),
    "Dir::State::status": status,
  };
  return ["--quiet", ...Object.entries(settings).map(([name, value]) => `--option=${name}=${value}`)];
}

/** Makes absolute links relative. Absolute links, which Debian's libraries have, would point outside of the sysroot. */
export function makeLinksRelative(sysroot, directory) {
  for (const entry of readdirSync(directory, { withFileTypes: true })) {
    const path = join(directory, entry.name);
    if (entry.isDirectory()) makeLinksRelative(sysroot, path);
    if (!lstatSync(path).isSymbolicLink() || !readlinkSync(path).startsWith("/")) continue;
    const target = relative(dirname(path), join(sysroot, readlinkSync(path)));
    rmSync(path);
    symlinkSync(target, path);
  }
}

function run(command, args, cwd) {
  const { status, stdout, stderr, error } = spawnSync(command, args, { cwd, encoding: "utf8" });
  if (status !== 0)
    throw new Error(`sysroot: ${command} ${args.join(" ")} failed: ${error?.message ?? stderr}${stdout}`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const platforms = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(PLATFORMS);
  for (const platform of platforms) console.log(createSysroot(platform));
}
