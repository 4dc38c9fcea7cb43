import { spawnSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { dirname } from "node:path";

/** The same contents make the same bytes, on any machine at any time: sorted, owner 0, one timestamp. */
const REPRODUCIBLE_TAR_OPTIONS = [
  "--sort=name",
  "--mtime=@1000000000",
  "--owner=0",
  "--group=0",
  "--numeric-owner",
  "--format=gnu",
];

/** Packs the directory `name` of `parent` into the gzipped tar `out`. gzip, for a bare machine may lack the rest. */
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
