import { UsageError } from "../errors.ts";
import { COLOR_SETTINGS, type ColorSetting } from "../output/color.ts";
import { type CommandLine, parseCommandLine, type RawValue } from "../options/parse.ts";
import type { SourcedValue } from "../options/sources.ts";
import { COLOR_OPTION, type CommandSpec, formatOptionRows } from "../options/specs.ts";
import { OptionValues } from "../options/values.ts";

const MIN_INTERVAL_MS = 100;

const MOSAIC_TOP_SPEC: CommandSpec = {
  name: "mosaic-top",
  hints: {},
  options: [
    { name: "interval", kind: "value", value: "TIME", default: "1s", helpText: "time between samples" },
    { name: "once", kind: "flag", helpText: "print one sample of one interval and exit" },
    { name: "json", kind: "flag", helpText: "print one JSON object per sample" },
    {
      name: "prometheus",
      kind: "value",
      value: "PORT",
      helpText: "serve samples at http://127.0.0.1:PORT/metrics instead of printing them; 0: any free port",
    },
    COLOR_OPTION,
    { name: "help", kind: "flag", shortName: "h", helpText: "show this help" },
    { name: "version", kind: "flag", shortName: "V", helpText: "the version" },
  ],
};

/** Settings from the command line. */
export interface TopSettings {
  /** A run id or its prefix, a log directory, or a socket; undefined for the only running job. */
  readonly job: string | undefined;
  readonly intervalMs: number;
  readonly once: boolean;
  readonly json: boolean;
  readonly prometheusPort: number | undefined;
  readonly color: ColorSetting;
}

/**
 * Parses the command line. Options may precede and follow the job. Returns the text to print for `--help` and
 * `--version`.
 */
export function parseTopSettings(argv: readonly string[], version: string): TopSettings | string {
  const leadingOptions = parseCommandLine(argv, MOSAIC_TOP_SPEC);
  const trailingOptions: CommandLine = parseCommandLine(leadingOptions.args, MOSAIC_TOP_SPEC);
  if (trailingOptions.entry !== undefined)
    throw new UsageError(
      `expected one job, received "${leadingOptions.entry}" and "${trailingOptions.entry}" (mosaic-top --help)`,
    );
  const values = new OptionValues(resolveTopSources(new Map([...leadingOptions.options, ...trailingOptions.options])));
  if (values.flag("help")) return topHelp();
  if (values.flag("version")) return `mosaic-top ${version}, Node ${process.versions.node}\n`;
  const intervalMs = values.durationMs("interval") ?? 0;
  if (intervalMs < MIN_INTERVAL_MS)
    throw values.invalidValueError("interval", `a time of at least ${MIN_INTERVAL_MS}ms`);
  return {
    ...{ job: leadingOptions.entry, intervalMs, once: values.flag("once"), json: values.flag("json") },
    prometheusPort: values.count("prometheus", 0, 65_535),
    color: values.choice("color", COLOR_SETTINGS),
  };
}

function resolveTopSources(flags: ReadonlyMap<string, RawValue>): ReadonlyMap<string, SourcedValue> {
  return new Map(
    MOSAIC_TOP_SPEC.options.map(({ name, default: defaultValue }): [string, SourcedValue] => {
      const value = flags.get(name);
      return [name, value === undefined ? { value: defaultValue, source: "default" } : { value, source: `--${name}` }];
    }),
  );
}

function topHelp(): string {
  return `Usage: mosaic-top [job] [options]

Shows the activity of each rank in a running job: position, step time, waiting share, bytes per second and memory, and the
slowest rank. The job is specified by its run id or a prefix of the run id, its log directory, or the socket of its
control-plane agent; the default is the only job of this user on this host.

${formatOptionRows(MOSAIC_TOP_SPEC.options)}

TIME is 500ms, 30s, 2m or 1h; a number without a unit is in seconds.
Exit code: 0 after the job has ended, 2 usage error or unknown job, 75 connection failed or port in use.
`;
}
