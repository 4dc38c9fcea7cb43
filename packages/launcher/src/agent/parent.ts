import { setTimeout as delay } from "node:timers/promises";
import type { LocalWorldFrame } from "./branches.ts";
import { Channel } from "./channel.ts";
import { FAILURE_CODES, decode, encode, type FrameOf, peekHeader } from "./frames.ts";
import { HandshakeError, type Network } from "./network.ts";
import type { RendezvousRefusal } from "./rendezvous.ts";
import type { World } from "./world.ts";

export interface ParentOptions {
  readonly network: Network;
  /** Address of the root, which redirects this agent to its parent. */
  readonly root: string;
  readonly hello: FrameOf<"hello">;
  /** Called when the parent was lost or has refused this agent. No world can be served any more. */
  onLost(refusal: RendezvousRefusal): void;
}

/** Connection of one world towards the root. */
export interface ParentLink {
  send(frame: LocalWorldFrame): void;
  registerWorld(world: World): void;
  unregisterWorld(): void;
}

const RETRY_DELAY_MS = 200;

/** The connection to the parent agent. Frames that are sent before it is accepted are queued. */
export class Parent {
  readonly #options: ParentOptions;
  readonly #worlds = new Map<number, World>();
  readonly #backlog: Buffer[] = [];
  #channel: Channel | undefined;
  #isAccepted = false;
  #nextWorld = 0;
  #failure: RendezvousRefusal | undefined;
  #connectError = "no connection yet";
  #isClosed = false;

  constructor(options: ParentOptions) {
    this.#options = options;
    void this.#connect();
  }

  /** Reason why no world can be served; undefined if there is none. */
  get failure(): RendezvousRefusal | undefined {
    return this.#failure;
  }

  /** Reason why there is no connection; undefined if this agent is connected. */
  get disconnectReason(): string | undefined {
    if (this.#isAccepted) return undefined;
    const { hello, root } = this.#options;
    return `the agent on ${hello.host} cannot reach its parent agent through the root agent at ${root}: ${this.#connectError}`;
  }

  openWorldLink(): ParentLink {
    const worldNumber = this.#nextWorld++;
    return {
      send: (frame) => this.#send(encode({ ...frame, world: worldNumber })),
      registerWorld: (world) => void this.#worlds.set(worldNumber, world),
      unregisterWorld: () => void this.#worlds.delete(worldNumber),
    };
  }

  /** Sends a heartbeat, and checks that the parent's last data is not older than the timeout. */
  tick(now: number, wasPaused: boolean, heartbeatTimeoutMs: number): void {
    if (!this.#isAccepted || this.#channel === undefined) return;
    if (wasPaused) this.#channel.lastReceivedAt = now;
    this.#channel.send({ kind: "heartbeat" });
    if (now - this.#channel.lastReceivedAt < heartbeatTimeoutMs) return;
    this.#channel.destroy();
    this.#fail(FAILURE_CODES.peerLost, `no heartbeat from the parent agent for ${heartbeatTimeoutMs / 1000} s`);
  }

  close(): void {
    this.#isClosed = true;
    this.#channel?.destroy();
  }

  #send(encodedFrame: Buffer): void {
    if (this.#isAccepted) this.#channel?.write(encodedFrame);
    else if (this.#failure === undefined) this.#backlog.push(encodedFrame);
  }

  async #connect(): Promise<void> {
    let address = this.#options.root;
    while (!this.#isClosed && this.#failure === undefined) {
      const redirectAddress = await this.#connectThrough(address);
      if (this.#isAccepted) return;
      address = redirectAddress ?? this.#options.root;
      if (redirectAddress === undefined) await delay(RETRY_DELAY_MS, undefined, { ref: false });
    }
  }

  /** Resolves when this agent was accepted, or when the connection has ended, with the address of a redirect if any. */
  async #connectThrough(address: string): Promise<string | undefined> {
    let stream: Awaited<ReturnType<Network["connect"]>>;
    try {
      stream = await this.#options.network.connect(address);
    } catch (error) {
      this.#connectError = (error as Error).message;
      // A secret mismatch persists: retrying is useless.
      if (error instanceof HandshakeError && error.reason === "secret")
        this.#fail(FAILURE_CODES.mismatch, error.message);
      return undefined;
    }
    if (this.#isClosed) return void stream.destroy();
    return new Promise((resolve) => {
      let redirectAddress: string | undefined;
      const channel = new Channel(stream, {
        onContent: (content) => {
          const header = peekHeader(content);
          if (header && this.#worlds.get(header.world)?.forwardUndecoded(header.kind, content)) return;
          const frame = decode(content);
          if (frame.kind === "redirect") redirectAddress = frame.address;
          else if (frame.kind === "accept") this.#accept(channel);
          else if (frame.kind === "refused" && !this.#isAccepted) this.#fail(frame.code, frame.message);
          else if ("world" in frame) this.#worlds.get(frame.world)?.receiveFromParent(frame);
          if (this.#isAccepted) resolve(undefined);
        },
        onEnd: (reason) => {
          this.#connectError = reason;
          if (this.#isAccepted) this.#fail(FAILURE_CODES.peerLost, "the parent agent exited");
          resolve(redirectAddress);
        },
      });
      channel.markAuthenticated();
      channel.send(this.#options.hello);
      this.#channel = channel;
    });
  }

  #accept(channel: Channel): void {
    this.#isAccepted = true;
    for (const encodedFrame of this.#backlog.splice(0)) channel.write(encodedFrame);
  }

  #fail(code: number, message: string): void {
    if (this.#isClosed || this.#failure !== undefined) return;
    this.#failure = { code, message };
    this.#isAccepted = false;
    this.#options.onLost(this.#failure);
  }
}
