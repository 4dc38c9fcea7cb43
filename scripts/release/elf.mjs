// Reads the requirements of a Linux shared library on its host from its ELF file: libraries, and versions of their
// symbols.
import { readFileSync } from "node:fs";

/**
 * The newest versions that an addon may require: those of RHEL 8 and Debian 10, which are also the oldest for Node.js
 * 20. Decision 0045.
 */
export const MAX_VERSIONS = { GLIBC: "2.28", GCC: "7.0.0" };

/** Libraries that Node.js itself links, or that belong to glibc. */
const ALLOWED_LIBRARY_PATTERN =
  /^(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux-x86-64|ld-linux-aarch64)\.so\.\d$/;

const SECTION_TYPES = { dynamic: 6, versionNeeds: 0x6ffffffe };
const DT_NEEDED = 1n;

/**
 * Returns `{ machine, libraries, versions }`: "x64" or "arm64", ["libc.so.6"], ["GLIBC_2.17", …]. Sections are parsed
 * as those of a 64-bit file.
 */
export function readRequirements(bytes) {
  if (bytes.readUInt32BE(0) !== 0x7f454c46 || bytes[4] !== 2 || bytes[5] !== 1) {
    throw new Error("elf: expected a 64-bit little-endian ELF file, received a different file");
  }
  const sections = readSections(bytes);
  const createNameReader = (section) => (offset) => readText(bytes, sections[section.link].offset + offset);
  const dynamicSections = sections.filter(({ type }) => type === SECTION_TYPES.dynamic);
  const versionSections = sections.filter(({ type }) => type === SECTION_TYPES.versionNeeds);
  return {
    machine: { 62: "x64", 183: "arm64" }[bytes.readUInt16LE(18)],
    libraries: dynamicSections.flatMap((section) => readLibraries(bytes, section, createNameReader(section))),
    versions: versionSections.flatMap((section) => readVersions(bytes, section, createNameReader(section))),
  };
}

/**
 * Returns a sentence for each reason why the library at `path` would not load on a host of the platform, such as
 * "linux-x64".
 */
export function findPortabilityFaults(path, platform, maxVersions = MAX_VERSIONS) {
  const { machine, libraries, versions } = readRequirements(readFileSync(path));
  const machineFaults =
    `linux-${machine}` === platform ? [] : [`expected a file for ${platform}, received one for linux-${machine}`];
  const libraryFaults = libraries
    .filter((name) => !ALLOWED_LIBRARY_PATTERN.test(name))
    .map((name) => `expected libraries of glibc and libgcc_s, received ${name}`);
  const maxVersionTexts = Object.entries(maxVersions).map(([library, number]) => `${library}_${number}`);
  const versionFaults = versions
    .filter((version) => !isAtMost(version, maxVersions))
    .map((version) => `expected symbol versions up to ${maxVersionTexts.join(", ")}, received ${version}`);
  return [...machineFaults, ...libraryFaults, ...versionFaults];
}

/** Whether a version, such as "GLIBC_2.17", is at most the newest allowed one of its library. */
export function isAtMost(version, maxVersions) {
  const [, library, versionNumber] = /^(.*?)_([\d.]+)$/.exec(version) ?? [];
  return maxVersions[library] !== undefined && compareVersions(versionNumber, maxVersions[library]) <= 0;
}

/** Compares versions as numbers between dots. The result is negative if `a` is older. */
export function compareVersions(a, b) {
  const [leftParts, rightParts] = [a, b].map((text) => text.split(".").map(Number));
  const i = leftParts.findIndex((part, i) => part !== (rightParts[i] ?? 0));
  return i < 0 ? leftParts.length - rightParts.length : leftParts[i] - (rightParts[i] ?? 0);
}

function readSections(bytes) {
  const start = Number(bytes.readBigUInt64LE(40));
  const [size, count] = [bytes.readUInt16LE(58), bytes.readUInt16LE(60)];
  return Array.from({ length: count }, (_, i) => {
    const headerOffset = start + i * size;
    return {
      type: bytes.readUInt32LE(headerOffset + 4),
      offset: Number(bytes.readBigUInt64LE(headerOffset + 24)),
      size: Number(bytes.readBigUInt64LE(headerOffset + 32)),
      link: bytes.readUInt32LE(headerOffset + 40),
      info: bytes.readUInt32LE(headerOffset + 44),
    };
  });
}

function readLibraries(bytes, { offset, size }, readName) {
  const entries = Array.from({ length: size / 16 }, (_, i) => offset + 16 * i);
  return entries
    .filter((entryOffset) => bytes.readBigInt64LE(entryOffset) === DT_NEEDED)
    .map((entryOffset) => readName(Number(bytes.readBigUInt64LE(entryOffset + 8))));
}

/**
 * Reads a linked list of libraries, each with a linked list of versions. Links are offsets from one entry to the next.
 */
function readVersions(bytes, { offset, info }, readName) {
  const versions = [];
  for (let library = offset, i = 0; i < info; i++, library += bytes.readUInt32LE(library + 12)) {
    let version = library + bytes.readUInt32LE(library + 8);
    for (let n = bytes.readUInt16LE(library + 2); n > 0; n--, version += bytes.readUInt32LE(version + 12)) {
      versions.push(readName(bytes.readUInt32LE(version + 8)));
    }
  }
  return versions;
}

function readText(bytes, offset) {
  return bytes.toString("latin1", offset, bytes.indexOf(0, offset));
}
