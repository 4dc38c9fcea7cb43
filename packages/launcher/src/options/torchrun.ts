const OUTPUT = "every rank's output is shown and logged as it is; see --console-ranks and --log-dir";
const IDLE = "torchrun's; it would change nothing here, so leave it out";

/** What takes the place of torchrun's options that the launcher does not have. */
const INSTEAD: Readonly<Record<string, string>> = {
  "no-python": "use --exec, which runs any program",
  m: "use --exec python -m <module>",
  module: "use --exec python -m <module>",
  r: OUTPUT,
  redirects: OUTPUT,
  t: OUTPUT,
  tee: OUTPUT,
  "local-ranks-filter": "use --console-ranks",
  "shutdown-timeout": "use --grace, and --failure-grace",
  "local-addr": IDLE,
  "monitor-interval": IDLE,
  "rdzv-conf": IDLE,
  "start-method": IDLE,
};

/** What to write instead of an option of torchrun, named in kebab-case; undefined for any other. */
export const insteadOf = (name: string): string | undefined =>
  Object.hasOwn(INSTEAD, name) ? INSTEAD[name] : undefined;
