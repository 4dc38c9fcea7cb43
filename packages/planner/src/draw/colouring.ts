import type { Piece, Timeline } from "../time/timeline.ts";
import { colourOf, families } from "./palette.ts";

/** What stands for a group of pieces. */
export interface Style {
  readonly name: string;
  readonly fill: string;
}

/** How every piece of a picture is drawn, and what the legend states. */
export interface Colouring {
  styleOf(piece: Piece): Style;
  readonly compute: readonly Style[];
  readonly communication: readonly Style[];
}

/** What compute pieces are distinguished by: the kernel; and communication: the caller's label. */
function groupOf({ lane, name, label }: Piece): string {
  return lane === "compute" ? name : (label ?? name);
}

/** Gradients carry stripes, whatever their colour. */
export function isBackward({ lane, name }: Piece): boolean {
  return lane === "compute" && name.startsWith("attendBackward");
}

/**
 * Gives each group a colour: those with most time get the lane's own, what is left over is grey. With a caller's `group`,
 * equal groups have equal colours in both lanes, in the order of their names.
 */
export function colouringOf(timelines: readonly Timeline[], group?: (piece: Piece) => string): Colouring {
  const totals = { compute: new Map<string, number>(), communication: new Map<string, number>() };
  for (const { ranks } of timelines) {
    for (const { pieces } of ranks) {
      for (const piece of pieces) {
        const name = (group ?? groupOf)(piece);
        totals[piece.lane].set(name, (totals[piece.lane].get(name) ?? 0) + piece.end - piece.start);
      }
    }
  }
  const styles = group
    ? shared(totals)
    : { compute: ranked(totals, "compute"), communication: ranked(totals, "communication") };
  return {
    styleOf: (piece) => styles[piece.lane].get((group ?? groupOf)(piece))!,
    compute: [...new Set(styles.compute.values())],
    communication: [...new Set(styles.communication.values())],
  };
}

type Lane = Piece["lane"];
type Totals = Readonly<Record<Lane, ReadonlyMap<string, number>>>;
type Styles = ReadonlyMap<string, Style>;

function shared({ compute, communication }: Totals): Readonly<Record<Lane, Styles>> {
  const inOrder = new Intl.Collator("en", { numeric: true }).compare;
  const names = [...new Set([...compute.keys(), ...communication.keys()])].toSorted(inOrder);
  const all = new Map(names.map((name, i) => [name, { name, fill: colourOf(i) }]));
  const of = (lane: ReadonlyMap<string, number>): Styles => new Map([...all].filter(([name]) => lane.has(name)));
  return { compute: of(compute), communication: of(communication) };
}

function ranked(totals: Totals, lane: Lane): Styles {
  const colours = families[lane];
  const rest = { name: lane === "compute" ? "other kernels" : "other transfers", fill: families.rest };
  // Attention's own kernels first: the same colours in every picture.
  const weight = ([name, seconds]: readonly [string, number]): number =>
    name === "attend" ? Number.POSITIVE_INFINITY : name.startsWith("attendBackward") ? Number.MAX_VALUE : seconds;
  const order = [...totals[lane]].toSorted((a, b) => weight(b) - weight(a) || (a[0] < b[0] ? -1 : 1));
  const all = order.reduce((sum, [, seconds]) => sum + seconds, 0);
  const small = order.length > colours.length ? 0.002 * all : 0;
  return new Map(
    order.map(([name, seconds], i) => {
      const fill = colours[i];
      return [name, fill !== undefined && seconds >= small ? { name, fill } : rest];
    }),
  );
}
