import {
  attention,
  type AttentionBackend,
  CollectiveMismatchError,
  type Context,
  contiguous,
  type KernelFeature,
  layoutOf,
  type Mask,
  masks,
  OptionError,
  type Placement,
  randn,
  striped,
  type Tensor,
  zeros,
  defineOptions,
  type OptionsOf,
} from "@mosaic/core";
import { type Case, check } from "../check.ts";
import { checkMessage, waitForError, expectError, openTestWorld } from "../failures/test-world.ts";
import { makeBackendOption, makeWorldOption } from "../suite-options.ts";

export const agreementSuiteOptions = defineOptions("agreementSuite", {
  /** Opens the worlds. */
  makeWorld: makeWorldOption,
  /** Makes the backend along an axis. */
  backend: makeBackendOption,
});
/** Options of `agreementSuite`. */
export type AgreementSuiteOptions = OptionsOf<typeof agreementSuiteOptions>;

/** Arguments of one rank's attention call. The rank's shard always has 4 rows, whatever the options. */
interface AgreementOptions {
  readonly mask: Mask;
  readonly placement: Placement;
  readonly scale: number;
  readonly length: number;
  readonly isBackwardDropped: boolean;
  /** Number of samples, and number of tokens in each. */
  readonly batch: number;
  readonly tokens: readonly number[] | undefined;
  readonly softcap: number | undefined;
  readonly hasSinks: boolean;
}

const defaultOptions: AgreementOptions = {
  mask: masks.full(),
  placement: contiguous(),
  scale: 0.25,
  length: 12,
  isBackwardDropped: true,
  batch: 1,
  tokens: undefined,
  softcap: undefined,
  hasSinks: false,
};

/** Options in which rank 1 of 3 differs, and the descriptions of both calls that every error must contain. */
interface RankDisagreement {
  readonly title: string;
  /** Feature that the call requires. A device without it rejects the call before anything is sent. */
  readonly requiredFeature?: KernelFeature;
  readonly commonOptions?: Partial<AgreementOptions>;
  readonly differingOptions: Partial<AgreementOptions>;
  readonly errorPatterns: readonly [usual: string | RegExp, odd: string | RegExp];
}

const disagreements: readonly RankDisagreement[] = [
  {
    title: "mismatched masks",
    differingOptions: { mask: masks.causal() },
    errorPatterns: ["mask full 0:12 × 0:12, ", "mask causal 0:12 × 0:12, "],
  },
  {
    title: "mismatched masks, one of which hides all remote keys,",
    commonOptions: { mask: masks.documents([4, 4, 4]) },
    differingOptions: { mask: masks.causal() },
    errorPatterns: ["mask full 0:4 × 0:4 + full 4:8 × 4:8 + full 8:12 × 8:12, ", "mask causal 0:12 × 0:12, "],
  },
  {
    title: "mismatched masks with many slices",
    commonOptions: { mask: masks.documents([4, 1, 1, 1, 1, 1, 1, 1, 1]) },
    differingOptions: { mask: masks.documents([4, 1, 1, 1, 1, 1, 1, 2]) },
    errorPatterns: ["(9 slices, hash ", "(8 slices, hash "],
  },
  {
    title: "mismatched sample lengths",
    commonOptions: { batch: 2, tokens: [5, 12] },
    differingOptions: { tokens: [12, 5] },
    errorPatterns: [
      "sample masks full 0:5 × 0:5 | full 0:12 × 0:12, ",
      "sample masks full 0:12 × 0:12 | full 0:5 × 0:5, ",
    ],
  },
  {
    title: "mismatched sample lengths in a large batch",
    commonOptions: { batch: 6, tokens: [5, 12, 3, 4, 2, 7] },
    differingOptions: { tokens: [5, 12, 3, 4, 7, 2] },
    errorPatterns: ["(6 samples, hash ", "(6 samples, hash "],
  },
  {
    title: "mismatched placements",
    differingOptions: { placement: striped() },
    errorPatterns: ["rows 12 over sp: 0:4 | 4:8 | 8:12", "rows 12 over sp: 0:12:3 | 1:13:3 | 2:14:3"],
  },
  { title: "mismatched scales", differingOptions: { scale: 0.5 }, errorPatterns: ["scale 0.25, ", "scale 0.5, "] },
  {
    title: "mismatched scales, without messages between ranks,",
    commonOptions: { mask: masks.documents([4, 4, 4]) },
    differingOptions: { scale: 0.5 },
    errorPatterns: ["scale 0.25, ", "scale 0.5, "],
  },
  {
    title: "mismatched softcaps",
    requiredFeature: "softcap",
    differingOptions: { softcap: 30 },
    errorPatterns: ["scale 0.25, mask ", "scale 0.25, softcap 30, mask "],
  },
  {
    title: "attention sinks on one rank only",
    differingOptions: { hasSinks: true },
    errorPatterns: ["scale 0.25, mask ", "scale 0.25, sinks, mask "],
  },
  {
    title: "mismatched sequence lengths",
    differingOptions: { length: 13 },
    // The shapes of the messages differ, too. If messages have no signatures, either difference may be found first.
    errorPatterns: [
      /rows 12 over sp: 0:4 \| 4:8 \| 8:12|\[1,2,4,8\]/,
      /rows 13 over sp: 0:5 \| 5:9 \| 9:13|\[1,2,5,8\]/,
    ],
  },
  {
    title: "backward calls missing on one rank",
    commonOptions: { isBackwardDropped: false },
    differingOptions: { isBackwardDropped: true },
    errorPatterns: ["attention backward by ", "at barrier #"],
  },
];

/**
 * Returns test cases for calls that differ between ranks although all messages match: masks, placements, scales and
 * lengths can differ while shapes agree. Every rank must fail with a CollectiveMismatchError that names both calls, at
 * the next message, the next barrier or at close, even if the mask leaves a rank no message to expect. `attention`
 * records these arguments; a backend contributes only its `description`.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { world } from "@mosaic/collectives-local";
 * import { agreementSuite, type MakeWorld } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
 *   world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });
 * const cases = agreementSuite({ makeWorld, backend: (axis) => ring({ axis }) });
 * await cases.find(({ name }) => name === "mismatched scales are reported on every rank")!.run();
 * ```
 */
export function agreementSuite(suiteOptions: AgreementSuiteOptions): Case[] {
  const options = agreementSuiteOptions.parse(suiteOptions);
  return [
    ...disagreements.map((disagreement) => ({
      name: `${disagreement.title} are reported on every rank`,
      run: () => checkMismatchAtNextCall(options, disagreement),
    })),
    { name: "mismatched scales are reported at read or close", run: () => checkMismatchAtClose(options) },
    {
      name: "matching calls with separately created masks and layouts are accepted",
      run: () => checkAgreement(options),
    },
  ];
}

async function checkMismatchAtNextCall(
  { makeWorld, backend }: AgreementSuiteOptions,
  disagreement: RankDisagreement,
): Promise<void> {
  const { commonOptions, differingOptions, errorPatterns, requiredFeature } = disagreement;
  await using testWorld = await openTestWorld(makeWorld, { size: 3 });
  if (requiredFeature !== undefined && !testWorld.contexts[0]!.device.features?.includes(requiredFeature)) {
    for (const ctx of testWorld.contexts) checkCallRejected(ctx, backend("sp"), disagreement);
    return;
  }
  const outcomes = testWorld.contexts.map((ctx) => {
    const options = { ...defaultOptions, ...commonOptions, ...(ctx.rank === 1 && differingOptions) };
    return waitForError(
      ctx.world,
      () => runAttention(ctx, backend("sp"), options),
      () => ctx.mesh.group("sp").barrier().wait(),
    );
  });
  for (const outcome of await Promise.all(outcomes)) {
    const message = expectError(outcome, CollectiveMismatchError);
    for (const errorPattern of errorPatterns) checkMessage(message, errorPattern);
    checkMessage(
      message,
      /\brank 1 (is )?at .*; all ranks of a group must call the same collectives in the same order/,
    );
  }
}

function checkCallRejected(
  ctx: Context,
  backend: AttentionBackend,
  { differingOptions, requiredFeature }: RankDisagreement,
): void {
  let thrownError: unknown;
  try {
    runAttention(ctx, backend, { ...defaultOptions, ...differingOptions });
  } catch (error) {
    thrownError = error;
  }
  checkMessage(expectError(thrownError as Error | undefined, OptionError), `a call without ${requiredFeature}`);
}

function runAttention(ctx: Context, backend: AttentionBackend, options: AgreementOptions): Tensor {
  const { mask, placement, scale, length, batch, tokens, softcap, hasSinks } = options;
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length, placement });
  const [q, k, v] = [0, 1, 2].map(() => randn(ctx, [batch, 2, 4, 8])) as [Tensor, Tensor, Tensor];
  for (const x of [q, k, v]) x.requiresGrad = true;
  const lengths = tokens && { queries: tokens, keys: tokens };
  const modifiers = { softcap, ...(hasSinks && { sinks: zeros(ctx, [2]) }) };
  const out = attention(ctx, q, k, v, { backend, mask, lengths, scale, ...modifiers, queries: layout, keys: layout });
  if (!options.isBackwardDropped) out.sum().backward();
  return out;
}

async function checkMismatchAtClose({ makeWorld, backend }: AgreementSuiteOptions): Promise<void> {
  const contexts = await makeWorld(3, { wrapDevice: (device) => device, timeout: 20 });
  const mask = masks.documents([4, 4, 4]);
  const results = await Promise.allSettled(
    contexts.map(async (ctx) => {
      try {
        await runAttention(ctx, backend("sp"), { ...defaultOptions, mask, scale: ctx.rank === 1 ? 0.5 : 0.25 }).read();
      } finally {
        await ctx.close();
      }
    }),
  );
  const failedResults = results.filter((result) => result.status === "rejected");
  check(failedResults.length > 0, "expected read or close to fail on at least one rank, received no failure");
  for (const { reason } of failedResults) {
    const message = expectError(reason as Error, CollectiveMismatchError);
    for (const errorPattern of ["scale 0.25, ", "scale 0.5, "]) checkMessage(message, errorPattern);
  }
}

/** Checks that masks and layouts match if their slices and spans are equal. Closing compares the calls, too. */
async function checkAgreement({ makeWorld, backend }: AgreementSuiteOptions): Promise<void> {
  await using testWorld = await openTestWorld(makeWorld, { size: 3 });
  for (let call = 0; call < 20; call++) {
    const createMask = () => (call % 2 === 0 ? masks.causal() : masks.documents([3, 1, 2, 1, 1, 4]));
    for (const ctx of testWorld.contexts) {
      runAttention(ctx, backend("sp"), {
        ...defaultOptions,
        mask: createMask(),
        scale: 1 + call,
        isBackwardDropped: call % 3 > 0,
      });
    }
  }
  for (const group of testWorld.groups) group.barrier().wait();
  for (const device of testWorld.devices) await device.stream.synchronize();
}
