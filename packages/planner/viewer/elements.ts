/** Creates an element with attributes and content. */
export function createElement<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Readonly<Record<string, string>> = {},
  ...content: readonly (Node | string)[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) node.setAttribute(attribute, value);
  node.append(...content);
  return node;
}

/** Creates a button. */
export function createButton(label: string, description: string, onClick: () => void): HTMLButtonElement {
  const node = createElement("button", { type: "button", "aria-label": description, title: description }, label);
  node.addEventListener("click", onClick);
  return node;
}

/** Adds a label before a control. */
export function wrapInLabel<T extends HTMLElement>(labelText: string, control: T): HTMLLabelElement {
  return createElement("label", {}, `${labelText} `, control);
}

/** Creates a part of the page, under a heading. */
export function createSection(id: string, heading: string, ...content: readonly (Node | string)[]): HTMLElement {
  const title = createElement("h2", { id: `${id}-heading` }, heading);
  return createElement("section", { id, "aria-labelledby": `${id}-heading` }, title, ...content);
}

/** One column of a table. */
export interface TableColumn<T> {
  readonly name: string;
  /** Numbers are aligned right. */
  readonly isNumber?: boolean;
  text(row: T): string;
}

/** Maximum number of rows. Further rows are counted below the table. */
const MAX_TABLE_ROWS = 1100;

/** Creates a table of a figure's numbers. It is closed at first, and filled when it is opened. */
export function createTable<T>(
  caption: string,
  columns: readonly TableColumn<T>[],
  rows: () => readonly T[],
): HTMLDetailsElement {
  const summary = createElement("summary", {}, `Table: ${caption}`);
  const frame = createElement("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption });
  const details = createElement("details", {}, summary, frame);
  const fillTable = (): void => {
    if (!details.open) return;
    const allRows = rows();
    const headerRow = createElement(
      "tr",
      {},
      ...columns.map(({ name }) => createElement("th", { scope: "col" }, name)),
    );
    const bodyRows = allRows
      .slice(0, MAX_TABLE_ROWS)
      .map((row) => createElement("tr", {}, ...columns.map((column, i) => createCell(column, row, i))));
    const table = createElement(
      "table",
      {},
      createElement("caption", {}, caption),
      createElement("thead", {}, headerRow),
    );
    table.append(createElement("tbody", {}, ...bodyRows));
    frame.replaceChildren(table);
    if (allRows.length > MAX_TABLE_ROWS)
      frame.append(createElement("p", {}, `${allRows.length - MAX_TABLE_ROWS} more rows are not shown.`));
  };
  details.addEventListener("toggle", fillTable);
  details.addEventListener("refresh", fillTable);
  return details;
}

function createCell<T>({ text, isNumber }: TableColumn<T>, row: T, i: number): HTMLTableCellElement {
  const attributes = isNumber === true ? { class: "number" } : {};
  return i === 0
    ? createElement("th", { scope: "row", ...attributes }, text(row))
    : createElement("td", attributes, text(row));
}
