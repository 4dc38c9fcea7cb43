import { checkContext } from "../arguments.ts";
import type { Context } from "../context.ts";
import { empty, fromArray } from "../creation.ts";
import {
  checkFunction,
  ClosedError,
  CollectiveMismatchError,
  expectValue,
  formatValue,
  MosaicError,
} from "../errors.ts";
import { checkJsonValue } from "../json-value.ts";
import { BYTES_PER_WORD, packBytes, unpackBytes } from "./byte-words.ts";
import { parseLabel } from "./collective-options.ts";
import type { CollectiveOptions, ProcessGroup } from "./process-group.ts";

/** The ranks that exchange values: a process group, or the world of a context. */
export type GroupOrContext = ProcessGroup | Context;

/**
 * Returns the value of every rank, by rank in the group; `all_gather_object` of PyTorch. Values are JSON values, and
 * the results are copies on every rank. Collective: await it before the next collective of the group.
 *
 * One message of 256 bytes per rank is gathered. Values whose JSON is longer than 186 bytes are completed by a second
 * message.
 *
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { allGatherObject } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
 * const results = await Promise.all(contexts.map((ctx) => allGatherObject(ctx, { rank: ctx.rank, host: "n0" })));
 * results[1]; // => [{ rank: 0, host: "n0" }, { rank: 1, host: "n0" }]
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 * @throws OptionError if `value` is not a JSON value; see `checkJsonValue`. The other ranks reject with a MosaicError
 * that names this rank. OptionError for an invalid group or option, before anything is sent. CollectiveMismatchError for
 * a message of another call.
 */
export async function allGatherObject<T>(
  groupOrContext: GroupOrContext,
  value: T,
  options?: CollectiveOptions,
): Promise<readonly T[]> {
  const where = "allGatherObject";
  const group = resolveGroup(where, groupOrContext);
  const label = resolveLabel(where, options);
  const call: ExchangeCall = { group, groupOrContext, where, label, id: createCallId(group, where) };
  return (await exchangeOutcomes(call, encodeValue(`${where}: value`, value))) as readonly T[];
}

/**
 * Returns the value of the root on every rank; `broadcast_object_list` of PyTorch. It is a JSON value, and the result
 * is a copy on every rank. The value of other ranks is ignored. Collective: await it before the next collective of the
 * group.
 *
 * One message of 256 bytes is broadcast. A value whose JSON is longer than 186 bytes is completed by a second message.
 *
 * @param root Rank in the group, by default 0; the same on all ranks.
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { broadcastObject } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
 * const results = await Promise.all(
 *   contexts.map((ctx) => broadcastObject(ctx, ctx.rank === 0 ? { prompt: "Grüße" } : undefined)),
 * );
 * results[1]; // => { prompt: "Grüße" }
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 * @throws OptionError on the root if `value` is not a JSON value; see `checkJsonValue`. The other ranks reject with a
 * MosaicError that names the root. OptionError for an invalid group, root or option, before anything is sent.
 * CollectiveMismatchError for a message of another call.
 */
// oxlint-disable-next-line max-params -- as `broadcast` of a group: value, root, options
export async function broadcastObject<T>(
  groupOrContext: GroupOrContext,
  value: T | undefined,
  root: number = 0,
  options?: CollectiveOptions,
): Promise<T> {
  const where = "broadcastObject";
  const group = resolveGroup(where, groupOrContext);
  const isValidRoot = Number.isInteger(root) && root >= 0 && root < group.size;
  expectValue(`${where}: root`, isValidRoot, `a rank of the group, from 0 to ${group.size - 1}`, root);
  const label = resolveLabel(where, options);
  const call: ExchangeCall = { group, groupOrContext, where, label, id: createCallId(group, where) };
  if (group.rank !== root) {
    const text = await nameCallIfClosed(call, () => broadcastText(call, "", root));
    const outcome = JSON.parse(text) as RankOutcome;
    if ("failure" in outcome) throw createRankError(call, [{ rank: root, message: outcome.failure }]);
    return outcome.value as T;
  }
  const { json, failure } = encodeValue(`${where}: value`, value);
  await sendOutcome(call, failure, () => broadcastText(call, json, root));
  return (JSON.parse(json) as { readonly value: T }).value;
}

/**
 * Runs `body` on every rank. Resolves to its results by rank in the group, which are JSON values or undefined. If it
 * fails on any rank, all ranks reject, so that none continues as if all had succeeded. Ranks on which it failed reject
 * with its error; on the others, the error names the ranks that failed. Collective: await it before the next collective
 * of the group.
 *
 * @param where Prefix of error messages, such as the name of the caller.
 * @example
 * ```ts
 * import { world } from "@mosaic/collectives-local";
 * import { runOnAllRanks } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
 * const load = (path: string, rank: number) => {
 *   if (rank === 1) throw new Error(`${path}: no such file`);
 * };
 * const errors = await Promise.all(
 *   contexts.map((ctx) => runOnAllRanks(ctx, "load", () => load("data", ctx.rank)).catch(String)),
 * );
 * errors[0]; // => "MosaicError: load, rank 0: expected success on every rank, received a failure on rank 1 (data: no such file); see the error on that rank"
 * errors[1]; // => "Error: data: no such file"
 * await Promise.all(contexts.map((ctx) => ctx.close()));
 * ```
 * @throws OptionError for invalid arguments, before anything is sent, and if a result is not a JSON value; see
 * `checkJsonValue`. CollectiveMismatchError for a message of another call.
 */
export async function runOnAllRanks<T>(
  groupOrContext: GroupOrContext,
  where: string,
  body: () => T | Promise<T>,
): Promise<readonly T[]> {
  expectValue("runOnAllRanks: where", typeof where === "string", "a text that identifies the call", where);
  checkFunction("runOnAllRanks: body", body);
  let group: ProcessGroup;
  try {
    group = resolveGroup("runOnAllRanks", groupOrContext);
  } catch (error) {
    throw createCallError({ where, groupOrContext }, error);
  }
  const id = createCallId(group, "runOnAllRanks");
  const call: ExchangeCall = { group, groupOrContext, where, label: where, id };
  let outcome: LocalOutcome;
  try {
    const result = await body();
    outcome = result === undefined ? { json: "{}" } : encodeValue(`${where}: result`, result);
  } catch (error) {
    outcome = encodeFailure(error);
  }
  return (await exchangeOutcomes(call, outcome)) as readonly T[];
}

function isContext(groupOrContext: unknown): groupOrContext is Context {
  const { world, assertOpen } = (groupOrContext ?? {}) as Partial<Context>;
  return world !== undefined && typeof assertOpen === "function";
}

/** Returns the group, or the world of the context. */
function resolveGroup(where: string, groupOrContext: unknown): ProcessGroup {
  if (isContext(groupOrContext)) {
    checkContext(where, groupOrContext);
    return groupOrContext.world;
  }
  const { allGather, device } = (groupOrContext ?? {}) as Partial<ProcessGroup>;
  const isGroup = typeof allGather === "function" && device !== undefined;
  expectValue(`${where}: group`, isGroup, "a ProcessGroup or a Context from init()", groupOrContext);
  return groupOrContext as ProcessGroup;
}

function resolveLabel(where: string, options: CollectiveOptions | undefined): string {
  return (options === undefined ? undefined : parseLabel(where, options, where)) ?? where;
}

interface ExchangeCall {
  readonly group: ProcessGroup;
  /** What the program passed. */
  readonly groupOrContext: GroupOrContext;
  /** Prefix of error messages. */
  readonly where: string;
  readonly label: string;
  /** The same on all ranks that make the same calls in the same order. */
  readonly id: number;
}

const FUNCTION_NAMES = ["allGatherObject", "broadcastObject", "runOnAllRanks"] as const;
const NUM_CALL_IDS = 2 ** 16;
const numCalls = new WeakMap<ProcessGroup, number>();

/**
 * Returns the ID of the next call of a group. Each message has it, because messages of different calls are equal for the
 * engine: a call that was not awaited would receive those of the next one.
 */
function createCallId(group: ProcessGroup, name: (typeof FUNCTION_NAMES)[number]): number {
  const number = numCalls.get(group) ?? 0;
  numCalls.set(group, number + 1);
  return (FUNCTION_NAMES.length * number + FUNCTION_NAMES.indexOf(name)) % NUM_CALL_IDS;
}

/** Throws if a message from `sender` has the ID of another call. */
function checkCallId({ group, where, id }: ExchangeCall, sender: number, receivedId: number): void {
  if (receivedId === id) return;
  throw new CollectiveMismatchError({
    where: `${where}, rank ${group.ranks[group.rank]}`,
    expected: "the same call on all ranks",
    received: `a message of another call from rank ${group.ranks[sender]}`,
    remedy:
      "make the same calls in the same order on all ranks, and await each before the next collective of the group",
  });
}

/** The message of a rank: the result of its call, or the message of its error. */
type RankOutcome = { readonly value?: unknown } | { readonly failure: string };

/** The outcome of this rank: the JSON of a `RankOutcome`, and the error if the call failed. */
interface LocalOutcome {
  readonly json: string;
  readonly failure?: { readonly error: unknown };
}

const MAX_FAILURE_LENGTH = 1000;

/** Encodes a value, or the error if it is not a JSON value. */
function encodeValue(where: string, value: unknown): LocalOutcome {
  try {
    checkJsonValue(where, value);
    return { json: JSON.stringify({ value } satisfies RankOutcome) };
  } catch (error) {
    return encodeFailure(error);
  }
}

function encodeFailure(error: unknown): LocalOutcome {
  const message = error instanceof Error ? error.message : typeof error === "string" ? error : formatValue(error);
  const outcome: RankOutcome = { failure: message.slice(0, MAX_FAILURE_LENGTH) };
  return { json: JSON.stringify(outcome), failure: { error } };
}

/** Returns the results of all ranks. Rejects if any rank failed. */
async function exchangeOutcomes(call: ExchangeCall, { json, failure }: LocalOutcome): Promise<readonly unknown[]> {
  const texts = await sendOutcome(call, failure, () => allGatherTexts(call, json));
  const outcomes = texts.map((text) => JSON.parse(text) as RankOutcome);
  const failures = outcomes.flatMap((each, rank) => ("failure" in each ? [{ rank, message: each.failure }] : []));
  if (failures.length > 0) throw createRankError(call, failures);
  return outcomes.map((each) => (each as { readonly value?: unknown }).value);
}

/**
 * Sends the outcome of this rank. If it is a failure, rejects with its error, even if it could not be sent, because the
 * first error has the cause.
 */
async function sendOutcome<T>(
  call: ExchangeCall,
  failure: LocalOutcome["failure"],
  send: () => Promise<T>,
): Promise<T> {
  let result: T;
  try {
    result = await nameCallIfClosed(call, send);
  } catch (error) {
    throw failure ? failure.error : error;
  }
  if (failure) throw failure.error;
  return result;
}

/** Sends or receives. Names the call in the error if the group or the context has been closed. */
async function nameCallIfClosed<T>(call: ExchangeCall, send: () => Promise<T>): Promise<T> {
  try {
    return await send();
  } catch (error) {
    throw createCallError(call, error);
  }
}

/**
 * Returns the error of a call. If the group or the context that the program passed has been closed, it names the
 * function that the program called, instead of an operation within it.
 */
function createCallError(
  { where, groupOrContext }: Pick<ExchangeCall, "where" | "groupOrContext">,
  error: unknown,
): unknown {
  if (!(error instanceof ClosedError)) return error;
  const name = isContext(groupOrContext) ? "context" : "group";
  const details = {
    where,
    expected: `an open ${name} until the call has completed`,
    received: `a closed ${name}`,
    remedy: `await the call before the ${name} closes`,
  };
  return new ClosedError(details, { cause: error });
}

function createRankError(
  { group, where }: ExchangeCall,
  failures: readonly { readonly rank: number; readonly message: string }[],
): MosaicError {
  const failedRanks = failures.map(({ rank }) => group.ranks[rank]).join(", ");
  return new MosaicError({
    where: `${where}, rank ${group.ranks[group.rank]}`,
    expected: "success on every rank",
    received: `a failure on rank ${failedRanks} (${failures[0]!.message})`,
    remedy: "see the error on that rank",
  });
}

// A text is sent as UTF-8. The first message has a fixed size, which all ranks know: the ID of the call (16 bits), the
// number of bytes (32 bits), and the first bytes. Most texts are complete then. The other bytes follow in a second
// message.

const FIRST_MESSAGE_WORDS = 64;
const HEADER_WORDS = 2;
const WORD_BASE = 2 ** 24;
/** The first word has the ID times this number, plus the upper 8 bits of the number of bytes. */
const CALL_ID_BASE = WORD_BASE / NUM_CALL_IDS;
const FIRST_MESSAGE_BYTES = BYTES_PER_WORD * (FIRST_MESSAGE_WORDS - HEADER_WORDS);

function encodeFirstMessage(callId: number, bytes: Uint8Array): Float32Array {
  const words = new Float32Array(FIRST_MESSAGE_WORDS);
  words.set([callId * CALL_ID_BASE + Math.floor(bytes.length / WORD_BASE), bytes.length % WORD_BASE]);
  words.set(packBytes(bytes.subarray(0, FIRST_MESSAGE_BYTES)), HEADER_WORDS);
  return words;
}

/** A text of which the first message was received. */
interface ReceivedText {
  readonly numBytes: number;
  readonly firstBytes: Uint8Array;
  /** Size of the second message. */
  readonly numRemainingWords: number;
}

function decodeFirstMessage(call: ExchangeCall, sender: number, words: Float32Array): ReceivedText {
  checkCallId(call, sender, Math.floor(words[0]! / CALL_ID_BASE));
  const numBytes = (words[0]! % CALL_ID_BASE) * WORD_BASE + words[1]!;
  return {
    numBytes,
    firstBytes: unpackBytes(words.subarray(HEADER_WORDS), Math.min(numBytes, FIRST_MESSAGE_BYTES)),
    numRemainingWords: Math.ceil(Math.max(0, numBytes - FIRST_MESSAGE_BYTES) / BYTES_PER_WORD),
  };
}

function decodeText({ numBytes, firstBytes }: ReceivedText, remainingWords: Float32Array): string {
  const bytes = new Uint8Array(numBytes);
  bytes.set(firstBytes);
  bytes.set(unpackBytes(remainingWords, numBytes - firstBytes.length), firstBytes.length);
  return new TextDecoder().decode(bytes);
}

const encodeRemainingBytes = (bytes: Uint8Array): Float32Array => packBytes(bytes.subarray(FIRST_MESSAGE_BYTES));

/**
 * Returns the text of the only rank, without sending it. Records the call, which throws a ClosedError if the group is
 * closed.
 */
function singleRankText({ group, where }: ExchangeCall, text: string): string {
  group.recordCall(() => where);
  return text;
}

/** Returns the text of every rank, by rank. */
async function allGatherTexts(call: ExchangeCall, text: string): Promise<readonly string[]> {
  const { group, label, id } = call;
  if (group.size === 1) return [singleRankText(call, text)];
  const bytes = new TextEncoder().encode(text);
  const firstMessages = await allGatherWords(group, encodeFirstMessage(id, bytes), {
    label,
    counts: group.ranks.map(() => FIRST_MESSAGE_WORDS),
  });
  const receivedTexts = group.ranks.map((_, rank) =>
    decodeFirstMessage(
      call,
      rank,
      firstMessages.subarray(rank * FIRST_MESSAGE_WORDS, (rank + 1) * FIRST_MESSAGE_WORDS),
    ),
  );
  const counts = receivedTexts.map(({ numRemainingWords }) => numRemainingWords);
  const remainingWords = counts.some((count) => count > 0)
    ? await allGatherWords(group, encodeRemainingBytes(bytes), { label, counts })
    : new Float32Array(0);
  let start = 0;
  return receivedTexts.map((receivedText) => {
    const end = start + receivedText.numRemainingWords;
    const decodedText = decodeText(receivedText, remainingWords.subarray(start, end));
    start = end;
    return decodedText;
  });
}

async function allGatherWords(
  group: ProcessGroup,
  words: Float32Array,
  options: { readonly label: string; readonly counts: readonly number[] },
): Promise<Float32Array> {
  using input = fromArray(group.device, words, [words.length]);
  using out = empty(group.device, [options.counts.reduce((sum, count) => sum + count)]);
  group.allGather(out, input, options).wait();
  return await out.read();
}

/** Returns the text of the root. The texts of other ranks are ignored. */
async function broadcastText(call: ExchangeCall, text: string, root: number): Promise<string> {
  const { group, label, id } = call;
  if (group.size === 1) return singleRankText(call, text);
  const bytes = new TextEncoder().encode(text);
  const broadcastWords = async (words: Float32Array): Promise<Float32Array> => {
    using x = fromArray(group.device, words, [words.length]);
    group.broadcast(x, root, { label }).wait();
    return await x.read();
  };
  const receivedText = decodeFirstMessage(call, root, await broadcastWords(encodeFirstMessage(id, bytes)));
  const { numRemainingWords } = receivedText;
  if (numRemainingWords === 0) return decodeText(receivedText, new Float32Array(0));
  const remainingWords = group.rank === root ? encodeRemainingBytes(bytes) : new Float32Array(numRemainingWords);
  return decodeText(receivedText, await broadcastWords(remainingWords));
}
