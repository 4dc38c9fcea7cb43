// A registry on this machine only, for testing publication: Verdaccio on a free port of the loopback interface.
// Packages of this repository come only from it. It fetches all others from the registry that npm is configured with.
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { mkdirSync, openSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "./tools.mjs";

/** Starts the registry with its files in `directory`. Returns `{ url, npmrc, close }`. */
export async function startRegistry(verdaccio, directory) {
  mkdirSync(directory, { recursive: true });
  const port = await findFreePort();
  const uplink = run("npm", ["config", "get", "registry"]).trim();
  writeFileSync(join(directory, "config.yaml"), JSON.stringify(formatConfiguration(uplink, directory)));
  const log = openSync(join(directory, "log.txt"), "w");
  const args = [verdaccio, "--config", join(directory, "config.yaml"), "--listen", `127.0.0.1:${port}`];
  const child = spawn(process.execPath, args, { stdio: ["ignore", log, log] });
  const url = `http://127.0.0.1:${port}/`;
  process.once("exit", () => child.kill());
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => process.exit(1));
  await waitUntilReady(url, child, directory);
  return { url, npmrc: writeNpmrc(url, directory), close: () => child.kill() };
}

/** Returns the configuration, which is written as JSON, because JSON is valid YAML. */
function formatConfiguration(uplink, directory) {
  const publicAccess = { access: "$all", publish: "$all", unpublish: "$all" };
  return {
    storage: join(directory, "storage"),
    uplinks: { configured: { url: uplink, timeout: "60s", maxage: "60m" } },
    packages: { "@mosaic/*": publicAccess, "**": { access: "$all", proxy: "configured" } },
    max_body_size: "200mb",
    log: { type: "stdout", format: "json", level: "http" },
  };
}

/**
 * Writes an npmrc. npm publishes only with a token, which may be any text. The file replaces that of the user, so that
 * no other registry can be reached.
 */
function writeNpmrc(url, directory) {
  const npmrc = join(directory, "npmrc");
  const host = url.slice("http:".length);
  const lines = [
    `registry=${url}`,
    `@mosaic:registry=${url}`,
    `${host}:_authToken=loopback`,
    "audit=false",
    "fund=false",
  ];
  writeFileSync(npmrc, `${lines.join("\n")}\n`);
  return npmrc;
}

/** Publishes a staged package to that registry only. */
export function publish({ directory }, { url, npmrc }) {
  if (!/^http:\/\/127\.0\.0\.1:\d+\/$/.test(url))
    throw new Error(`release: expected a loopback registry, received ${url}`);
  const args = [
    "publish",
    directory,
    "--registry",
    url,
    "--userconfig",
    npmrc,
    "--ignore-scripts",
    "--json",
    "--access",
    "public",
  ];
  return JSON.parse(
    run("npm", [...args, "--tag", "latest"], { cwd: directory, env: createLoopbackEnvironment({ url, npmrc }) }),
  );
}

/**
 * Returns an environment with only these settings of package managers. Settings of the environment would override those
 * of files.
 */
export function createLoopbackEnvironment({ url, npmrc }, baseEnvironment = process.env) {
  const keptVariables = Object.entries(baseEnvironment).filter(([name]) => !/^(npm_|NPM_|YARN_|PNPM_)/i.test(name));
  return {
    ...Object.fromEntries(keptVariables),
    NPM_CONFIG_USERCONFIG: npmrc,
    NPM_CONFIG_REGISTRY: url,
    YARN_NPM_REGISTRY_SERVER: url,
    YARN_UNSAFE_HTTP_WHITELIST: "127.0.0.1",
  };
}

function findFreePort() {
  return new Promise((resolve, reject) => {
    const server = createServer().once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

async function waitUntilReady(url, child, directory) {
  for (const deadline = Date.now() + 60_000; Date.now() < deadline; ) {
    if (child.exitCode !== null) break;
    const response = await fetch(`${url}-/ping`).catch(() => undefined);
    if (response?.ok) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  child.kill();
  throw new Error(`release: the registry did not start; see ${join(directory, "log.txt")}`);
}
