import {
  type AllToAllOptions,
  type CallOptions,
  CollectiveMismatchError,
  ClosedError,
  type GatherOptions,
  type ProcessGroup,
  type ReduceOp,
  type Storage,
  type Tensor,
  type Traffic,
  type Transfer,
  type Work,
} from "@mosaic/core";
import { type Caller, checkRank, checkReduceOp, checkSelfTransfers } from "@mosaic/core/native";
import { checkShares, checkTensor, tapedShares } from "./checks.ts";
import type { SymbolicDevice } from "./device.ts";
import type { View } from "./strided-layout.ts";
import type { RankRecord } from "./rank-record.ts";
import { codeOf, type Op, reductions } from "./tape.ts";

/** A group as all its members share it. */
export interface Members {
  readonly id: number;
  /** The same for all groups along one axis of the mesh. */
  readonly family: number;
  readonly name: string;
  /** World ranks, by rank in the group. */
  readonly ranks: readonly number[];
  /** Makes a group for a color once every member has named its own. */
  readonly split: (call: SplitCall) => Promise<Members>;
}

/** What one member says at a split. */
export interface SplitCall {
  readonly parent: Members;
  readonly rank: number;
  readonly color: number;
  readonly name: string;
}

/** A group whose collectives move nothing and are written down. */
export class SymbolicGroup implements ProcessGroup {
  readonly device: SymbolicDevice;
  readonly rank: number;
  readonly members: Members;
  #calls = 0;
  #sent = 0;
  #received = 0;
  #messages = 0;
  #closed = false;

  constructor(device: SymbolicDevice, members: Members) {
    this.device = device;
    this.members = members;
    this.rank = members.ranks.indexOf(device.record.rank);
  }

  get name(): string {
    return this.members.name;
  }

  get ranks(): readonly number[] {
    return this.members.ranks;
  }

  get size(): number {
    return this.members.ranks.length;
  }

  sendRecv(transfers: readonly Transfer[], { label = "sendRecv" }: CallOptions = {}): Work {
    this.#assertOpen("sendRecv");
    const { record } = this.device;
    const storages: Storage[] = [];
    const args: number[] = [];
    let own = false;
    for (const transfer of transfers) {
      const sent = "to" in transfer;
      const { tensor } = transfer;
      const peer = sent ? transfer.to : transfer.from;
      const view = this.#view(tensor);
      this.#checkPeer(peer);
      if (peer === this.rank) own = true;
      else this.#tally(sent, record.views[view]!);
      storages.push(tensor.storage);
      args.push(this.ranks[peer]!, sent ? 1 : 0, view);
    }
    if (own) checkSelfTransfers(this.#caller("sendRecv"), this.rank, transfers);
    const work = record.nextWork();
    const at = record.open(codeOf.sendRecv, 3 + args.length);
    record.set(at, work);
    record.set(at + 1, this.members.id);
    record.set(at + 2, record.names.word(label));
    for (let i = 0; i < args.length; i++) record.set(at + 3 + i, args[i]!);
    return new SymbolicWork(record, work, storages);
  }

  allGather(out: Tensor, input: Tensor, options: GatherOptions = {}): Work {
    const caller = this.#caller("allGather");
    const counts = tapedShares(caller, out.size, options.counts);
    checkShares(caller, { whole: out, share: input, counts, rank: this.rank });
    return this.#collective("allGather", { out, input, options, counts });
  }

  reduceScatter(out: Tensor, input: Tensor, op: ReduceOp = "sum", options: GatherOptions = {}): Work {
    const caller = this.#caller("reduceScatter");
    checkReduceOp(caller, op);
    const root = reductions.indexOf(op);
    const counts = tapedShares(caller, input.size, options.counts);
    checkShares(caller, { whole: input, share: out, counts, rank: this.rank });
    return this.#collective("reduceScatter", { out, input, root, options, counts });
  }

  allReduce(x: Tensor, op: ReduceOp = "sum", options: CallOptions = {}): Work {
    checkReduceOp(this.#caller("allReduce"), op);
    return this.#collective("allReduce", { out: x, input: x, root: reductions.indexOf(op), options });
  }

  allToAll(out: Tensor, input: Tensor, options: AllToAllOptions = {}): Work {
    const caller = this.#caller("allToAll");
    const { rank } = this;
    const send = tapedShares(caller, input.size, options.send);
    const receive = tapedShares(caller, out.size, options.receive);
    // What one sends to oneself is what one receives from oneself.
    const kept = { dtype: out.dtype, size: send[rank]!, shape: [send[rank]!] };
    checkShares(caller, { whole: input, share: kept, counts: send, rank });
    checkShares(caller, { whole: out, share: kept, counts: receive, rank });
    return this.#collective("allToAll", { out, input, options, counts: [...send, ...receive] });
  }

  broadcast(x: Tensor, root: number, options: CallOptions = {}): Work {
    this.#checkPeer(root);
    return this.#collective("broadcast", { out: x, input: x, root, options });
  }

  barrier(options: CallOptions = {}): Work {
    return this.#collective("barrier", { options });
  }

  async split(color: number, name: string = this.name): Promise<ProcessGroup> {
    this.#assertOpen("split");
    const members = await this.members.split({ parent: this.members, rank: this.rank, color, name });
    return new SymbolicGroup(this.device, members);
  }

  /** Point-to-point messages only; `count` knows the collectives too. */
  traffic(): Traffic {
    return { bytesSent: this.#sent, bytesReceived: this.#received, messagesSent: this.#messages };
  }

  startTrace(): void {}

  async stopTrace(): Promise<[]> {
    return [];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#closed = true;
  }

  #collective(op: Op, { out, input, root = 0, counts = [], options }: CollectiveCall): Work {
    const tensors = [out, input].filter((tensor) => tensor !== undefined);
    const views = [out, input].map((tensor) => (tensor ? this.#view(tensor) : -1));
    return this.#post(op, options.label, { tensors, args: [this.#calls++, ...views, root, ...counts] });
  }

  #post(op: Op, label: string = op, { tensors, args }: Posted): Work {
    this.#assertOpen(op);
    const { record } = this.device;
    const work = record.nextWork();
    record.push(codeOf[op], [work, this.members.id, record.names.word(label), ...args]);
    return new SymbolicWork(
      record,
      work,
      tensors.map(({ storage }) => storage),
    );
  }

  #view(tensor: Tensor): number {
    checkTensor(this.name, tensor, this.device);
    return this.device.record.viewOf(tensor);
  }

  #tally(sent: boolean, { bytes }: View): void {
    if (sent) {
      this.#sent += bytes;
      this.#messages++;
    } else this.#received += bytes;
  }

  #checkPeer(peer: number): void {
    checkRank({ where: this.name, device: this.device, size: this.size }, peer);
  }

  #caller(operation: Op): Caller {
    return { where: `${this.name}: ${operation}`, device: this.device, size: this.size };
  }

  #assertOpen(where: string): void {
    if (!this.#closed) return;
    throw new ClosedError({ where: `${this.name}: ${where}`, expected: "an open group", received: "a closed one" });
  }
}

/** Memory in use by a collective stays allocated until it is waited for: never freed too early, perhaps late. */
class SymbolicWork implements Work {
  readonly #record: RankRecord;
  readonly #work: number;
  readonly #storages: readonly Storage[];
  #waited = false;

  constructor(record: RankRecord, work: number, storages: readonly Storage[]) {
    this.#record = record;
    this.#work = work;
    this.#storages = storages;
    for (const storage of storages) storage.retain();
  }

  wait(): void {
    if (this.#waited) throw new CollectiveMismatchError(`collective #${this.#work} was waited for twice`);
    this.#waited = true;
    this.#record.set(this.#record.open(codeOf.wait, 1), this.#work);
    for (const storage of this.#storages) storage.release();
  }
}

interface CollectiveCall {
  readonly out?: Tensor;
  readonly input?: Tensor;
  /** Of reductions: the number of the operation. */
  readonly root?: number;
  readonly counts?: readonly number[];
  readonly options: CallOptions;
}

interface Posted {
  readonly tensors: readonly Tensor[];
  readonly args: readonly number[];
}
