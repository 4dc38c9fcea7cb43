/** A column: its key in JSON, its heading in Markdown, and the format of its numbers. */
export interface Column {
  readonly key: string;
  readonly head: string;
  readonly format?: "percent" | "times" | "integer" | number;
}

export type Cell = string | number | undefined;

export interface Table {
  /** Name of the table in JSON. */
  readonly id: string;
  readonly title: string;
  readonly columns: readonly Column[];
  readonly rows: readonly Readonly<Record<string, Cell>>[];
}

/** Formats a heading and a table in GitHub's Markdown. */
export function formatMarkdown({ title, columns, rows }: Table): string {
  const formatLine = (cells: readonly string[]) => `| ${cells.join(" | ")} |`;
  const separators = columns.map(({ format }) => (format === undefined ? "---" : "--:"));
  const body = rows.map((row) => formatLine(columns.map((column) => formatCell(row[column.key], column.format))));
  return [`### ${title}`, "", formatLine(columns.map(({ head }) => head)), formatLine(separators), ...body].join("\n");
}

/**
 * Formats one JSON object per row. Numbers have four digits, because more would suggest a precision that no model has.
 */
export function formatJsonLines({ id, rows }: Table): string {
  const roundCell = (cell: Cell) => (typeof cell === "number" ? Number(cell.toPrecision(4)) : cell);
  const roundedRows = rows.map((row) =>
    Object.fromEntries(Object.entries(row).map(([key, cell]) => [key, roundCell(cell)])),
  );
  return roundedRows.map((row) => JSON.stringify({ table: id, ...row })).join("\n");
}

function formatCell(cell: Cell, numberFormat: Column["format"]): string {
  if (cell === undefined) return "–";
  if (typeof cell === "string") return cell;
  if (numberFormat === "percent") return `${(cell * 100).toFixed(1)} %`;
  if (numberFormat === "times") return `${cell.toFixed(2)} ×`;
  if (numberFormat === "integer") return cell.toFixed(0);
  return numberFormat === undefined ? String(cell) : cell.toFixed(numberFormat);
}
