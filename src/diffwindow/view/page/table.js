// What a query sees, in words and as a table.

import { html, shown, word } from "./dom.js";

/** Say in one sentence, as nodes, what the window and the attention of a query do. */
export function sentence(maps, query) {
  const row = (matrix) => matrix.subarray(query * maps.numKeys, (query + 1) * maps.numKeys);
  const highest = (values) => values.reduce((best, value, key) => (value > values[best] ? key : best), 0);
  const named = (values) => ["“", word(maps.keyLabels[highest(values)]), "”"];
  const own = ["“", word(maps.queryLabels[query]), "” "];
  const most = (values) => shown(values[highest(values)]);
  const weights = row(maps.weights);
  const attention = ["attends most to ", ...named(weights), ` (${most(weights)})`];
  if (!maps.window) return [...own, "has no window and ", ...attention, "."];
  const [left, right, window] = [row(maps.phiLeft), row(maps.phiRight), row(maps.window)];
  if (!window.some((value) => value > 0)) return [...own, "sees no key."];
  const width = window.reduce((total, value) => total + Math.min(value, 1), 0);
  return [
    ...own, ...attention, ". Its pointers are strongest at ", ...named(left), ` (left, ${most(left)}) and `,
    ...named(right), ` (right, ${most(right)}); the window holds about ${width.toFixed(1)} of ${maps.numKeys} keys.`,
  ];
}

/** Fill a table with a row per key. `others` are the second run's weights of this query, or null; `caption` has nodes. */
export function fillTable(table, maps, query, others, caption) {
  const at = (matrix, key) => shown(matrix[query * maps.numKeys + key]);
  const columns = [["Attention", (key) => at(maps.weights, key)]];
  if (maps.window) {
    columns.unshift(["Window", (key) => at(maps.window, key)]);
    columns.push(["Left pointer", (key) => at(maps.phiLeft, key)], ["Right pointer", (key) => at(maps.phiRight, key)]);
  }
  if (others) columns.push(["Attention of the second run", (key) => shown(others[key])]);
  const head = html("tr", {}, ...["Key", ...columns.map(([name]) => name)].map((name) => html("th", { scope: "col" }, name)));
  const rows = maps.keyLabels.map((label, key) =>
    html("tr", {}, html("th", { scope: "row", dir: "auto" }, label), ...columns.map(([, value]) => html("td", {}, value(key)))),
  );
  table.replaceChildren(html("caption", {}, ...caption), html("thead", {}, head), html("tbody", {}, ...rows));
}
