import { bytesText } from "../src/draw/quantity.ts";
import type { LinkData } from "../src/view/data.ts";
import { onThemeChange, readTheme, type Theme } from "./colors.ts";
import { element, labelled, section, tableOf } from "./elements.ts";

const WIDTH = 900;
const MARGIN = 14;

interface Place {
  readonly x: number;
  readonly y: number;
}

/** Where nodes and ranks are drawn. */
export interface NodeMap {
  readonly height: number;
  readonly nodes: ReadonlyMap<number, Place & { readonly size: number }>;
  readonly ranks: readonly (Place & { readonly size: number })[];
}

/** Nodes in a grid, the ranks of each in a square in it. */
export function layoutNodes(nodeOf: readonly number[]): NodeMap {
  const numbers = [...new Set(nodeOf)].toSorted((a, b) => a - b);
  const across = Math.max(1, Math.ceil(Math.sqrt(numbers.length * 1.8)));
  const pitch = (WIDTH - 2 * MARGIN) / across;
  const size = Math.min(pitch * 0.62, 150);
  const lines = Math.ceil(numbers.length / across);
  const rowPitch = Math.min(pitch, size * 1.7);
  const nodes = new Map(
    numbers.map((number, i) => {
      const x = MARGIN + (i % across) * pitch + (pitch - size) / 2;
      return [number, { x, y: MARGIN + Math.floor(i / across) * rowPitch, size }];
    }),
  );
  const placed = new Map<number, number>();
  const members = new Map<number, number>();
  for (const node of nodeOf) members.set(node, (members.get(node) ?? 0) + 1);
  const ranks = nodeOf.map((node) => {
    const i = placed.get(node) ?? 0;
    placed.set(node, i + 1);
    const side = Math.ceil(Math.sqrt(members.get(node)!));
    const cell = size / side;
    const { x, y } = nodes.get(node)!;
    return { x: x + (i % side) * cell + cell / 2, y: y + Math.floor(i / side) * cell + cell / 2, size: cell * 0.72 };
  });
  return { height: 2 * MARGIN + lines * rowPitch - (rowPitch - size), nodes, ranks };
}

/** Bytes between ranks, or nodes, on a map of the nodes. */
export function linkSection(data: LinkData): HTMLElement {
  const map = layoutNodes(data.nodes);
  const ratio = Math.min(2, devicePixelRatio);
  const canvas = element("canvas", {
    class: "links",
    role: "img",
    width: `${WIDTH * ratio}`,
    height: `${map.height * ratio}`,
  });
  const one = data.between === "ranks" ? "rank" : "node";
  const only = element("input", { type: "number", min: "0", placeholder: "all", inputmode: "numeric", size: "6" });
  const output = element("output", { "aria-live": "polite" });
  const isCross = ({ from, to }: { from: number; to: number }): boolean =>
    data.between === "nodes" ? from !== to : data.nodes[from] !== data.nodes[to];
  const selected = (): LinkData["links"] =>
    data.links.filter(({ from, to }) => only.value === "" || from === only.valueAsNumber || to === only.valueAsNumber);
  const table = linkTable(one, () => selected(), isCross);
  const draw = (): void => {
    const links = selected();
    const context = canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawMap(context, { data, map, links, isCross });
    const [within, between] = [false, true].map((cross) =>
      links.filter((link) => isCross(link) === cross).reduce((sum, { bytes }) => sum + bytes, 0),
    );
    const words = `${links.length} ${links.length === 1 ? "link" : "links"}; ${bytesText(within!)} within nodes, ${bytesText(between!)} between them.`;
    output.value = words;
    canvas.setAttribute(
      "aria-label",
      `Map of ${map.nodes.size} ${map.nodes.size === 1 ? "node" : "nodes"} and ${data.nodes.length} ranks. ${words}`,
    );
    table.dispatchEvent(new Event("refresh"));
  };
  only.addEventListener("input", draw);
  onThemeChange(draw);
  draw();
  return section(
    "links",
    "Bytes by link",
    element(
      "p",
      {},
      `Bytes sent between ${one}s, forward and backward. Wider and darker lines carry more bytes. Collectives are counted as direct sends.`,
    ),
    element("div", { class: "controls" }, labelled(`Only ${one}`, only)),
    canvas,
    output,
    table,
  );
}

interface MapScene {
  readonly data: LinkData;
  readonly map: NodeMap;
  readonly links: LinkData["links"];
  isCross(link: { from: number; to: number }): boolean;
}

function drawMap(context: CanvasRenderingContext2D, { data, map, links, isCross }: MapScene): void {
  const theme = readTheme();
  context.clearRect(0, 0, WIDTH, map.height);
  for (const { x, y, size } of map.nodes.values()) {
    context.fillStyle = theme.track;
    context.strokeStyle = theme.rule;
    context.beginPath();
    context.roundRect(x - 5, y - 5, size + 10, size + 10, 6);
    context.fill();
    context.stroke();
  }
  drawLinks(context, { data, map, links, isCross }, theme);
  const sent = new Float64Array(data.nodes.length);
  if (data.between === "ranks") for (const { from, bytes } of links) sent[from]! += bytes;
  const most = Math.max(1, ...sent);
  for (const [rank, { x, y, size }] of map.ranks.entries()) {
    context.globalAlpha = data.between === "ranks" ? 0.25 + 0.75 * (sent[rank]! / most) : 0.6;
    context.fillStyle = theme.faint;
    context.fillRect(x - size / 2, y - size / 2, size, size);
    context.globalAlpha = 1;
    if (size < 14) continue;
    context.fillStyle = theme.paper;
    context.font = `${Math.min(13, size * 0.5)}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(`${rank}`, x, y);
  }
}

/** Curves to the right of their direction, so that the two ways of a link lie apart. */
function drawLinks(context: CanvasRenderingContext2D, { data, map, links, isCross }: MapScene, theme: Theme): void {
  const most = links.reduce((max, { bytes }) => Math.max(max, bytes), 1);
  const place = (number: number): Place => {
    if (data.between === "ranks") return map.ranks[number]!;
    const { x, y, size } = map.nodes.get(number)!;
    return { x: x + size / 2, y: y + size / 2 };
  };
  for (const link of links.toSorted((a, b) => a.bytes - b.bytes)) {
    const [from, to] = [place(link.from), place(link.to)];
    const share = link.bytes / most;
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    context.strokeStyle = isCross(link) ? theme.accent : theme.ink;
    context.globalAlpha = (0.12 + 0.7 * share) / Math.max(1, Math.sqrt(links.length / 400));
    context.lineWidth = 0.6 + 3 * share;
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.quadraticCurveTo((from.x + to.x) / 2 - dy * 0.18, (from.y + to.y) / 2 + dx * 0.18, to.x, to.y);
    context.stroke();
  }
  context.globalAlpha = 1;
}

function linkTable(one: string, links: () => LinkData["links"], isCross: MapScene["isCross"]): HTMLDetailsElement {
  return tableOf(
    "bytes by link, in descending order",
    [
      { name: `from ${one}`, isNumber: true, text: ({ from }) => `${from}` },
      { name: `to ${one}`, isNumber: true, text: ({ to }) => `${to}` },
      { name: "bytes", isNumber: true, text: ({ bytes }) => bytesText(bytes) },
      { name: "link", text: (link) => (isCross(link) ? "between nodes" : "within a node") },
    ],
    () => links().toSorted((a, b) => b.bytes - a.bytes || a.from - b.from || a.to - b.to),
  );
}
