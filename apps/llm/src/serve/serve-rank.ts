import { connect } from "node:net";
import type { Context } from "@mosaic/attention";
import { PeerLostError } from "@mosaic/attention/core";
import { BatchScheduler, type TokenStream } from "@mosaic/models";
import { openModel } from "../model-folder.ts";
import type { BackendName } from "../settings.ts";
import { Channel, type RankMessage, type ServerMessage, type TextOptions } from "./messages.ts";

/** Settings of each rank. */
export interface ServeRankSettings {
  readonly model: string;
  readonly backend: BackendName;
  readonly ranks: number;
  readonly seed: number;
  /** The path of the server's socket, to which rank 0 connects. */
  readonly socket: string;
  /** Maximum number of concurrent texts. */
  readonly batch: number;
  /** Size of the KV cache in tokens, over all texts. */
  readonly cacheTokens: number;
}

/** Generates texts for the requests that the server sends to rank 0, until it sends a stop. Collective. */
export async function serveModel(ctx: Context, settings: ServeRankSettings): Promise<void> {
  const { model: folder, backend, batch: maxSequences, cacheTokens: maxTokens, socket } = settings;
  using model = await openModel(ctx, folder, backend);
  using scheduler = new BatchScheduler(model, { maxTokens, maxSequences });
  if (ctx.rank > 0) {
    await scheduler.run();
    return;
  }
  const streams = new Map<number, TokenStream>();
  const channel = new Channel<RankMessage, ServerMessage>(connect(socket), {
    onMessage(message) {
      if (message.type === "generate") void generate(message.id, message.options);
      else if (message.type === "cancel") void streams.get(message.id)?.return();
      else if (message.type === "stop") scheduler.stop();
      else {
        const { running, waiting, freeTokens } = scheduler;
        const { allocated } = ctx.device.memory();
        const stats = { running, waiting, freeTokens, maxTokens: scheduler.maxTokens, allocated };
        channel.send({ type: "stats", id: message.id, stats });
      }
    },
    // Without a server, all texts are cancelled and the ranks stop.
    onClose() {
      for (const stream of streams.values()) void stream.return();
      scheduler.stop();
    },
  });
  async function generate(id: number, options: TextOptions): Promise<void> {
    let stream: TokenStream | undefined;
    try {
      stream = scheduler.generate(options);
      streams.set(id, stream);
      for await (const { text, finishReason } of stream) channel.send({ type: "token", id, text, finishReason });
    } catch (error) {
      // The server responds once the launcher has reported the lost rank, with 503 because the request may be sent
      // again.
      if (error instanceof PeerLostError) return;
      channel.send({ type: "failed", id, message: (error as Error).message, isRefused: stream === undefined });
    } finally {
      streams.delete(id);
    }
  }
  channel.send({ type: "ready" });
  await scheduler.run();
  channel.close();
}
