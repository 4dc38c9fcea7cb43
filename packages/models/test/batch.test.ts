import { setTimeout } from "node:timers/promises";
import { describe, expect, test, vi } from "vitest";
import {
  type BatchResult,
  BatchScheduler,
  type CausalLM,
  GenerationBatch,
  GenerationCache,
  type GenerateOptions,
  loadModel,
} from "../src/index.ts";
import type { GenerativeModel } from "../src/generate/generate.ts";
import { arrangements, loadOptions, onRanks, oneRank } from "./reference/arrangements.ts";
import { models, tokens } from "./reference/references.ts";
import { writeFolder } from "./reference/weights.ts";

const slicePrompt = (firstToken: number, length: number): readonly number[] =>
  tokens.values.slice(firstToken, firstToken + length);

/** Texts of different lengths, with greedy decoding and with sampling. */
const calls: readonly GenerateOptions[] = [
  { tokens: slicePrompt(0, 9), maxNewTokens: 12, eosTokenIds: [] },
  { tokens: slicePrompt(3, 1), maxNewTokens: 4, eosTokenIds: [], doSample: true, temperature: 1.2, seed: 7 },
  { tokens: slicePrompt(5, 13), maxNewTokens: 9, eosTokenIds: [], doSample: true, topP: 0.9, seed: 8 },
  { tokens: slicePrompt(2, 6), maxNewTokens: 1, eosTokenIds: [] },
  { tokens: slicePrompt(8, 4), maxNewTokens: 15, eosTokenIds: [], repetitionPenalty: 1.3 },
];

async function generateOneByOne(model: CausalLM): Promise<number[][]> {
  const generatedTokens: number[][] = [];
  for (const call of calls) {
    const callTokens: number[] = [];
    for await (const { token } of model.generate(call)) callTokens.push(token);
    generatedTokens.push(callTokens);
  }
  return generatedTokens;
}

async function consumeStream(stream: AsyncIterable<unknown>): Promise<void> {
  for await (const _ of stream);
}

const [ring2, ring4, , , nested] = arrangements;

describe("GenerationBatch", () => {
  test.each([oneRank, ring2!, nested!])(
    "generates the same tokens for texts that join and leave a batch as for each text alone: $name",
    async (arrangement) => {
      // Gemma 3 has layers with and without a sliding window.
      await using folder = await writeFolder(models.gemma3!);
      await onRanks(arrangement, async (ctx) => {
        using model = await loadModel(ctx, folder.path, loadOptions(arrangement));
        const expectedTokens = await generateOneByOne(model);
        using batch = new GenerationBatch(model, { maxTokens: 128, blockSize: 4, maxPrefillTokens: 10 });
        const batchTokens: number[][] = calls.map(() => []);
        const results: BatchResult[] = [];
        for (let nextCall = 0; batch.size > 0 || nextCall < calls.length; nextCall++) {
          if (nextCall < calls.length) expect(batch.add(calls[nextCall]!)).toBe(nextCall);
          const step = await batch.step();
          results.push(...step);
          for (const { id, token } of step) batchTokens[id]!.push(token!.token);
        }
        expect(batchTokens).toEqual(expectedTokens);
        expect(results.filter(({ token }) => token?.finishReason === "length").length).toBe(calls.length);
        expect(batch.freeTokens).toBe(128);
        expect(await batch.step()).toEqual([]);
      });
    },
  );

  test("marks each step, and generate marks each token after the first, for mosaic-top", async () => {
    await using folder = await writeFolder(models.mistral!);
    await onRanks(oneRank, async (ctx) => {
      using model = await loadModel(ctx, folder.path);
      const markStep = vi.spyOn(ctx.world, "markStep");
      using batch = new GenerationBatch(model, { maxTokens: 128 });
      for (const call of calls.slice(0, 2)) batch.add(call);
      for (let steps = 1; steps <= 3; steps++) {
        await batch.step();
        expect(markStep).toHaveBeenCalledTimes(steps);
      }
      markStep.mockClear();
      await consumeStream(model.generate({ tokens: [1, 2], maxNewTokens: 5, eosTokenIds: [] }));
      expect(markStep).toHaveBeenCalledTimes(4);
    });
  });

  test("processes a long prompt in parts between the tokens of other texts", async () => {
    await using folder = await writeFolder(models.mistral!);
    await onRanks(oneRank, async (ctx) => {
      using model = await loadModel(ctx, folder.path);
      const calls = [slicePrompt(2, 2), slicePrompt(0, 21), slicePrompt(3, 18)].map((each) => ({
        tokens: each,
        maxNewTokens: 9,
        eosTokenIds: [],
      }));
      const expectedTokens = await Promise.all(
        calls.map(async (call) => {
          const callTokens: number[] = [];
          for await (const { token } of model.generate(call)) callTokens.push(token);
          return callTokens;
        }),
      );
      let computedTokens = 0;
      let numForwards = 0;
      const { config, settings, tokenizer, generationConfig } = model;
      const countingModel: GenerativeModel = {
        ...{ ctx, config, settings, tokenizer, generationConfig },
        project: (hidden) => model.project(hidden),
        decoder: {
          forward: (ids, options) => {
            computedTokens += ids.size;
            numForwards++;
            return model.decoder.forward(ids, options);
          },
        },
      };
      using batch = new GenerationBatch(countingModel, { maxTokens: 128, blockSize: 4, maxPrefillTokens: 4 });
      const together: number[][] = [[], [], []];
      const steps: { computed: number; forwards: number; texts: number[] }[] = [];
      for (const call of calls) batch.add(call);
      while (batch.size > 0) {
        computedTokens = numForwards = 0;
        const results = await batch.step();
        for (const { id, token } of results) together[id]!.push(token!.token);
        steps.push({ computed: computedTokens, forwards: numForwards, texts: results.map(({ id }) => id) });
      }
      expect(together).toEqual(expectedTokens);
      // The first step processes the short prompt of 2 tokens and 2 of the 21 of the next one. Each following step
      // processes four of these and one token of the first text. The last prompt waits.
      expect(steps.slice(0, 6)).toEqual([
        { computed: 4, forwards: 2, texts: [0] },
        ...Array.from({ length: 4 }, () => ({ computed: 5, forwards: 2, texts: [0] })),
        { computed: 5, forwards: 3, texts: [0, 1] },
      ]);
    });
  });

  test("frees the memory of a removed text, and rejects a text that does not fit", async () => {
    await using folder = await writeFolder(models.llama3!);
    await onRanks(ring2!, async (ctx) => {
      using model = await loadModel(ctx, folder.path, loadOptions(ring2!));
      using batch = new GenerationBatch(model, { maxTokens: 32, blockSize: 4, maxSequences: 2 });
      const call = { tokens: slicePrompt(0, 9), maxNewTokens: 8, eosTokenIds: [] };
      const firstId = batch.add(call);
      expect([batch.hasRoomFor(12), batch.hasRoomFor(13)]).toEqual([true, false]);
      expect(() => batch.add(call)).toThrow(
        /expected capacity for a sequence of 17 tokens, received 1 of 2 sequences in use, 12 of 32/,
      );
      await batch.step();
      expect(batch.freeTokens).toBeLessThan(32);
      expect([batch.remove(firstId), batch.remove(firstId)]).toEqual([true, false]);
      expect([batch.size, batch.freeTokens]).toEqual([0, 32]);
      batch.add({ ...call, maxNewTokens: 1 });
      batch.add({ ...call, maxNewTokens: 1 });
      expect(batch.hasRoomFor(1)).toBe(false);
      const step = batch.step();
      expect(() => batch.add(call)).toThrow(/expected a call between steps/);
      expect((await step).map(({ id }) => id)).toEqual([1, 2]);
    });
  });

  test("ends only the text whose logits are NaN", async () => {
    await using folder = await writeFolder(models.llama3!);
    await onRanks(oneRank, async (ctx) => {
      using model = await loadModel(ctx, folder.path);
      // The embedding of token 1 is NaN. Other tokens do not use it.
      const { weight } = model.decoder.embedding;
      ctx.device.write(weight.slice(0, 1, 2), new Float32Array(weight.shape[1]!).fill(Number.NaN));
      using batch = new GenerationBatch(model, { maxTokens: 256 });
      batch.add({ tokens: [1], maxNewTokens: 2, eosTokenIds: [] });
      batch.add({ tokens: [5], maxNewTokens: 2, eosTokenIds: [] });
      const [failedResult, validResult] = await batch.step();
      expect(failedResult!.error?.message).toMatch(/logits without NaN/);
      expect([validResult!.id, validResult!.token?.finishReason, batch.size]).toEqual([1, null, 1]);
      // The NaN keys in the same memory do not affect the other text.
      const [nextResult] = await batch.step();
      expect(nextResult!.token?.finishReason).toBe("length");
    });
  });
});

describe("BatchScheduler", () => {
  test("distributes texts and cancellations from rank 0, and queues texts that do not fit", async () => {
    await using folder = await writeFolder(models.llama3!);
    await onRanks(ring4!, async (ctx) => {
      using model = await loadModel(ctx, folder.path, loadOptions(ring4!));
      const expectedTokens = await generateOneByOne(model);
      using scheduler = new BatchScheduler(model, { maxTokens: 64, blockSize: 4, maxSequences: 3 });
      const runPromise = scheduler.run();
      if (ctx.rank > 0) {
        expect(() => scheduler.generate(calls[0]!)).toThrow(/expected a call on rank 0, received a call on rank/);
        await runPromise;
        expect(scheduler.freeTokens).toBe(64);
        return;
      }
      const collectTokens = async (call: GenerateOptions): Promise<number[]> => {
        const callTokens: number[] = [];
        for await (const { token } of scheduler.generate(call)) callTokens.push(token);
        return callTokens;
      };
      const longOptions = { tokens: slicePrompt(0, 5), maxNewTokens: 40, eosTokenIds: [] };
      const cancelledStream = scheduler.generate(longOptions);
      // This text waits for the memory of the first one, and is cancelled before it receives any.
      const unstartedStream = scheduler.generate(longOptions);
      const answerPromises = calls.map(collectTokens);
      expect((await cancelledStream.next()).done).toBe(false);
      await unstartedStream.return();
      await cancelledStream.return();
      expect((await cancelledStream.next()).done).toBe(true);
      expect(await Promise.all(answerPromises)).toEqual(expectedTokens);
      for await (const { token } of scheduler.generate(longOptions)) if (token >= 0) break;
      expect(() => scheduler.generate({ ...longOptions, maxNewTokens: 60 })).toThrow(/a sequence of at most 64 tokens/);
      expect(() => scheduler.generate({ tokens: [] })).toThrow(/at least one token/);
      scheduler.stop();
      expect(() => scheduler.generate(longOptions)).toThrow(/received a stopped scheduler/);
      await runPromise;
      expect([scheduler.running, scheduler.waiting, scheduler.freeTokens]).toEqual([0, 0, 64]);
    });
  });

  test("rejects the cache option before it checks the capacity of that cache", async () => {
    await using folder = await writeFolder(models.llama3!);
    await onRanks(oneRank, async (ctx) => {
      using model = await loadModel(ctx, folder.path);
      using scheduler = new BatchScheduler(model, { maxTokens: 512 });
      using cache = new GenerationCache(model, { maxTokens: 4, blockSize: 4 });
      const options: GenerateOptions = { tokens: [1], cache };
      expect(() => scheduler.generate(options)).toThrow(
        /GenerationBatch: cache: expected no cache option, because the batch has its own cache, received a GenerationCache; leave the option out/,
      );
    });
  });

  test("generates from a prompt of 400 tokens on two ranks", async () => {
    await using folder = await writeFolder(models.llama3!);
    await onRanks(ring2!, async (ctx) => {
      using model = await loadModel(ctx, folder.path, loadOptions(ring2!));
      using scheduler = new BatchScheduler(model, { maxTokens: 512 });
      const running = scheduler.run();
      if (ctx.rank === 0) {
        const call = { tokens: Array.from({ length: 400 }, (_, i) => i % 60), maxNewTokens: 2, eosTokenIds: [] };
        const ids: number[] = [];
        for await (const { token } of scheduler.generate(call)) ids.push(token);
        expect(ids.length).toBe(2);
        scheduler.stop();
      }
      await running;
    });
  });

  test("waits for texts for longer than the timeout of collectives", async () => {
    await using folder = await writeFolder(models.llama3!);
    const timeout = 3;
    await onRanks(
      ring2!,
      async (ctx) => {
        using model = await loadModel(ctx, folder.path, loadOptions(ring2!));
        using scheduler = new BatchScheduler(model, { maxTokens: 512 });
        const running = scheduler.run();
        if (ctx.rank === 0) {
          // A failure of the scheduler ends the wait.
          await Promise.race([running, setTimeout(1500 * timeout)]);
          const ids: number[] = [];
          const call = { tokens: slicePrompt(0, 3), maxNewTokens: 2, eosTokenIds: [] };
          for await (const { token } of scheduler.generate(call)) ids.push(token);
          expect(ids).toHaveLength(2);
          scheduler.stop();
        }
        await running;
      },
      { timeout },
    );
  });

  test("ends all texts with an error when it is disposed", async () => {
    await using folder = await writeFolder(models.llama3!);
    await onRanks(oneRank, async (ctx) => {
      using model = await loadModel(ctx, folder.path);
      const call = { tokens: slicePrompt(0, 3), maxNewTokens: 20, eosTokenIds: [] };
      const unstartedScheduler = new BatchScheduler(model, { maxTokens: 64 });
      const unstartedText = consumeStream(unstartedScheduler.generate(call));
      unstartedScheduler.dispose();
      await expect(unstartedText).rejects.toThrow(
        "BatchScheduler: expected a call of run(), received a scheduler that was disposed before",
      );
      expect(() => unstartedScheduler.generate(call)).toThrow(/received a stopped scheduler/);
      await expect(unstartedScheduler.run()).rejects.toThrow(/expected a scheduler that has not run/);
      // The first one has a text, and the second one waits for texts. Its keep-alive does not end the wait.
      vi.useFakeTimers({ toFake: ["setTimeout"] });
      for (const calls of [[call], []]) {
        const scheduler = new BatchScheduler(model, { maxTokens: 64 });
        const streams = calls.map((each) => scheduler.generate(each));
        const running = scheduler.run();
        await (streams[0]?.next() ?? setTimeout(1));
        const settled = Promise.allSettled([...streams.map(consumeStream), running]);
        scheduler.dispose();
        for (const result of await settled) {
          expect(result).toMatchObject({
            status: "rejected",
            reason: { message: expect.stringContaining("a disposed GenerationBatch") },
          });
        }
      }
    }).finally(() => vi.useRealTimers());
  });

  test("completes running and waiting texts after stop, except a cancelled one", async () => {
    await using folder = await writeFolder(models.llama3!);
    await onRanks(oneRank, async (ctx) => {
      using model = await loadModel(ctx, folder.path);
      using scheduler = new BatchScheduler(model, { maxTokens: 64, maxSequences: 1 });
      const running = scheduler.run();
      const call = { tokens: slicePrompt(0, 3), maxNewTokens: 4, eosTokenIds: [] };
      const [firstStream, waitingStream, cancelledStream] = [1, 2, 3].map(() => scheduler.generate(call));
      expect(scheduler.waiting).toBe(3);
      await cancelledStream!.return();
      expect(scheduler.waiting).toBe(2);
      const firstResult = await firstStream!.next();
      scheduler.stop();
      expect(() => scheduler.generate(call)).toThrow(/received a stopped scheduler/);
      const finishReasons = [firstResult.value!.finishReason];
      for (const stream of [firstStream!, waitingStream!])
        for await (const { finishReason } of stream) finishReasons.push(finishReason);
      expect(finishReasons).toEqual([null, null, null, "length", null, null, null, "length"]);
      await running;
    });
  });

  test("a stream that failed rejects one read, and is done afterwards", async () => {
    await using folder = await writeFolder(models.llama3!);
    await onRanks(oneRank, async (ctx) => {
      using model = await loadModel(ctx, folder.path);
      const scheduler = new BatchScheduler(model, { maxTokens: 64 });
      const [readStream, unreadStream] = [0, 1].map(() => scheduler.generate({ tokens: [1], maxNewTokens: 2 }));
      const reads = Promise.allSettled([readStream!.next(), readStream!.next()]);
      scheduler.dispose();
      const done = { done: true, value: undefined };
      expect(await reads).toMatchObject([{ status: "rejected" }, { status: "fulfilled", value: done }]);
      await expect(unreadStream!.next()).rejects.toThrow(/a scheduler that was disposed/);
      for (const stream of [readStream!, unreadStream!]) expect(await stream.next()).toEqual(done);
    });
  });

  test("ends all texts with an error when a rank is lost", async () => {
    await using folder = await writeFolder(models.llama3!);
    await onRanks(ring2!, async (ctx) => {
      using model = await loadModel(ctx, folder.path, loadOptions(ring2!));
      using scheduler = new BatchScheduler(model, { maxTokens: 512 });
      if (ctx.rank === 1) return ctx.close();
      const call = { tokens: [1], maxNewTokens: 20, eosTokenIds: [] };
      const failedStreams = [0, 1].map(() => expect(consumeStream(scheduler.generate(call))).rejects.toThrow(/rank 1/));
      await expect(scheduler.run()).rejects.toThrow(/rank 1/);
      await Promise.all(failedStreams);
      await expect(scheduler.run()).rejects.toThrow(/expected a scheduler that has not run/);
      return undefined;
    });
  });
});
