import type { AttentionSpeed, Link, Profile } from "./profile.ts";

const half = (flops: number): AttentionSpeed => ({ flops, halfRows: 16, halfKeys: 128, halfDim: 16 });
const network = (bandwidth: number): Link => ({ latency: 22e-6, bandwidth, sharedBy: 1, duplex: true });
const nvlink = (bandwidth: number): Link => ({ latency: 12e-6, bandwidth, sharedBy: 1, duplex: true });

const h100: Profile = {
  name: "h100-ib400",
  ranksPerNode: 8,
  links: { self: network(1.5e12), "intra-node": nvlink(370e9), "inter-node": network(48e9) },
  kernels: {
    launch: 5e-6,
    bandwidth: 2.8e12,
    matmul: 700e12,
    attend: { bfloat16: half(650e12), float16: half(650e12) },
    attendBackward: { bfloat16: half(520e12), float16: half(520e12) },
    waves: { units: 132, rows: 128 },
  },
  enqueue: 5e-6,
  communicationTax: 0.1,
  collectives: "ring",
  channels: "rank",
};

/** Machines by name. */
export const profiles: Readonly<Record<"h100-ib400" | "h200-ib400" | "a100-ib200" | "cpu-local", Profile>> = {
  "h100-ib400": h100,
  "h200-ib400": { ...h100, name: "h200-ib400" },
  "a100-ib200": {
    ...h100,
    name: "a100-ib200",
    links: { self: network(0.8e12), "intra-node": nvlink(230e9), "inter-node": network(24e9) },
    kernels: {
      launch: 5e-6,
      bandwidth: 1.7e12,
      matmul: 250e12,
      attend: { bfloat16: half(220e12), float16: half(220e12) },
      attendBackward: { bfloat16: half(170e12), float16: half(170e12) },
      waves: { units: 108, rows: 128 },
    },
  },
  "cpu-local": {
    name: "cpu-local",
    ranksPerNode: 1024,
    links: {
      self: { latency: 1e-6, bandwidth: 10e9, sharedBy: 1, duplex: true },
      "intra-node": { latency: 30e-6, bandwidth: 8e9, sharedBy: 1, duplex: false },
      "inter-node": { latency: 60e-6, bandwidth: 1e9, sharedBy: 1024, duplex: true },
    },
    kernels: {
      launch: 2e-6,
      bandwidth: 15e9,
      matmul: 70e9,
      attend: { float32: half(70e9), bfloat16: half(60e9), float16: half(60e9) },
      attendBackward: { float32: half(65e9), bfloat16: half(55e9), float16: half(55e9) },
    },
    enqueue: 5e-6,
    communicationTax: 0,
    collectives: "direct",
    channels: "rank",
    cores: { perNode: 2 },
  },
};
