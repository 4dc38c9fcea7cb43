import { OPTIONS } from "./specs.ts";

/** The text of `--help`. */
export function helpText(): string {
  const rows = OPTIONS.map(({ name, short, value, default: byDefault, help }) => {
    const written = `${short === undefined ? "    " : `-${short}, `}--${name}${value === undefined ? "" : ` ${value}`}`;
    const shown = byDefault === undefined || byDefault.trim() !== byDefault ? "" : ` [${byDefault}]`;
    return `  ${written.padEnd(36)} ${help}${shown}`;
  });
  return `Usage: mosaic-run [options] <entry> [entry arguments]

Starts the ranks of a job on this machine, watches them, and ends them together.
Options end at the entry; everything after it is the entry's own.

${rows.join("\n")}

Every option is also read from MOSAIC_<NAME> (but --node-arg, --import and --env), then mosaic.launch.json, then
PET_<NAME> or SLURM.
TIME is 500ms, 30s, 2m or 1h; a number without a unit is seconds. Ranks have an empty stdin.
Exit code: 0, the first failing rank's, 128 + signal, 2 usage, 75 port taken, 70 launcher bug, 124 timeout.
`;
}
