/** Plain tables for the terminal: columns as wide as their cells, numbers to the right. */

export type Column = { readonly title: string; readonly right?: boolean };

/** Rows of text under their titles; a cell that does not fit the width at the end of a line is cut with `…`. */
export function table(columns: readonly Column[], rows: readonly (readonly string[])[], widthMax?: number): string {
  const widths = columns.map(({ title }, at) => Math.max(title.length, ...rows.map((row) => (row[at] ?? "").length)));
  const line = (cells: readonly string[]): string => {
    const text = cells
      .map((cell, at) => {
        const width = widths[at] ?? 0;
        if (columns[at]?.right === true) return cell.padStart(width);
        return at === cells.length - 1 ? cell : cell.padEnd(width);
      })
      .join("  ");
    return widthMax !== undefined && text.length > widthMax ? `${text.slice(0, widthMax - 1)}…` : text;
  };
  return [line(columns.map(({ title }) => title)), ...rows.map(line)].join("\n");
}
