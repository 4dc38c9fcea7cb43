import type { AttentionRecord } from "../record.ts";
import type { Fault } from "./fault.ts";

interface Channel {
  readonly group: number;
  readonly from: number;
  readonly to: number;
  sends: number;
  receives: number;
}

/** The first message of every pair of ranks whose other half no tape has. Messages meet in order, so counting suffices. */
export function findUnmatched(record: AttentionRecord): Fault[] {
  const channels = new Map<string, Channel>();
  walk(record, ({ group, from, to, sent }) => {
    const name = `${group},${from},${to}`;
    const channel = channels.get(name) ?? { group, from, to, sends: 0, receives: 0 };
    channels.set(name, channel);
    channel[sent ? "sends" : "receives"]++;
    return false;
  });
  return [...channels.values()]
    .filter(({ sends, receives }) => sends !== receives)
    .map((each) => surplus(record, each));
}

function surplus(record: AttentionRecord, channel: Channel): Fault {
  const { group, from, to, sends, receives } = channel;
  const sent = sends > receives;
  const [rank, peer] = sent ? [from, to] : [to, from];
  let left = Math.min(sends, receives);
  let place = "";
  walk(record, (half) => {
    if (half.group !== group || half.from !== from || half.to !== to || half.sent !== sent || left-- > 0) return false;
    place = `rank ${rank}, ${half.phase}, ${half.label} #${half.work}`;
    return true;
  });
  const message = sent
    ? `${place} sends to rank ${peer}, which never receives it`
    : `${place} receives from rank ${peer}, which never sends it`;
  return { kind: "message", rank, message };
}

interface Half {
  readonly group: number;
  readonly from: number;
  readonly to: number;
  readonly sent: boolean;
  readonly phase: string;
  readonly label: string;
  readonly work: number;
}

/** Visits the halves of all messages, rank by rank, until `visit` says that it has found what it looked for. */
function walk({ ranks, names: { words } }: AttentionRecord, visit: (half: Half) => boolean): void {
  for (const { tape } of ranks) {
    const event = tape.read();
    let phase = "";
    while (event.next()) {
      if (event.op === "mark") phase = words[event.arg(0)]!;
      if (event.op !== "sendRecv") continue;
      const place = { work: event.arg(0), group: event.arg(1), label: words[event.arg(2)]!, phase };
      for (let i = 3; i < event.count; i += 3) {
        const sent = event.arg(i + 1) === 1;
        const [from, to] = sent ? [tape.rank, event.arg(i)] : [event.arg(i), tape.rank];
        if (visit({ ...place, from, to, sent })) return;
      }
    }
  }
}
