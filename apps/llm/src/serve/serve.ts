import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import type { Server as HttpServer } from "node:http";
import { type AddressInfo, createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type RankLaunchOptions, launchRanks, throwIfFailed } from "@mosaic/program";
import { type ServeSettings, UsageError } from "../settings.ts";
import { unavailableError } from "./api-error.ts";
import { Engine } from "./engine.ts";
import { createHttpServer } from "./http-server.ts";
import { Channel, type RankMessage, type ServerMessage } from "./messages.ts";
import { readServedModel } from "./served-model.ts";
import type { ServeRankSettings } from "./serve-rank.ts";

/** Options of a server in addition to its settings. */
export interface ServeOptions {
  /** The program of the ranks. */
  readonly entry: URL;
  /** The program of the thread that encodes long prompts. */
  readonly promptWorker: URL;
  /** The page at /. */
  readonly page: URL;
  /** Called when ranks are ready, after the first start and after each restart. */
  readonly onReady?: () => void;
  readonly launchOptions?: Pick<RankLaunchOptions<never>, "onEvent" | "restartBackoffMs" | "minUptimeMs">;
}

/** A server that listens. */
export interface RunningServer {
  readonly url: string;
  /**
   * Resolves when the server has stopped. Rejects with a RanksFailedError if its ranks failed and are not restarted.
   */
  readonly completion: Promise<void>;
  /** Completes running texts within the grace period. Waiting texts fail with 503. */
  stop(): void;
  /** Terminates the ranks at once. */
  kill(): void;
}

/** Restarts are limited by two consecutive failures at start-up, not by their number. */
const MAX_RESTARTS = 1_000_000;

/** Maximum length of the path of a local socket on Linux (107 bytes) and macOS (103). */
const MAX_SOCKET_PATH_BYTES = 103;

/** Time in which clients may read the rest of their responses after the ranks have exited. */
const CLOSE_TIMEOUT_MS = 2000;

/**
 * Serves a folder's model. The HTTP server runs in this process, which starts the ranks as other processes. Ranks can
 * therefore neither block nor crash it, and it responds while they are restarted.
 *
 * @throws UsageError for a folder without a model, an address that is not available, and an unusable TMPDIR.
 */
export async function serve(settings: ServeSettings, options: ServeOptions): Promise<RunningServer> {
  const { batch, queue, host, key, maxBody, deadline, grace, cacheTokens, port } = settings;
  const { promptWorker } = options;
  const model = await readServedModel(settings.model, { cacheTokens, promptWorker, maxWaitingPrompts: queue });
  const page = readFileSync(options.page, "utf8");
  const engine = new Engine({ maxRunning: batch, maxWaiting: queue });
  const rules = { host, key, maxBodyBytes: maxBody, deadlineMs: deadline * 1000 };
  const httpServer = createHttpServer({ engine, model, page, rules });
  const directory = createSocketDirectory();
  const socketPath = join(directory, "socket");
  const rankServer = createRankServer(engine, options.onReady ?? (() => {}));
  try {
    await listen(httpServer, host, port);
    await listenOnSocket(rankServer, socketPath);
  } catch (error) {
    await closeAtOnce(httpServer);
    rmSync(directory, { recursive: true });
    throw error;
  }
  let httpClosePromise: Promise<void> | undefined;
  const closeHttp = (): Promise<void> => {
    httpClosePromise ??= new Promise((resolve) => httpServer.close(() => resolve()));
    httpServer.closeIdleConnections();
    return httpClosePromise;
  };
  const abortController = new AbortController();
  let isStopping = false;
  const completion = runRanks(settings, { engine, socketPath, options, signal: abortController.signal })
    .catch((error: unknown) => {
      if (!isStopping) throw error;
    })
    .finally(async () => {
      const reason = "the ranks have exited";
      engine.fail(reason);
      // Requests whose prompt is not encoded yet are not in the engine.
      model.encoder.close(unavailableError(reason));
      rankServer.close();
      // All requests have been responded to. Connections remain open whose client has sent only a part of a request, or
      // does not read its response.
      const timer = setTimeout(() => httpServer.closeAllConnections(), CLOSE_TIMEOUT_MS);
      await closeHttp();
      clearTimeout(timer);
      rmSync(directory, { recursive: true });
    });
  const kill = (): void => {
    isStopping = true;
    abortController.abort();
  };
  const stop = (): void => {
    if (isStopping) return;
    isStopping = true;
    const timer = setTimeout(kill, grace * 1000);
    void completion.catch(() => {}).finally(() => clearTimeout(timer));
    void closeHttp();
    // Ranks that are being started have no text to complete.
    if (engine.isReady) void engine.stop().then((hasRanks) => hasRanks || kill());
    else kill();
  };
  const { address, family, port: boundPort } = httpServer.address() as AddressInfo;
  const url = `http://${family === "IPv6" ? `[${address}]` : address}:${boundPort}`;
  return { url, completion, stop, kill };
}

/**
 * Creates a directory for the socket of the ranks. Only this user may connect: it has mode 0700.
 *
 * @throws UsageError if the directory cannot be created, or its path is too long for a socket.
 */
function createSocketDirectory(): string {
  const prefix = join(tmpdir(), "mosaic-serve-");
  const socketPathBytes = Buffer.byteLength(join(`${prefix}XXXXXX`, "socket"));
  if (socketPathBytes > MAX_SOCKET_PATH_BYTES) {
    throw new UsageError(
      `environment variable TMPDIR: expected a path at least ${socketPathBytes - MAX_SOCKET_PATH_BYTES} bytes shorter, because the path of a socket has at most ${MAX_SOCKET_PATH_BYTES}, received ${tmpdir()}`,
    );
  }
  try {
    return mkdtempSync(prefix);
  } catch (cause) {
    const received = (cause as Error).message;
    throw new UsageError(
      `environment variable TMPDIR: expected a directory that can be written, received ${tmpdir()}: ${received}`,
      { cause },
    );
  }
}

async function listen(httpServer: HttpServer, host: string, port: number): Promise<void> {
  httpServer.listen(port, host);
  try {
    await once(httpServer, "listening");
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const reason = code === "EADDRINUSE" ? "the port is in use; pass a different one" : message;
    throw new UsageError(`--port: cannot listen on ${host}:${port}: ${reason}`, { cause: error });
  }
}

async function listenOnSocket(rankServer: Server, path: string): Promise<void> {
  rankServer.listen(path);
  try {
    await once(rankServer, "listening");
  } catch (error) {
    const { message } = error as NodeJS.ErrnoException;
    throw new UsageError(
      `environment variable TMPDIR: expected a directory in which a socket can be created, received ${tmpdir()}: ${message}`,
      { cause: error },
    );
  }
}

/** Closes a server and its connections. Resolves at once if it does not listen. */
async function closeAtOnce(httpServer: HttpServer): Promise<void> {
  const closePromise = new Promise((resolve) => httpServer.close(resolve));
  httpServer.closeAllConnections();
  await closePromise;
}

/** Creates the server to which rank 0 connects after each start. */
function createRankServer(engine: Engine, onReady: () => void): Server {
  let readyChannel: Channel<ServerMessage, RankMessage> | undefined;
  return createServer((socket) => {
    const channel = new Channel<ServerMessage, RankMessage>(socket, {
      onMessage(message) {
        if (message.type !== "ready") return engine.receive(message);
        readyChannel = channel;
        engine.attach(channel);
        onReady();
      },
      onClose() {
        if (readyChannel === channel) engine.detach("the connection to the ranks was lost; try again in a moment");
      },
    });
  });
}

interface RankRunOptions {
  readonly engine: Engine;
  readonly socketPath: string;
  readonly options: ServeOptions;
  readonly signal: AbortSignal;
}

async function runRanks(
  settings: ServeSettings,
  { engine, socketPath, options, signal }: RankRunOptions,
): Promise<void> {
  const { model, backend, ranks, batch, cacheTokens, seed } = settings;
  const rankSettings: ServeRankSettings = { model, backend, ranks, batch, cacheTokens, seed, socket: socketPath };
  const program = { entry: options.entry, args: ["serve", JSON.stringify(rankSettings)], ranks };
  const result = await launchRanks(program, {
    maxRestarts: MAX_RESTARTS,
    ...options.launchOptions,
    abort: signal,
    onEvent(event) {
      options.launchOptions?.onEvent?.(event);
      if (event.type !== "exit" || event.code === 0) return;
      // Earlier than the socket of rank 0 would report it, because another rank may have died.
      engine.detach(`rank ${event.rank} was lost; restarting all ranks`);
    },
  });
  throwIfFailed(result);
}
