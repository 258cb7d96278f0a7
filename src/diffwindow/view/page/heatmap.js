// A map of queries by keys: one path per colour, so that 60 × 60 cells are 48 elements and stay vectors.

import { FONT } from "./bracket.js";
import { fitted, svg, textWidth } from "./dom.js";
import { levelOf, levels, rgb } from "./palette.js";

const LABEL_FONT = `11px ${FONT}`;
const BAR = 46;

/**
 * Return the place of the cells in a drawing: its margins, the size of a cell, the size of it all.
 *
 * It is `width` wide, or wider where that leaves less than a pixel per key.
 */
export function geometry(rowLabels, columnLabels, width) {
  const longest = (labels) => Math.min(Math.max(0, ...labels.map((label) => textWidth(label, LABEL_FONT))), 84);
  const left = longest(rowLabels) + 10;
  const top = longest(columnLabels) + 10;
  const cell = Math.max(Math.min((width - left - 2) / columnLabels.length, 30), 1);
  return { left, top, cell, width: Math.max(width, left + cell * columnLabels.length + 2), height: top + cell * rowLabels.length + BAR };
}

/** Draw a matrix with its labels and colour bar; `highest` is the value of the last colour. */
export function drawHeatmap({ title, values, rowLabels, columnLabels, highest, scale, theme, place, gold }) {
  const { left, top, cell, width, height } = place;
  const [rows, columns] = [rowLabels.length, columnLabels.length];
  const drawn = svg("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, "font-size": 11, role: "img",
    "aria-label": `${title}: ${rows} queries by ${columns} keys, from 0 to ${highest.toFixed(3)}`,
  });
  const colours = levels(theme.scales[scale]).map(rgb);
  const paths = colours.map(() => "");
  values.forEach((value, index) => {
    const level = levelOf(value / highest);
    if (level === 0) return;
    const [x, y] = [left + (index % columns) * cell, top + Math.floor(index / columns) * cell];
    paths[level] += `M${x.toFixed(2)} ${y.toFixed(2)}h${cell.toFixed(2)}v${cell.toFixed(2)}h${(-cell).toFixed(2)}z`;
  });
  const cells = svg("g", { "shape-rendering": "crispEdges" });
  cells.append(svg("rect", { x: left, y: top, width: cell * columns, height: cell * rows, fill: colours[0] }));
  paths.forEach((path, level) => path && cells.append(svg("path", { d: path, fill: colours[level] })));
  const frame = { fill: "none", "pointer-events": "none" };
  drawn.append(cells, svg("rect", { ...frame, x: left, y: top, width: cell * columns, height: cell * rows, stroke: theme.line }));
  drawn.append(...axisLabels({ rowLabels, columnLabels, left, top, cell, theme }));
  if (gold) {
    const span = { x: left + gold.first * cell, y: top + gold.query * cell, width: (gold.last - gold.first + 1) * cell, height: cell };
    drawn.append(svg("rect", { ...frame, ...span, stroke: theme.gold, "stroke-width": 2, "data-part": "gold" }));
  }
  for (const part of ["row", "column"]) drawn.append(svg("rect", { ...frame, stroke: theme.focus, "stroke-width": 1.25, "data-cross": part }));
  drawn.append(...colourBar({ colours, highest, theme, x: left, y: top + cell * rows + 12, width: Math.min(cell * columns, 160) }));
  return drawn;
}

function axisLabels({ rowLabels, columnLabels, left, top, cell, theme }) {
  // where labels would touch, only every second, third, … is shown
  const every = Math.max(1, Math.ceil(11 / cell));
  const text = (label, more) =>
    svg("text", { fill: theme.muted, "text-anchor": "end", "dominant-baseline": "central", "unicode-bidi": "plaintext", ...more }, fitted(label, 84, LABEL_FONT));
  const parts = [];
  rowLabels.forEach((label, row) => {
    const place = { x: left - 6, y: top + (row + 0.5) * cell, "data-row": row };
    if (row % every === 0) parts.push(text(label, place));
  });
  columnLabels.forEach((label, column) => {
    const place = { transform: `translate(${left + (column + 0.5) * cell} ${top - 6}) rotate(-90)`, "text-anchor": "start", "data-column": column };
    if (column % every === 0) parts.push(text(label, place));
  });
  return parts;
}

function colourBar({ colours, highest, theme, x, y, width }) {
  const step = width / colours.length;
  const bar = svg("g", { "shape-rendering": "crispEdges" });
  colours.forEach((fill, i) => bar.append(svg("rect", { x: x + i * step, y, width: step + 0.5, height: 8, fill })));
  const label = (at, anchor, value) => svg("text", { x: at, y: y + 22, fill: theme.muted, "text-anchor": anchor }, value);
  return [
    bar,
    svg("rect", { x, y, width, height: 8, fill: "none", stroke: theme.line }),
    label(x, "start", "0"),
    label(x + width, "end", String(Number(highest.toPrecision(3)))),
  ];
}

/** Move the crosshair of a drawing to a query, and to a key if there is one. */
export function moveCross(drawn, { left, top, cell }, { query, key, rows, columns, theme }) {
  const place = (part, x, y, width, height) => {
    const rect = drawn.querySelector(`[data-cross=${part}]`);
    for (const [name, value] of Object.entries({ x, y, width, height })) rect.setAttribute(name, value);
    rect.setAttribute("visibility", width > 0 ? "visible" : "hidden");
  };
  place("row", left, top + query * cell, query < 0 ? 0 : cell * columns, cell);
  place("column", left + (key ?? 0) * cell, top, key === null ? 0 : cell, cell * rows);
  for (const [kind, index] of [["row", query], ["column", key]]) {
    for (const label of drawn.querySelectorAll(`[data-${kind}]`)) {
      const chosen = Number(label.dataset[kind]) === index;
      label.setAttribute("fill", chosen ? theme.ink : theme.muted);
      label.setAttribute("font-weight", chosen ? 700 : 400);
    }
  }
}

/** Return the cell under a point of a drawing as { query, key }, or null. */
export function cellAt({ left, top, cell }, x, y, rows, columns) {
  const [key, query] = [Math.floor((x - left) / cell), Math.floor((y - top) / cell)];
  return key >= 0 && key < columns && query >= 0 && query < rows ? { query, key } : null;
}
