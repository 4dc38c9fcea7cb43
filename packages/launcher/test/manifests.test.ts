import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { hostname } from "node:os";
import { basename, dirname, join } from "node:path";
import { describe, expect, it } from "vitest";
import { parseHosts } from "../src/options/hosts.ts";
import { parseCommandLine } from "../src/options/parse.ts";
import { parseSettings, type Settings } from "../src/options/settings.ts";
import { resolveSources } from "../src/options/sources.ts";
import { OptionValues } from "../src/options/values.ts";
import { testDir } from "./harness.ts";

// js-yaml has no type declarations.
const { loadAll } = createRequire(import.meta.url)("js-yaml") as { loadAll(text: string): unknown[] };

const EXAMPLES = join(import.meta.dirname, "../../../examples/cluster");
const readText = (name: string): string => readFileSync(join(EXAMPLES, name), "utf8");

/** The fields of a Kubernetes Job that are checked. */
interface JobSpec {
  readonly completionMode: string;
  readonly completions: number;
  readonly parallelism: number;
  readonly template: { readonly spec: PodSpec };
}
interface PodSpec {
  readonly subdomain?: string;
  readonly restartPolicy: string;
  readonly terminationGracePeriodSeconds: number;
  readonly containers: readonly Container[];
  readonly volumes: readonly { name: string; secret?: { secretName: string; defaultMode: number } }[];
}
interface Container {
  readonly command: readonly string[];
  readonly args: readonly string[];
  readonly env: readonly { name: string; value?: string; valueFrom?: { fieldRef: { fieldPath: string } } }[];
  readonly ports: readonly { containerPort: number }[];
  readonly volumeMounts: readonly { name: string; mountPath: string }[];
}
interface Resource {
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly spec: unknown;
}

const parseArgs = (argv: readonly string[], env: Readonly<Record<string, string>>): Settings =>
  parseSettings(resolveSources(parseCommandLine(argv).options, env, testDir()));

/** Returns the job and the DNS name of node 0, for each kind of manifest. */
function findJob(name: string): { job: JobSpec; nodeZero: string } {
  const resources = loadAll(readText(name)) as Resource[];
  const jobResource = resources.find(({ kind }) => kind === "Job" || kind === "JobSet") as Resource;
  const { metadata } = jobResource;
  if (jobResource.kind === "Job") {
    const job = jobResource.spec as JobSpec;
    const service = resources.find(({ kind }) => kind === "Service") as Resource;
    expect(service.metadata.name).toBe(job.template.spec.subdomain);
    expect(service.spec).toMatchObject({
      ...{ clusterIP: "None", publishNotReadyAddresses: true },
      selector: { "batch.kubernetes.io/job-name": metadata.name },
    });
    return { job, nodeZero: `${metadata.name}-0.${service.metadata.name}` };
  }
  const [replicatedJob] = (jobResource.spec as { replicatedJobs: { name: string; template: { spec: JobSpec } }[] })
    .replicatedJobs;
  if (replicatedJob === undefined) throw new Error("no replicated job");
  return { job: replicatedJob.template.spec, nodeZero: `${metadata.name}-${replicatedJob.name}-0-0.${metadata.name}` };
}

describe.each(["indexed-job.yaml", "jobset.yaml"])("%s", (name) => {
  it("has valid options, node ranks from the completion index, and node 0's name as the endpoint", () => {
    const { job, nodeZero } = findJob(name);
    const [container] = job.template.spec.containers as [Container];
    expect(job).toMatchObject({ completionMode: "Indexed", parallelism: job.completions });
    expect(container.command.map((path) => basename(path))).toEqual(["mosaic-run"]);
    for (let rank = 0; rank < job.completions; rank++) {
      const env = container.env.map((one) => {
        if (one.value !== undefined) return [one.name, one.value] as const;
        expect(one.valueFrom?.fieldRef.fieldPath).toBe(
          "metadata.annotations['batch.kubernetes.io/job-completion-index']",
        );
        return [one.name, String(rank)] as const;
      });
      const { launch } = parseArgs(container.args, Object.fromEntries(env));
      expect(launch).toMatchObject({ nnodes: "2", nodeRank: rank, nprocPerNode: 4, rdzvEndpoint: `${nodeZero}:29400` });
      expect(launch.graceMs).toBeLessThan(job.template.spec.terminationGracePeriodSeconds * 1000);
    }
    expect(parseCommandLine(container.args)).toMatchObject({ entry: "train.ts", args: ["--epochs=3"] });
    expect(container.ports).toEqual([{ containerPort: 29_400 }]);
  });

  it("mounts the secret at the path in MOSAIC_TOKEN_FILE with access for its user only", () => {
    const { spec } = findJob(name).job.template;
    const [container] = spec.containers as [Container];
    const file = container.env.find((one) => one.name === "MOSAIC_TOKEN_FILE")?.value ?? "";
    const mount = container.volumeMounts.find(({ mountPath }) => mountPath === dirname(file));
    const secret = spec.volumes.find((volume) => volume.name === mount?.name)?.secret;
    expect((secret?.defaultMode ?? 0o777) & 0o077).toBe(0);
    expect(readText(name)).toContain(
      `kubectl create secret generic ${secret?.secretName} --from-literal=${basename(file)}=`,
    );
    const volumes = spec.volumes.map((volume) => volume.name);
    expect(container.volumeMounts.map((one) => one.name)).toEqual(volumes);
    expect(spec.restartPolicy).toBe("Never");
  });
});

it("the example hostfile is valid", () => {
  const argv = ["--hostfile", join(EXAMPLES, "hostfile")];
  const sources = resolveSources(parseCommandLine(argv).options, {}, testDir());
  expect(parseHosts(new OptionValues(sources), sources)?.hosts.map(({ target, slots }) => [target, slots])).toEqual([
    ["n0", 4],
    ["n1", 4],
    ["me@n2", undefined],
  ]);
});

describe("Kubeflow's variables", () => {
  it("set nodes, ranks per node, node rank and endpoint in a pod of the Trainer", () => {
    const env = { PET_NNODES: "2", PET_NPROC_PER_NODE: "auto", PET_NODE_RANK: "1", PET_MASTER_PORT: "29500" };
    expect(parseArgs([], { ...env, PET_MASTER_ADDR: "job-node-0-0.job" }).launch).toMatchObject({
      ...{ nnodes: "2", nprocPerNode: "auto", nodeRank: 1, rdzvEndpoint: "job-node-0-0.job:29500" },
    });
    const singleNodeEnv = {
      PET_NNODES: "1",
      PET_NODE_RANK: "0",
      PET_MASTER_ADDR: `${hostname()}.job`,
      PET_NPROC_PER_NODE: "2",
    };
    expect(parseArgs([], singleNodeEnv).launch).toMatchObject({ nprocPerNode: 2 });
  });

  it("set all options except the node rank in an elastic PyTorchJob", () => {
    const env = {
      ...{ PET_RDZV_BACKEND: "c10d", PET_RDZV_ENDPOINT: "job-worker-0:23456", PET_RDZV_ID: "job" },
      ...{ PET_NNODES: "1:3", PET_NPROC_PER_NODE: "4", PET_MAX_RESTARTS: "5" },
      // Variables of the pod, not of a rank. The launcher overwrites them and never reads them.
      ...{ RANK: "2", WORLD_SIZE: "3" },
    };
    expect(parseArgs(["--node-rank", "2"], env).launch).toMatchObject({
      ...{ nnodes: "1:3", nodeRank: 2, nprocPerNode: 4, rdzvEndpoint: "job-worker-0:23456", maxRestarts: 5 },
      rdzvId: "job",
    });
    expect(() => parseArgs([], env)).toThrow(/--node-rank: expected the rank of this node, 0 to 2, received nothing/);
  });

  it("have a lower precedence than flags and Mosaic's own variables", () => {
    const env = { PET_NNODES: "9", PET_NODE_RANK: "8", PET_RDZV_ENDPOINT: "p:1", MOSAIC_NODE_RANK: "2" };
    expect(parseArgs(["-N", "3", "--rdzv-endpoint=f:2"], env).launch).toMatchObject({
      ...{ nnodes: "3", nodeRank: 2, rdzvEndpoint: "f:2" },
    });
  });
});
