import { fileURLToPath } from "node:url";
import { launch } from "@mosaic/launcher";
import { expect, it } from "vitest";
import { defaultOptions } from "../src/model.ts";

interface Report {
  readonly rank: number;
  readonly rowsHere: number;
  readonly bytesSent: number;
}

it("distributes the rows of a table over four processes, and sends only keys and values of known rows", async () => {
  const lines: string[] = [];
  const [rows, known, ranks] = [801, 101, 4];
  const result = await launch({
    entry: fileURLToPath(new URL("../dist/flights.js", import.meta.url)),
    args: ["--rows", String(rows), "--known", String(known)],
    nprocPerNode: ranks,
    onEvent: (event) => {
      if (event.type === "line" && event.stream === "stdout") lines.push(event.text);
    },
  });
  expect(result.outcome).toBe("succeeded");
  const reports = lines.map((line) => JSON.parse(line) as Report).toSorted((a, b) => a.rank - b.rank);
  expect(reports.map(({ rank }) => rank)).toEqual([0, 1, 2, 3]);
  expect(reports.reduce((sum, { rowsHere }) => sum + rowsHere, 0)).toBe(rows);
  // Keys and values of the known rows are passed around the ring once per layer: three columns (two features and the
  // class), and only the class in the last layer. The ensemble has two members.
  const totalBytesSent = reports.reduce((sum, { bytesSent }) => sum + bytesSent, 0);
  expect(totalBytesSent).toBe(
    2 * (3 * (defaultOptions.layers - 1) + 1) * (ranks - 1) * known * 2 * defaultOptions.embedDim * 4,
  );
});
