/** Makes an element: its attributes, then what is in it. */
export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Readonly<Record<string, string>> = {},
  ...content: readonly (Node | string)[]
): HTMLElementTagNameMap[K] {
  const created = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) created.setAttribute(attribute, value);
  created.append(...content);
  return created;
}

/** A button that does one thing. */
export function button(label: string, description: string, onClick: () => void): HTMLButtonElement {
  const created = element("button", { type: "button", "aria-label": description, title: description }, label);
  created.addEventListener("click", onClick);
  return created;
}

/** A control with its label before it. */
export function withLabel<T extends HTMLElement>(labelText: string, control: T): HTMLLabelElement {
  return element("label", {}, `${labelText} `, control);
}

/** A part of the page, under a heading. */
export function section(id: string, heading: string, ...content: readonly (Node | string)[]): HTMLElement {
  const title = element("h2", { id: `${id}-heading` }, heading);
  return element("section", { id, "aria-labelledby": `${id}-heading` }, title, ...content);
}

/** One column of a table. */
export interface TableColumn<T> {
  readonly name: string;
  /** Numbers stand right. */
  readonly isNumber?: boolean;
  text(row: T): string;
}

/** Rows beyond these are counted below the table. */
const MAX_TABLE_ROWS = 1100;

/** The numbers of a figure as a table, closed at first. It is filled when it is opened. */
export function createTable<T>(
  caption: string,
  columns: readonly TableColumn<T>[],
  rows: () => readonly T[],
): HTMLDetailsElement {
  const summary = element("summary", {}, `Table: ${caption}`);
  const frame = element("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption });
  const details = element("details", {}, summary, frame);
  const fill = (): void => {
    if (!details.open) return;
    const allRows = rows();
    const head = element("tr", {}, ...columns.map(({ name }) => element("th", { scope: "col" }, name)));
    const lines = allRows
      .slice(0, MAX_TABLE_ROWS)
      .map((row) => element("tr", {}, ...columns.map((column, i) => cell(column, row, i))));
    const table = element("table", {}, element("caption", {}, caption), element("thead", {}, head));
    table.append(element("tbody", {}, ...lines));
    frame.replaceChildren(table);
    if (allRows.length > MAX_TABLE_ROWS)
      frame.append(element("p", {}, `${allRows.length - MAX_TABLE_ROWS} more rows are not shown.`));
  };
  details.addEventListener("toggle", fill);
  details.addEventListener("refresh", fill);
  return details;
}

function cell<T>({ text, isNumber }: TableColumn<T>, row: T, i: number): HTMLTableCellElement {
  const kind = isNumber === true ? { class: "number" } : {};
  return i === 0 ? element("th", { scope: "row", ...kind }, text(row)) : element("td", kind, text(row));
}
