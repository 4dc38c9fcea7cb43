import { spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, onTestFinished, test } from "vitest";
import { CreateError, createProject, templates } from "../dist/index.js";

const packageRoot = fileURLToPath(new URL("..", import.meta.url));
const read = (path: string) => readFileSync(path, "utf8");
const manifestOf = (path: string) =>
  JSON.parse(read(join(path, "package.json"))) as Record<string, Record<string, string>>;

function temporary(): string {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-create-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  return directory;
}

const create = (args: string[], env: NodeJS.ProcessEnv = {}) =>
  spawnSync(process.execPath, [join(packageRoot, "bin/create.js"), ...args], {
    encoding: "utf8",
    env: { ...process.env, ...env },
  });

test.each(Object.keys(templates))("%s: creates a project with the package versions of this release", (template) => {
  const path = createProject({ directory: join(temporary(), "My Project"), template });
  const { name, dependencies, devDependencies, scripts } = manifestOf(path);
  const { version } = manifestOf(packageRoot);
  expect(name).toBe("my-project");
  expect(Object.values(dependencies!)).toEqual(Object.keys(dependencies!).map(() => `^${version}`));
  const repository = manifestOf(join(packageRoot, "../..")).devDependencies!;
  for (const [tool, pinned] of Object.entries(devDependencies!)) expect(pinned).toBe(repository[tool]);
  const program = /(\S+\.ts)$/.exec(scripts!.start!)![1]!;
  expect(existsSync(join(path, program))).toBe(true);
  expect(read(join(path, ".gitignore"))).toContain("node_modules");
  expect(existsSync(join(path, "gitignore"))).toBe(false);
  expect(read(join(path, "tsconfig.json"))).toContain('"allowImportingTsExtensions": true');
});

test("the manifest of each template lists the packages that it imports", () => {
  for (const template of Object.keys(templates)) {
    const path = join(packageRoot, "templates", template);
    const { dependencies } = manifestOf(path);
    for (const file of readdirSync(path).filter((each) => each.endsWith(".ts"))) {
      const imported = [...read(join(path, file)).matchAll(/from "(@mosaic\/[\w-]+)/g)].map(([, name]) => name!);
      for (const name of imported) expect(Object.keys(dependencies!)).toContain(name);
    }
  }
});

test("the transport template equals the minimal transport of collectives-local", () => {
  const ours = join(packageRoot, "../collectives-local/native/test/minimal_transport.cc");
  expect(read(join(packageRoot, "templates/transport/transport.cc"))).toBe(read(ours));
});

test("the root README contains the backend template, including the run of its suites", () => {
  const backend = read(join(packageRoot, "templates/backend/backend.ts"));
  const untilRun = backend.slice(0, backend.indexOf("console.log"));
  expect(read(join(packageRoot, "../../README.md"))).toContain(untilRun);
  expect(untilRun).toContain("await run()");
});

test("the README lists every template", () => {
  for (const [name, what] of Object.entries(templates)) {
    expect(read(join(packageRoot, "README.md"))).toContain(`| \`${name}\` | ${what} |`);
  }
});

test("rejects unknown templates, folders that are not empty, and invalid paths", () => {
  const directory = temporary();
  expect(() => createProject({ directory, template: "toString" })).toThrow(
    /expected one of train, .* received toString/,
  );
  expect(() => createProject({ directory: "", template: "train" })).toThrow(/expected a path, received ""$/);
  writeFileSync(join(directory, "mine.txt"), "");
  expect(() => createProject({ directory, template: "train" })).toThrow(/expected an empty folder/);
  expect(() => createProject({ directory: join(directory, "mine.txt"), template: "train" })).toThrow(CreateError);
  expect(() => createProject({ directory: join(directory, "mine.txt/below"), template: "train" })).toThrow(
    /createProject: cannot create the folder .*mine.txt.below: .*; pass a different folder/,
  );
  expect(readdirSync(directory)).toEqual(["mine.txt"]);
});

test("a project that cannot be written is an error of one line, and leaves the folder empty", () => {
  for (const name of ["new", "existing"]) {
    const path = join(temporary(), name);
    if (name === "existing") mkdirSync(path);
    const command = "trap '' XFSZ; ulimit -f 0; \"$@\"";
    const args = [process.execPath, join(packageRoot, "bin/create.js"), path, "--no-install"];
    const { status, stdout, stderr } = spawnSync("sh", ["-c", command, "sh", ...args], { encoding: "utf8" });
    expect([status, stdout]).toEqual([2, ""]);
    expect(stderr).toMatch(
      /^@mosaic\/create: createProject: cannot write the files of the project to \S+: EFBIG: .*; free space, .*\n$/,
    );
    expect(readdirSync(path)).toEqual([]);
    createProject({ directory: path, template: "train" });
  }
});

test.each([
  [".hidden", "hidden"],
  ["Größe!", "gr-e"],
  ["日本語", "project"],
  [`-${"a".repeat(240)}`, "a".repeat(214)],
  [`${"a".repeat(213)} b`, "a".repeat(213)],
])("the folder %s gives the package a valid name", (folder, name) => {
  const path = createProject({ directory: join(temporary(), folder), template: "plan" });
  expect(manifestOf(path).name).toBe(name);
});

test("the command requires exactly one folder", () => {
  const path = join(temporary(), "project");
  // What `npm create @mosaic project --template plan`, without a `--`, passes on.
  const { status, stderr } = create([path, "plan"]);
  expect([status, stderr]).toEqual([
    2,
    `@mosaic/create: expected one folder, received ${path}, plan; pass options after --, such as npm create @mosaic my-project -- --template plan\n`,
  ]);
  expect(existsSync(path)).toBe(false);
  expect(create([]).stderr).toMatch(/^@mosaic\/create: expected one folder, received none; .*\n$/);
  expect(create(["--help"])).toMatchObject({ status: 0, stderr: "" });
});

test("the command creates a project, and installs it with the package manager that started it", () => {
  const directory = temporary();
  const [bin, path] = [join(directory, "bin"), join(directory, "project")];
  mkdirSync(bin);
  writeFileSync(join(bin, "pnpm"), '#!/bin/sh\necho "pnpm $@ in $PWD"\n', { mode: 0o755 });
  const env = { PATH: `${bin}:${process.env.PATH}`, npm_config_user_agent: "pnpm/10.0.0 npm/? node/v20.19.0" };
  const { status, stdout } = create([path, "--template", "plan"], env);
  expect(status).toBe(0);
  expect(stdout).toContain(`pnpm install in ${path}`);
  expect(stdout).toContain("pnpm start");
  expect(existsSync(join(path, "plan.ts"))).toBe(true);
});

test("without installing, the command prints how to install", () => {
  const path = join(temporary(), "project");
  const env = { npm_config_user_agent: "yarn/1.22.0 npm/? node/v20.19.0" };
  const { stdout } = create([path, "--no-install"], env);
  expect(stdout).toContain(`cd ${path} && yarn install && yarn start\n`);
  expect(stdout).toContain("yarn add <clone>/build/packages/*.tgz");
});

test("a folder with a space or a quote is quoted in the printed commands", () => {
  const directory = temporary();
  const path = join(directory, "it's new");
  const { stdout } = create([path, "--no-install", "--template", "plan"]);
  const [, command] = /^ {2}(cd .*) && npm install/m.exec(stdout)!;
  const shell = spawnSync("sh", ["-c", `${command} && pwd -P`], { encoding: "utf8" });
  expect(shell.stdout).toBe(`${realpathSync(path)}\n`);
});

test("a folder that begins with a hyphen is no option of the printed commands", () => {
  const args = [join(packageRoot, "bin/create.js"), "--no-install", "--template", "plan", "--", "-new"];
  const { stdout } = spawnSync(process.execPath, args, { cwd: temporary(), encoding: "utf8" });
  expect(stdout).toContain("  cd ./-new && npm install");
});

test("the command prints its version, and rejects unknown options in one sentence", () => {
  const { version } = manifestOf(packageRoot);
  for (const flag of ["--version", "-V"]) {
    expect(create([flag])).toMatchObject({ status: 0, stdout: `${version}\n`, stderr: "" });
  }
  expect(create(["project", "--templat", "plan"])).toMatchObject({
    status: 2,
    stderr: "@mosaic/create: Unknown option '--templat'; npm create @mosaic -- --help lists all options\n",
  });
  expect(create(["project", "-t", "--help"]).stderr).toMatch(
    /^@mosaic\/create: Option '-t' argument is ambiguous; npm create @mosaic -- --help lists all options\n$/,
  );
});

test("a failed installation keeps the project and prints the commands that repeat it", () => {
  const directory = temporary();
  const [bin, path] = [join(directory, "bin"), join(directory, "project")];
  mkdirSync(bin);
  writeFileSync(join(bin, "npm"), "#!/bin/sh\nexit 7\n", { mode: 0o755 });
  const env = { PATH: `${bin}:${process.env.PATH}`, npm_config_user_agent: "npm/11.0.0 node/v20.19.0" };
  const { status, stderr } = create([path, "--template", "plan"], env);
  expect(status).toBe(7);
  expect(stderr).toContain(`${path}: the project was created, but npm install failed`);
  expect(stderr).toContain(`cd ${path} && npm install && npm start`);
  expect(existsSync(join(path, "plan.ts"))).toBe(true);
});

test("a package manager that is not installed is named as the cause", () => {
  const path = join(temporary(), "project");
  const { status, stderr } = create([path, "--template", "plan"], { PATH: temporary() });
  expect(status).toBe(1);
  expect(stderr).toContain(`${path}: the project was created, but npm install failed (spawnSync npm ENOENT); install`);
});

test("the command prints its help, and reports unknown templates", () => {
  expect(create(["--help"])).toMatchObject({ status: 0, stdout: expect.stringContaining("npm create @mosaic") });
  const unknown = create([join(temporary(), "p"), "--template", "nothing", "--no-install"]);
  expect(unknown).toMatchObject({ status: 2, stderr: expect.stringContaining("expected one of train") });
});
