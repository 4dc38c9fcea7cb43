import type { AttentionSpeed, Link, Profile } from "./profile.ts";

// Sources of the numbers. Programs never reach published peaks, so measured numbers are used wherever there are any.
// `attend` and `attendBackward` are fitted to the tables of the papers: they are the flops, halfSpeedKeys + halfSpeedRows and
// halfSpeedHeadDim that come nearest to them for heads of size 64 and 128. The tables are of square tiles and cannot distinguish
// rows from keys. Nearly all of the loss is attributed to keys, because most of a kernel's work other than pairs is
// done once for every block of rows.

/** Creates a speed from half-speed sizes: of keys and rows together, and of heads. */
function attentionSpeed(flops: number, halfSize: number, halfSpeedHeadDim: number): AttentionSpeed {
  return { flops, halfSpeedKeys: 0.85 * halfSize, halfSpeedRows: 0.15 * halfSize, halfSpeedHeadDim };
}

/**
 * FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608), figures 5 and 6: H100 SXM5, FP16, no mask, 16k tokens in all.
 * Forward, head size 128, lengths 512 to 16k: 467, 565, 625, 638, 646, 648 TFLOP/s; head size 64: 333, 392, 460, 476,
 * 496, 497. Backward, 128: 316, 424, 501, 542, 559, 561; 64, lengths 512 to 2k: 272, 363, 422. This model: 481, 556,
 * 603, 630, 644, 652 and 367 to 498 forward; 330 to 566 backward. For head size 256 the paper has 642 and this model
 * 770, because that kernel lacks registers.
 */
const flashAttention3Speeds = {
  attend: { bfloat16: attentionSpeed(982e12, 190, 57), float16: attentionSpeed(982e12, 190, 57) },
  attendBackward: { bfloat16: attentionSpeed(744e12, 390, 31), float16: attentionSpeed(744e12, 390, 31) },
};

/**
 * FlashAttention-2 (Dao 2023, arXiv 2307.08691): up to 230 TFLOP/s forward on A100 SXM, and 63 % of the peak of 312
 * backward. The dependence on lengths and head sizes is that of the same kernels in FlashAttention-3's figures.
 */
const flashAttention2Speeds = {
  attend: { bfloat16: attentionSpeed(268e12, 100, 21), float16: attentionSpeed(268e12, 100, 21) },
  attendBackward: { bfloat16: attentionSpeed(228e12, 265, 18), float16: attentionSpeed(228e12, 265, 18) },
};

/** Creates a duplex link in which each rank has a port of its own. */
function dedicatedLink(latency: number, bandwidth: number): Link {
  return { latency, bandwidth, sharedBy: 1, duplex: true };
}

// NCCL's model of its ring with the Simple protocol (src/graph/tuning.cc): 8.4 µs, plus 3.4 over NVLink, 14 over a
// network.
const NVLINK_LATENCY_SECONDS = 11.8e-6;
const NETWORK_LATENCY_SECONDS = 22.4e-6;

/** A kernel enqueued ahead of time takes about a microsecond more than it runs (Gray, "CUDA Graphs", NVIDIA 2019). */
const LAUNCH_SECONDS = 1e-6;

/** Time of this library's own JavaScript per operation, measured on a CPU device, plus 2.5 µs for CUDA's launch. */
const ENQUEUE_SECONDS = 10e-6;

/** 20 of 132 multiprocessors carry NVLink and InfiniBand at full speed (DeepSeek-V3, 2024, arXiv 2412.19437, 3.2.2). */
const COMMUNICATION_SM_SHARE = 20 / 132;

const h100: Profile = {
  name: "h100-ib400",
  ranksPerNode: 8,
  links: {
    self: dedicatedLink(LAUNCH_SECONDS, 1.28e12),
    // 376 to 380 GB/s of 450 between two GPUs of a node (NVIDIA/nccl, issue 1264).
    "intra-node": dedicatedLink(NVLINK_LATENCY_SECONDS, 376e9),
    // "For NDR @ 400Gbps you should see 46-48GB/s per NIC" (NVIDIA/nccl-tests, issue 290).
    "inter-node": dedicatedLink(NETWORK_LATENCY_SECONDS, 47e9),
  },
  kernels: {
    launch: LAUNCH_SECONDS,
    // Read and written by copies within a GPU: 2.57 TB/s (NVIDIA/nccl, issue 1264) of 3.35.
    bandwidth: 2.57e12,
    // A guess: 70 % of the data sheet's 989 TFLOP/s. Attention does not use it.
    matmul: 690e12,
    ...flashAttention3Speeds,
    // Multiprocessors as in the data sheet. FlashAttention-3 processes 128 rows at a time.
    waves: { units: 132, rows: 128 },
  },
  enqueue: ENQUEUE_SECONDS,
  communicationTax: COMMUNICATION_SM_SHARE,
  collectives: "ring",
  channels: "rank",
};

// The same dies at the same clocks, with memory of 4.8 instead of 3.35 TB/s (data sheets).
const h200: Profile = {
  ...h100,
  name: "h200-ib400",
  links: { ...h100.links, self: dedicatedLink(LAUNCH_SECONDS, 1.84e12) },
  kernels: { ...h100.kernels, bandwidth: 3.68e12 },
};

const a100: Profile = {
  ...h100,
  name: "a100-ib200",
  links: {
    self: dedicatedLink(LAUNCH_SECONDS, 0.78e12),
    // 430 to 520 GB/s in both directions together (NVIDIA/nccl-tests, issue 149).
    "intra-node": dedicatedLink(NVLINK_LATENCY_SECONDS, 240e9),
    // "24GB/s is the peak performance per 200G NIC" (NVIDIA/nccl-tests, issue 119).
    "inter-node": dedicatedLink(NETWORK_LATENCY_SECONDS, 24e9),
  },
  kernels: {
    launch: LAUNCH_SECONDS,
    // 2.04 TB/s (data sheet, 80 GB), with the same share for copies as on H100.
    bandwidth: 1.56e12,
    // A guess, as on H100: 70 % of the data sheet's 312 TFLOP/s.
    matmul: 220e12,
    ...flashAttention2Speeds,
    waves: { units: 108, rows: 128 },
  },
};

/**
 * Ranks of one thread each on two cores of an EPYC of 2021 (Zen 3, AVX2), as measured by `calibrate`, and an estimate
 * for ranks on different hosts: TCP at 10 Gb/s. Calibrate your own machine, because machines differ.
 */
const cpu: Profile = {
  name: "cpu-local",
  ranksPerNode: 64,
  links: {
    self: dedicatedLink(1e-6, 10e9),
    // One thread of each rank copies into and out of shared memory.
    "intra-node": { latency: 50e-6, bandwidth: 10e9, sharedBy: 1, duplex: false },
    "inter-node": { latency: 60e-6, bandwidth: 1.1e9, sharedBy: 64, duplex: true },
  },
  kernels: {
    launch: 1e-7,
    bandwidth: 30e9,
    matmul: 78e9,
    attend: {
      float32: { flops: 85e9, halfSpeedKeys: 38, halfSpeedRows: 8, halfSpeedHeadDim: 4, interleaved: 1.08 },
      bfloat16: { flops: 82e9, halfSpeedKeys: 42, halfSpeedRows: 8, halfSpeedHeadDim: 4, interleaved: 1.08 },
      float16: { flops: 82e9, halfSpeedKeys: 42, halfSpeedRows: 8, halfSpeedHeadDim: 4, interleaved: 1.08 },
    },
    attendBackward: {
      float32: { flops: 82e9, halfSpeedKeys: 13, halfSpeedRows: 10, halfSpeedHeadDim: 2, interleaved: 1.08 },
      bfloat16: { flops: 80e9, halfSpeedKeys: 13, halfSpeedRows: 10, halfSpeedHeadDim: 2, interleaved: 1.08 },
      float16: { flops: 80e9, halfSpeedKeys: 13, halfSpeedRows: 10, halfSpeedHeadDim: 2, interleaved: 1.08 },
    },
  },
  enqueue: 12e-6,
  communicationTax: 0,
  collectives: "direct",
  channels: "rank",
  cores: { perNode: 2 },
};

/**
 * Profiles of machines by name: 8 GPUs per node with one InfiniBand rail each, or the ranks of one computer. The
 * source code has the source of every number beside it.
 *
 * @example
 * ```ts
 * import { profiles } from "@mosaic/planner";
 * Object.keys(profiles); // => ["h100-ib400","h200-ib400","a100-ib200","cpu-local"]
 * profiles["a100-ib200"].links["inter-node"].bandwidth; // => 24000000000
 * ```
 */
export const profiles: Readonly<Record<"h100-ib400" | "h200-ib400" | "a100-ib200" | "cpu-local", Profile>> = {
  "h100-ib400": h100,
  "h200-ib400": h200,
  "a100-ib200": a100,
  "cpu-local": cpu,
};
