// Creates an archive that runs on a bare Linux machine with a GPU, without network, Node.js or npm.
//
//   npm run bundle -- [--out FILE]        (after a build; FILE defaults to build/mosaic-<version>-<platform>.tar.gz)
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { archive } from "./bundle/archive.mjs";
import { stage } from "./bundle/stage.mjs";
import { listPackages } from "./workspace.mjs";

const MAX_ARCHIVE_MIB = 60;
const MIB = 2 ** 20;
const root = fileURLToPath(new URL("..", import.meta.url));

const { values } = parseArgs({ options: { out: { type: "string" } } });
const name = `mosaic-${listPackages(root)[0].manifest.version}-${process.platform}-${process.arch}`;
const out = resolve(values.out ?? join(root, "build", `${name}.tar.gz`));

const directory = mkdtempSync(join(tmpdir(), "mosaic-bundle-"));
try {
  const startTime = performance.now();
  const notes = stage(root, join(directory, "mosaic"));
  for (const note of notes) console.log(`note: ${note}`);
  archive(directory, "mosaic", out);
  const sizeMib = statSync(out).size / MIB;
  console.log(`${out}: ${sizeMib.toFixed(1)} MiB, in ${((performance.now() - startTime) / 1000).toFixed(0)} s`);
  if (sizeMib > MAX_ARCHIVE_MIB) {
    console.error(
      `expected an archive of at most ${MAX_ARCHIVE_MIB} MiB, received ${sizeMib.toFixed(1)} MiB; list its largest files: tar -tvf ${out} | sort -k3 -n | tail`,
    );
    process.exitCode = 1;
  }
} finally {
  rmSync(directory, { recursive: true, force: true });
}
