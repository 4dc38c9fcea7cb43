import { type Check, note, ok } from "../finding.ts";

/** What connects GPUs of this host, as `nvidia-smi topo -m` tells: NV12 is twelve NVLinks; the rest go over PCIe or further. */
export const links: Check = {
  name: "GPU links",
  async run(system) {
    const cuda = await system.ask("cuda");
    if (!("value" in cuda) || cuda.value.gpus.length < 2) return [];
    const table = system.run("nvidia-smi", "topo", "-m");
    const pairs = pairsOf(table ?? "");
    if (pairs.length === 0) return [note("unknown, for nvidia-smi does not tell")];
    const slow = pairs.filter(({ link }) => !link.startsWith("NV"));
    if (slow.length === 0)
      return [ok(`NVLink between all pairs (${[...new Set(pairs.map(({ link }) => link))].join(", ")})`)];
    const kinds = [...new Set(slow.map(({ link }) => link))].sort().join(", ");
    const { a, b } = slow[0]!;
    return [
      note(
        `${slow.length} of ${pairs.length} pairs have no NVLink (${kinds}), the first of them GPUs ${a} and ${b}`,
        "put the axis that communicates most on GPUs that do: mosaic-plan weighs it",
      ),
    ];
  },
};

interface Pair {
  readonly a: number;
  readonly b: number;
  readonly link: string;
}

/** The upper half of the table: rows "GPU0  X  NV18 …", columns in the same order. */
function pairsOf(table: string): readonly Pair[] {
  const rows = table
    .split("\n")
    .map((line) => line.trim().split(/\s+/))
    .filter(([name, ...cells]) => /^GPU\d+$/.test(name ?? "") && cells.includes("X"));
  return rows.flatMap(([, ...cells], a) => {
    return cells.slice(a + 1, rows.length).map((link, i) => ({ a, b: a + 1 + i, link }));
  });
}
