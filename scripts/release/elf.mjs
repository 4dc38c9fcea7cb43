// What a shared library of Linux demands of its host, as its ELF file states it: libraries, and versions of their symbols.
import { readFileSync } from "node:fs";

/** The newest versions that an addon may demand: those of RHEL 8 and Debian 10, with which Node 20 begins, too. Decision 0045. */
export const NEWEST = { GLIBC: "2.28", GCC: "7.0.0" };

/** What Node itself is linked with, or what belongs to glibc. */
const LIBRARIES = /^(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux-x86-64|ld-linux-aarch64)\.so\.\d$/;

const SECTION = { dynamic: 6, versionNeeds: 0x6ffffffe };
const NEEDED = 1n;

/** `{ machine, libraries, versions }`: "x64" or "arm64", ["libc.so.6"], ["GLIBC_2.17", …]. Sections are read, as of a 64-bit file. */
export function demandsOf(bytes) {
  if (bytes.readUInt32BE(0) !== 0x7f454c46 || bytes[4] !== 2 || bytes[5] !== 1) {
    throw new Error("elf: expected a 64-bit little-endian ELF file, received a different file");
  }
  const sections = sectionsOf(bytes);
  const names = (section) => (offset) => textAt(bytes, sections[section.link].offset + offset);
  const dynamic = sections.filter(({ type }) => type === SECTION.dynamic);
  const needs = sections.filter(({ type }) => type === SECTION.versionNeeds);
  return {
    machine: { 62: "x64", 183: "arm64" }[bytes.readUInt16LE(18)],
    libraries: dynamic.flatMap((section) => librariesIn(bytes, section, names(section))),
    versions: needs.flatMap((section) => versionsIn(bytes, section, names(section))),
  };
}

/** Why the library at `path` would not load on some host of the platform, "linux-x64", one sentence each. */
export function portabilityFaults(path, platform, newest = NEWEST) {
  const { machine, libraries, versions } = demandsOf(readFileSync(path));
  const other = `linux-${machine}` === platform ? [] : [`the file is for linux-${machine}`];
  const unexpectedLibraries = libraries
    .filter((name) => !LIBRARIES.test(name))
    .map((name) => `the file links with ${name}`);
  const tooNewVersions = versions
    .filter((version) => !isAtMost(version, newest))
    .map((version) => `it demands ${version}`);
  return [...other, ...unexpectedLibraries, ...tooNewVersions];
}

/** Whether a version, "GLIBC_2.17", is among those of its library up to the newest. */
export function isAtMost(version, newest) {
  const [, library, number] = /^(.*?)_([\d.]+)$/.exec(version) ?? [];
  return newest[library] !== undefined && compareVersions(number, newest[library]) <= 0;
}

/** As numbers between dots: negative if `a` is older. */
export function compareVersions(a, b) {
  const [left, right] = [a, b].map((text) => text.split(".").map(Number));
  const i = left.findIndex((part, i) => part !== (right[i] ?? 0));
  return i < 0 ? left.length - right.length : left[i] - (right[i] ?? 0);
}

function sectionsOf(bytes) {
  const start = Number(bytes.readBigUInt64LE(40));
  const [size, count] = [bytes.readUInt16LE(58), bytes.readUInt16LE(60)];
  return Array.from({ length: count }, (_, i) => {
    const at = start + i * size;
    return {
      type: bytes.readUInt32LE(at + 4),
      offset: Number(bytes.readBigUInt64LE(at + 24)),
      size: Number(bytes.readBigUInt64LE(at + 32)),
      link: bytes.readUInt32LE(at + 40),
      info: bytes.readUInt32LE(at + 44),
    };
  });
}

function librariesIn(bytes, { offset, size }, nameAt) {
  const entries = Array.from({ length: size / 16 }, (_, i) => offset + 16 * i);
  return entries
    .filter((at) => bytes.readBigInt64LE(at) === NEEDED)
    .map((at) => nameAt(Number(bytes.readBigUInt64LE(at + 8))));
}

/** A list of libraries, each with a list of versions: offsets lead from one to the next. */
function versionsIn(bytes, { offset, info }, nameAt) {
  const found = [];
  for (let library = offset, i = 0; i < info; i++, library += bytes.readUInt32LE(library + 12)) {
    let version = library + bytes.readUInt32LE(library + 8);
    for (let n = bytes.readUInt16LE(library + 2); n > 0; n--, version += bytes.readUInt32LE(version + 12)) {
      found.push(nameAt(bytes.readUInt32LE(version + 8)));
    }
  }
  return found;
}

function textAt(bytes, offset) {
  return bytes.toString("latin1", offset, bytes.indexOf(0, offset));
}
