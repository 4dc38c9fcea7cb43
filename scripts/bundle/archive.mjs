import { spawnSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { dirname } from "node:path";

/**
 * Options for a reproducible archive (sorted, owner 0, fixed timestamp). The same contents give the same bytes on any
 * machine.
 */
const REPRODUCIBLE_TAR_OPTIONS = [
  "--sort=name",
  "--mtime=@1000000000",
  "--owner=0",
  "--group=0",
  "--numeric-owner",
  "--format=gnu",
];

/**
 * Packs the directory `name` of `parent` into the gzipped tar `out`. The format is gzip, because a bare machine may
 * lack other ones.
 */
export function archive(parent, name, out) {
  mkdirSync(dirname(out), { recursive: true });
  const args = [
    "-C",
    parent,
    ...REPRODUCIBLE_TAR_OPTIONS,
    "--mode=go=rX,u+rw",
    "--use-compress-program=gzip -n6",
    "-cf",
    out,
    name,
  ];
  const { status, stderr } = spawnSync("tar", args, { encoding: "utf8" });
  if (status !== 0) throw new Error(`tar failed: ${stderr}`);
}
