import { spawnSync } from "node:child_process";
import { parseArgs } from "node:util";
import { CreateError, createProject, templates } from "./index.ts";
import { packageVersion } from "./version.ts";

const options = {
  template: { type: "string", short: "t", default: "train" },
  "no-install": { type: "boolean", default: false },
  help: { type: "boolean", short: "h", default: false },
  version: { type: "boolean", short: "V", default: false },
} as const;

const rows = Object.entries(templates).map(([name, description]) => `  ${name.padEnd(10)} ${description}`);
const help = `npm create @mosaic <folder> -- [options]

options:
  -t, --template <name>  template of the project [train]
  --no-install           create the project without installing its packages
  -h, --help             show this help
  -V, --version          show the version of @mosaic/create

templates (the first is the default):
${rows.join("\n")}
`;

/** Returns the package manager that started this process, from its user agent: "npm/11.0.0 node/v20.19.0 …". */
function detectPackageManager(): string {
  return /^(npm|pnpm|yarn)\//.exec(process.env.npm_config_user_agent ?? "")?.[1] ?? "npm";
}

/** States how to install packages that are not in a registry. */
function tarballHint(packageManagerName: string): string {
  const add = packageManagerName === "npm" ? "npm install" : `${packageManagerName} add`;
  return `If the @mosaic packages are not in your registry, first install the tarballs that \`npm run pack\` of a clone writes:

  ${add} <clone>/build/packages/*.tgz`;
}

/** Quotes a path for a POSIX shell, unless all its characters are literal there. */
function quoteForShell(path: string): string {
  return /^[\w./:@%+=-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
}

function parseCommandLine(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options, allowPositionals: true });
  } catch (error) {
    // Node's advice on positional arguments that begin with "-" follows the first sentence.
    const [fault] = (error as Error).message.split(/\. To specify a positional argument|\.\n/);
    throw new CreateError(`${fault}; npm create @mosaic -- --help lists all options`, { cause: error });
  }
}

function main(): number {
  const { values, positionals } = parseCommandLine(process.argv.slice(2));
  const [directory] = positionals;
  if (values.help || values.version) {
    process.stdout.write(values.help ? help : `${packageVersion()}\n`);
    return 0;
  }
  if (directory === undefined || positionals.length > 1) {
    // npm consumes options that are not preceded by `--`, and passes their values as further arguments.
    throw new CreateError(
      `expected one folder, received ${positionals.join(", ") || "none"}; pass options after --, such as ` +
        "npm create @mosaic my-project -- --template plan",
    );
  }
  const path = createProject({ directory, template: values.template });
  // `cd -x` parses the name as an option.
  const changeDirectory = `cd ${quoteForShell(directory.startsWith("-") ? `./${directory}` : directory)}`;
  const packageManagerName = detectPackageManager();
  if (!values["no-install"]) {
    const { status, error } = spawnSync(packageManagerName, ["install"], {
      cwd: path,
      stdio: "inherit",
      shell: process.platform === "win32",
    });
    if (status !== 0) {
      process.stderr.write(
        `\n${path}: the project was created, but ${packageManagerName} install failed (${error?.message ?? "see above"}); install packages that are not in the ` +
          `registry, such as tarballs, manually, then run:\n\n  ${changeDirectory} && ${packageManagerName} install && ${packageManagerName} start\n`,
      );
      return status ?? 1;
    }
  }
  const steps = [
    changeDirectory,
    ...(values["no-install"] ? [`${packageManagerName} install`] : []),
    `${packageManagerName} start`,
  ];
  process.stdout.write(`\n${path}: ${templates[values.template]}\n\n  ${steps.join(" && ")}\n`);
  if (values["no-install"]) process.stdout.write(`\n${tarballHint(packageManagerName)}\n`);
  return 0;
}

try {
  process.exitCode = main();
} catch (error) {
  if (!(error instanceof CreateError)) throw error;
  process.stderr.write(`@mosaic/create: ${error.message}\n`);
  process.exitCode = 2;
}
