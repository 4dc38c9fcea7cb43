import type { Socket } from "node:net";
import { runRequest, type Space } from "./operations.ts";
import { encodeFrame, type Frame, FrameReader, type Header, LIMITS, StoreError } from "./protocol.ts";
import type { Cancel } from "./table.ts";

/** Decides whether a hello is good: returns the space it may use, or throws StoreError. */
export type Authenticate = (hello: Header) => Space;

/** A client that reads replies slower than it sends requests is dropped when this many bytes wait for it. */
const MAX_UNREAD_BYTES = 64 * 1024 * 1024;

/** One client of the store, from hello to close. */
export class Connection {
  readonly #socket: Socket;
  readonly #authenticate: Authenticate;
  readonly #reader = new FrameReader();
  readonly #waiting = new Map<unknown, Cancel>();
  #space: Space | undefined;

  constructor(socket: Socket, admit: Authenticate) {
    this.#socket = socket;
    this.#authenticate = admit;
    this.#reader.maxHeader = LIMITS.helloHeader;
    this.#reader.maxPayload = 0;
    const deadline = setTimeout(() => {
      if (this.#space === undefined) this.#end(0, new StoreError("AUTH", "store: no hello in time"));
    }, LIMITS.handshakeMs);
    socket.setNoDelay(true);
    socket.on("data", (chunk: Buffer) => this.#receive(chunk));
    // A reset is an ordinary way for a killed rank to leave; "close" follows.
    socket.on("error", () => {});
    socket.on("close", () => {
      clearTimeout(deadline);
      for (const cancel of this.#waiting.values()) cancel();
      this.#waiting.clear();
    });
  }

  /** Whether this client was admitted to `space`. */
  uses(space: Space): boolean {
    return this.#space === space;
  }

  /** Drops the connection. */
  close(): void {
    this.#socket.destroy();
  }

  #receive(chunk: Buffer): void {
    try {
      for (const frame of this.#reader.push(chunk)) {
        if (this.#socket.destroyed || this.#socket.writableEnded) return;
        if (this.#space === undefined) this.#hello(frame.header);
        else this.#request(this.#space, frame);
      }
    } catch (error) {
      this.#end(0, toStoreError(error));
    }
  }

  #hello(header: Header): void {
    this.#space = this.#authenticate(header);
    this.#reader.maxHeader = LIMITS.header;
    this.#reader.maxPayload = 2 * LIMITS.value;
    this.#send({ id: header.id ?? 0, ok: true });
  }

  #request(space: Space, { header, payload }: Frame): void {
    const { id } = header;
    if (this.#waiting.has(id)) throw new StoreError("PROTOCOL", `store: request ${id} is still waiting`);
    const settle = (reply: Header, bytes?: Buffer): void => {
      this.#waiting.get(id)?.();
      this.#waiting.delete(id);
      this.#send({ ...reply, id }, bytes);
      settled = true;
    };
    let settled = false;
    const refuse = (error: StoreError): void => settle({ ok: false, code: error.code, error: error.message });
    const reply = (fields: Header, bytes?: Buffer): void => settle({ ...fields, ok: true }, bytes);
    try {
      const cancel = runRequest(space, { header, payload, reply, refuse });
      if (settled) cancel?.();
      else if (cancel !== undefined) this.#waiting.set(id, cancel);
    } catch (error) {
      refuse(toStoreError(error));
    }
  }

  #send(header: Header, payload?: Buffer): void {
    if (this.#socket.destroyed || this.#socket.writableEnded) return;
    this.#socket.write(encodeFrame(header, payload));
    if (this.#socket.writableLength > MAX_UNREAD_BYTES) this.#socket.destroy();
  }

  #end(id: unknown, error: StoreError): void {
    this.#send({ id, ok: false, code: error.code, error: error.message });
    this.#socket.end(() => this.#socket.destroy());
  }
}

/** Anything but a StoreError is a bug of the launcher, and must surface as one. */
function toStoreError(error: unknown): StoreError {
  if (error instanceof StoreError) return error;
  throw error;
}
