// Unpacks the parts of Debian 11 (glibc 2.31) that addons are linked against and run in, into build/sysroots/<platform>.
// Needs no root: packages are unpacked, not installed. The archive's signature is checked, then the hash of each package.
//
//   node scripts/release/sysroot.mjs [linux-x64] [linux-arm64]        MOSAIC_DEBIAN_MIRROR names another mirror
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, lstatSync, mkdirSync, mkdtempSync, readdirSync, readlinkSync, rmSync } from "node:fs";
import { renameSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));
const MIRROR = process.env.MOSAIC_DEBIAN_MIRROR ?? "http://deb.debian.org/debian";
const SUITE = "bullseye";
const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";

/** What addons are compiled and linked with, and what Node needs to run in the same directory as its root. */
const PACKAGES = ["libc6", "libc6-dev", "linux-libc-dev", "libgcc-s1", "libstdc++6"];

/** The platforms that addons are built for, as Node, Debian and the compiler name them. */
export const PLATFORMS = {
  "linux-x64": { debian: "amd64", triple: "x86_64-linux-gnu", processor: "x86_64" },
  "linux-arm64": { debian: "arm64", triple: "aarch64-linux-gnu", processor: "aarch64" },
};

/** Where the sysroot of a platform lies; unpacks it first if it is not there. */
export async function sysrootOf(platform, directory = join(root, "build/sysroots")) {
  const { debian } = PLATFORMS[platform];
  const at = join(directory, platform);
  if (existsSync(at)) return at;
  const release = await fetchRelease();
  const list = `main/binary-${debian}/Packages.xz`;
  const compressed = await download(`dists/${SUITE}/${list}`, hashesOf(release).get(list));
  const index = decompress(compressed);
  const partial = `${at}.partial`;
  rmSync(partial, { recursive: true, force: true });
  mkdirSync(partial, { recursive: true });
  for (const { path, sha256 } of entriesOf(index, PACKAGES)) unpack(await download(path, sha256), partial);
  makeLinksRelative(partial, partial);
  renameSync(partial, at);
  return at;
}

/** The hashes that a Release file lists, by path. */
export function hashesOf(release) {
  const [, section = ""] = /^SHA256:\n((?: .*\n?)+)/m.exec(release) ?? [];
  const rows = section.matchAll(/^ ([0-9a-f]{64}) +\d+ (\S+)$/gm);
  return new Map([...rows].map(([, hash, path]) => [path, hash]));
}

/** Path and hash of each named package in an index of packages. */
export function entriesOf(index, names) {
  const paragraphs = new Map(index.split("\n\n").map((text) => [/^Package: (.*)$/m.exec(text)?.[1], text]));
  return names.map((name) => {
    const text = paragraphs.get(name);
    if (text === undefined) throw new Error(`sysroot: expected the package ${name} in ${SUITE}, received none`);
    return { path: /^Filename: (.*)$/m.exec(text)[1], sha256: /^SHA256: (.*)$/m.exec(text)[1] };
  });
}

/** Absolute links, as Debian's libraries have them, would lead out of the sysroot. */
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

/** The suite's Release file, whose signature is one of Debian's. */
async function fetchRelease() {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-release-"));
  try {
    const [signed, plain] = [join(directory, "InRelease"), join(directory, "Release")];
    writeFileSync(signed, await download(`dists/${SUITE}/InRelease`));
    return run("gpgv", ["--keyring", KEYRING, "--output", plain, signed]) && run("cat", [plain]).toString();
  } finally {
    rmSync(directory, { recursive: true });
  }
}

async function download(path, sha256) {
  const response = await fetch(`${MIRROR}/${path}`);
  if (!response.ok) throw new Error(`sysroot: ${MIRROR}/${path} answered ${response.status}`);
  const bytes = Buffer.from(await response.arrayBuffer());
  const received = createHash("sha256").update(bytes).digest("hex");
  if (sha256 !== undefined && received !== sha256) {
    throw new Error(`sysroot: ${path}: expected the hash ${sha256}, received ${received}`);
  }
  return bytes;
}

const decompress = (bytes) => run("xz", ["-dc"], bytes).toString();

function unpack(bytes, directory) {
  const archive = `${directory}.deb`;
  writeFileSync(archive, bytes);
  run("dpkg-deb", ["-x", archive, directory]);
  rmSync(archive);
}

function run(command, args, input) {
  const { status, stdout, stderr, error } = spawnSync(command, args, { input, maxBuffer: 1 << 28 });
  if (status !== 0) throw new Error(`sysroot: ${command} failed: ${error?.message ?? stderr}`);
  return stdout;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const platforms = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(PLATFORMS);
  for (const platform of platforms) console.log(await sysrootOf(platform));
}
