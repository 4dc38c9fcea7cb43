import { bytesText } from "../src/draw/quantity.ts";
import type { LinkData } from "../src/view/data.ts";
import { onThemeChange, readTheme, type Theme } from "./colors.ts";
import { createElement, wrapInLabel, createSection, createTable } from "./elements.ts";

const MAP_WIDTH = 900;
const MAP_MARGIN = 14;

interface Circle {
  readonly x: number;
  readonly y: number;
}

/** Positions of nodes and ranks. */
export interface NodeMap {
  readonly height: number;
  readonly nodes: ReadonlyMap<number, Circle & { readonly size: number }>;
  readonly ranks: readonly (Circle & { readonly size: number })[];
}

/** Arranges nodes in a grid, and the ranks of each node in a square. */
export function layoutNodes(nodeByRank: readonly number[]): NodeMap {
  const nodeNumbers = [...new Set(nodeByRank)].toSorted((a, b) => a - b);
  const nodesPerRow = Math.max(1, Math.ceil(Math.sqrt(nodeNumbers.length * 1.8)));
  const columnPitch = (MAP_WIDTH - 2 * MAP_MARGIN) / nodesPerRow;
  const size = Math.min(columnPitch * 0.62, 150);
  const numGridRows = Math.ceil(nodeNumbers.length / nodesPerRow);
  const rowPitch = Math.min(columnPitch, size * 1.7);
  const nodes = new Map(
    nodeNumbers.map((nodeNumber, i) => {
      const x = MAP_MARGIN + (i % nodesPerRow) * columnPitch + (columnPitch - size) / 2;
      return [nodeNumber, { x, y: MAP_MARGIN + Math.floor(i / nodesPerRow) * rowPitch, size }];
    }),
  );
  const placedCountByNode = new Map<number, number>();
  const rankCountByNode = new Map<number, number>();
  for (const node of nodeByRank) rankCountByNode.set(node, (rankCountByNode.get(node) ?? 0) + 1);
  const ranks = nodeByRank.map((node) => {
    const i = placedCountByNode.get(node) ?? 0;
    placedCountByNode.set(node, i + 1);
    const side = Math.ceil(Math.sqrt(rankCountByNode.get(node)!));
    const cellSize = size / side;
    const { x, y } = nodes.get(node)!;
    return {
      x: x + (i % side) * cellSize + cellSize / 2,
      y: y + Math.floor(i / side) * cellSize + cellSize / 2,
      size: cellSize * 0.72,
    };
  });
  return { height: 2 * MAP_MARGIN + numGridRows * rowPitch - (rowPitch - size), nodes, ranks };
}

/** Creates the section on bytes between ranks, or nodes, with a map of the nodes. */
export function createLinkSection(data: LinkData): HTMLElement {
  const map = layoutNodes(data.nodes);
  const ratio = Math.min(2, devicePixelRatio);
  const canvas = createElement("canvas", {
    class: "links",
    role: "img",
    width: `${MAP_WIDTH * ratio}`,
    height: `${map.height * ratio}`,
  });
  const unitName = data.between === "ranks" ? "rank" : "node";
  const rankInput = createElement("input", {
    type: "number",
    min: "0",
    placeholder: "all",
    inputmode: "numeric",
    size: "6",
  });
  const output = createElement("output", { "aria-live": "polite" });
  const isInterNode = ({ from, to }: { from: number; to: number }): boolean =>
    data.between === "nodes" ? from !== to : data.nodes[from] !== data.nodes[to];
  const selectLinks = (): LinkData["links"] =>
    data.links.filter(
      ({ from, to }) => rankInput.value === "" || from === rankInput.valueAsNumber || to === rankInput.valueAsNumber,
    );
  const table = createLinkTable(unitName, () => selectLinks(), isInterNode);
  const draw = (): void => {
    const links = selectLinks();
    const context = canvas.getContext("2d")!;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawMap(context, { data, map, links, isInterNode });
    const [intraNodeBytes, interNodeBytes] = [false, true].map((isInterNodeSum) =>
      links.filter((link) => isInterNode(link) === isInterNodeSum).reduce((sum, { bytes }) => sum + bytes, 0),
    );
    const summary = `${links.length} ${links.length === 1 ? "link" : "links"}; ${bytesText(intraNodeBytes!)} within nodes, ${bytesText(interNodeBytes!)} between them.`;
    output.value = summary;
    canvas.setAttribute(
      "aria-label",
      `Map of ${map.nodes.size} ${map.nodes.size === 1 ? "node" : "nodes"} and ${data.nodes.length} ranks. ${summary}`,
    );
    table.dispatchEvent(new Event("refresh"));
  };
  rankInput.addEventListener("input", draw);
  onThemeChange(draw);
  draw();
  return createSection(
    "links",
    "Bytes by link",
    createElement(
      "p",
      {},
      `Bytes sent between ${unitName}s, forward and backward. Wider and darker lines carry more bytes. Collectives are counted as direct sends.`,
    ),
    createElement("div", { class: "controls" }, wrapInLabel(`Only ${unitName}`, rankInput)),
    canvas,
    output,
    table,
  );
}

interface MapScene {
  readonly data: LinkData;
  readonly map: NodeMap;
  readonly links: LinkData["links"];
  isInterNode(link: { from: number; to: number }): boolean;
}

function drawMap(context: CanvasRenderingContext2D, { data, map, links, isInterNode }: MapScene): void {
  const theme = readTheme();
  context.clearRect(0, 0, MAP_WIDTH, map.height);
  for (const { x, y, size } of map.nodes.values()) {
    context.fillStyle = theme.track;
    context.strokeStyle = theme.rule;
    context.beginPath();
    context.roundRect(x - 5, y - 5, size + 10, size + 10, 6);
    context.fill();
    context.stroke();
  }
  drawLinks(context, { data, map, links, isInterNode }, theme);
  const bytesSent = new Float64Array(data.nodes.length);
  if (data.between === "ranks") for (const { from, bytes } of links) bytesSent[from]! += bytes;
  const maxBytes = Math.max(1, ...bytesSent);
  for (const [rank, { x, y, size }] of map.ranks.entries()) {
    context.globalAlpha = data.between === "ranks" ? 0.25 + 0.75 * (bytesSent[rank]! / maxBytes) : 0.6;
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

/** Draws links as curves to the right of their direction, so that both directions of a link are apart. */
function drawLinks(context: CanvasRenderingContext2D, { data, map, links, isInterNode }: MapScene, theme: Theme): void {
  const maxBytes = links.reduce((max, { bytes }) => Math.max(max, bytes), 1);
  const getCircle = (endpointNumber: number): Circle => {
    if (data.between === "ranks") return map.ranks[endpointNumber]!;
    const { x, y, size } = map.nodes.get(endpointNumber)!;
    return { x: x + size / 2, y: y + size / 2 };
  };
  for (const link of links.toSorted((a, b) => a.bytes - b.bytes)) {
    const [start, end] = [getCircle(link.from), getCircle(link.to)];
    const share = link.bytes / maxBytes;
    const [dx, dy] = [end.x - start.x, end.y - start.y];
    context.strokeStyle = isInterNode(link) ? theme.accent : theme.ink;
    context.globalAlpha = (0.12 + 0.7 * share) / Math.max(1, Math.sqrt(links.length / 400));
    context.lineWidth = 0.6 + 3 * share;
    context.beginPath();
    context.moveTo(start.x, start.y);
    context.quadraticCurveTo((start.x + end.x) / 2 - dy * 0.18, (start.y + end.y) / 2 + dx * 0.18, end.x, end.y);
    context.stroke();
  }
  context.globalAlpha = 1;
}

function createLinkTable(
  unitName: string,
  getLinks: () => LinkData["links"],
  isInterNode: MapScene["isInterNode"],
): HTMLDetailsElement {
  return createTable(
    "bytes by link, in descending order",
    [
      { name: `from ${unitName}`, isNumber: true, text: ({ from }) => `${from}` },
      { name: `to ${unitName}`, isNumber: true, text: ({ to }) => `${to}` },
      { name: "bytes", isNumber: true, text: ({ bytes }) => bytesText(bytes) },
      { name: "link", text: (link) => (isInterNode(link) ? "between nodes" : "within a node") },
    ],
    () => getLinks().toSorted((a, b) => b.bytes - a.bytes || a.from - b.from || a.to - b.to),
  );
}
