// The page: read the data, show the selection, change it.

import { drawBracket, windowTop } from "./bracket.js";
import { connectControls, keyChange, roleName, showControls } from "./controls.js";
import { readRuns } from "./data.js";
import { byId, html, shown, word } from "./dom.js";
import { cellAt, drawHeatmap, geometry, moveCross } from "./heatmap.js";
import { connectLive } from "./live.js";
import { THEMES } from "./palette.js";
import { asPng, asText, compose, save } from "./picture.js";
import { MEAN, goldOf, headMaps, initialSelection, keptSelection, layerOf, sortsOf, windowSettings } from "./selection.js";
import { fillTable, sentence } from "./table.js";
import { drawThumbnails } from "./thumbnails.js";

// `kept` is the selection that new data keeps where it can: the first one, then what the reader chose
const view = { page: null, runs: [], selection: null, kept: null, theme: null, maps: null, layer: null, panels: [] };

/** Change the selection and show it. */
function change(changes) {
  if (!changes) return;
  Object.assign(view.selection, changes);
  const moved = Object.keys(changes).every((name) => name === "query" || name === "key");
  if (moved) return showQuery();
  view.kept = view.selection;
  showAll();
}

function showAll() {
  const [run] = view.runs;
  view.layer = layerOf(run, view.selection);
  if (view.selection.head !== MEAN) view.selection.head = Math.min(view.selection.head, view.layer.heads - 1);
  view.maps = headMaps(view.layer, view.selection.head, view.selection);
  view.selection.query = Math.min(view.selection.query, view.maps.numQueries - 1);
  if (!sortsOf(run, view.selection).includes(view.selection.sort)) view.selection.sort = "layer";
  showControls(view, change);
  showHeading();
  showQueries();
  view.panels = panels(panelWidth());
  const focused = byId("maps").contains(document.activeElement);
  byId("maps").replaceChildren(...view.panels.map((panel, index) => panelBox(panel, index)));
  if (focused) byId("maps").querySelector("select")?.focus();
  drawThumbnails(byId("thumbnails"), run, view.selection, view.theme, change);
  showQuery();
}

/** Show what depends on the query alone: its bracket, the crosshairs, the sentence and the table. */
function showQuery() {
  const { maps, selection, theme } = view;
  byId("bracket").replaceChildren(bracket(byId("bracket").clientWidth));
  for (const panel of view.panels) {
    const [rows, columns] = [panel.rowLabels.length, panel.columnLabels.length];
    const linked = panel.linked || panel.own;
    moveCross(panel.drawn, panel.place, { query: linked ? Math.min(selection.query, rows - 1) : -1, key: linked ? selection.key : null, rows, columns, theme });
  }
  for (const option of byId("queries").children) {
    const chosen = Number(option.dataset.query) === selection.query;
    option.setAttribute("aria-selected", chosen);
    if (chosen) byId("queries").setAttribute("aria-activedescendant", option.id);
  }
  byId("sentence").replaceChildren(...sentence(maps, selection.query));
  byId("cell").replaceChildren(...cellText());
  const other = view.panels.find((panel) => panel.linked);
  const others = other && other.values.subarray(selection.query * maps.numKeys, (selection.query + 1) * maps.numKeys);
  const caption = ["What “", word(maps.queryLabels[selection.query]), `” sees: ${headName()}`];
  fillTable(byId("table"), maps, selection.query, others, caption);
}

function headName() {
  const { layer, selection } = view;
  const head = selection.head === MEAN ? "mean of heads" : `head ${selection.head + 1}`;
  return `${roleName(selection.role)}, layer ${layer.layer}, ${head}`;
}

function cellText() {
  const { maps, selection } = view;
  if (selection.key === null) return [" "];
  const index = selection.query * maps.numKeys + selection.key;
  const values = maps.window ? [`window ${shown(maps.window[index])}`] : [];
  values.push(`attention ${shown(maps.weights[index])}`);
  const other = view.panels.find((panel) => panel.linked);
  if (other) values.push(`second run ${shown(other.values[index])}`);
  return [word(maps.queryLabels[selection.query]), " → ", word(maps.keyLabels[selection.key]), `: ${values.join(", ")}`];
}

function bracket(width) {
  const { maps, selection, layer } = view;
  const gold = goldOf(view.runs[0], layer, selection);
  return drawBracket({
    maps, gold, query: selection.query, key: selection.key, own: layer.queries === layer.keys ? selection.query : -1,
    top: windowTop(maps.window), steps: (layer.window || windowSettings(layer, selection).segmentSize > 1) && !selection.merge,
    theme: view.theme, width: Math.max(width, 120),
  });
}

/** Return the maps to show: the window, the attention, and that of the second run. */
function panels(width) {
  const { maps, layer, selection, runs, theme } = view;
  const gold = goldOf(runs[0], layer, selection);
  const labels = { rowLabels: maps.queryLabels, columnLabels: maps.keyLabels, gold };
  const found = [{ name: "Attention", scale: "attention", values: maps.weights, own: true, ...labels }];
  if (maps.window) found.unshift({ name: "Window", scale: "window", values: maps.window, own: true, ...labels });
  const otherLayer = runs[1] && layerOf(runs[1], { ...selection, snapshot: Infinity });
  if (otherLayer) {
    const other = headMaps(otherLayer, selection.otherHead === MEAN ? MEAN : Math.min(selection.otherHead, otherLayer.heads - 1), { ...selection, segmentSize: null, expectation: null });
    const same = (a, b) => a.length === b.length && a.every((label, i) => label === b[i]);
    const linked = same(other.queryLabels, maps.queryLabels) && same(other.keyLabels, maps.keyLabels);
    found.push({ name: `Attention of ${runs[1].label}`, scale: "attention", values: other.weights, linked, heads: otherLayer.heads, rowLabels: other.queryLabels, columnLabels: other.keyLabels, gold: linked ? gold : null });
  }
  return found.map((panel) => {
    const highest = panel.scale === "window" ? windowTop(panel.values) : panel.values.reduce((most, value) => Math.max(most, value), 1e-9);
    const place = geometry(panel.rowLabels, panel.columnLabels, width);
    return { ...panel, place, drawn: drawHeatmap({ ...panel, title: panel.name, highest, theme, place }) };
  });
}

function panelWidth() {
  const count = 1 + Boolean(view.maps.window) + Boolean(view.runs[1]);
  // rounded, so it may be too much by half a pixel
  const box = byId("maps").clientWidth - 1;
  const columns = Math.min(count, Math.max(1, Math.floor((box + 24) / 264)));
  return Math.max(Math.min(Math.floor((box - 24 * (columns - 1)) / columns), 560), 200);
}

function panelBox(panel, index) {
  const title = html("h3", {}, panel.name);
  const box = html("figure", { class: "map", "data-map": index }, title, panel.drawn);
  if (panel.heads > 1) title.append(otherHeadSelect(panel.heads));
  panel.drawn.addEventListener("pointermove", (event) => point(event, panel));
  panel.drawn.addEventListener("pointerdown", (event) => point(event, panel));
  panel.drawn.addEventListener("pointerleave", () => change({ key: null }));
  return box;
}

function otherHeadSelect(heads) {
  const chosen = view.selection.otherHead;
  const options = [[MEAN, "mean of heads"], ...Array.from({ length: heads }, (_, head) => [head, `head ${head + 1}`])];
  const select = html("select", { "aria-label": "Head of the second run" });
  select.append(...options.map(([value, name]) => html("option", { value, selected: value === chosen }, name)));
  select.addEventListener("change", () => change({ otherHead: select.value === MEAN ? MEAN : Number(select.value) }));
  return select;
}

function point(event, panel) {
  if (!panel.own && !panel.linked) return;
  const box = panel.drawn.getBoundingClientRect();
  const cell = cellAt(panel.place, event.clientX - box.left, event.clientY - box.top, panel.rowLabels.length, panel.columnLabels.length);
  if (cell && (cell.query !== view.selection.query || cell.key !== view.selection.key)) change(cell);
}

function showQueries() {
  const box = byId("queries");
  box.replaceChildren(
    ...view.maps.queryLabels.map((label, query) => html("li", { id: `query-${query}`, role: "option", "data-query": query, dir: "auto" }, label)),
  );
  byId("query-name").textContent = view.layer.queries === view.layer.keys ? "Query" : `Query (${view.layer.queries})`;
  byId("key-name").textContent = view.layer.queries === view.layer.keys ? "looks at" : `looks at the ${view.layer.keys}`;
}

function showHeading() {
  const { page, runs } = view;
  document.title = `${page.title} – diffwindow`;
  byId("title").textContent = page.title;
  byId("runs").replaceChildren(
    ...runs.map((run, index) => html("span", { class: index ? "run second" : "run" }, index ? `against ${run.label}` : run.label)),
  );
  byId("head-name").textContent = `${headName()} · ${view.layer.kind}`;
  byId("notices").replaceChildren(...page.notices.map((notice) => html("li", {}, notice)));
}

/** Draw the view at the width of a page and arrange it in one picture. */
function picture() {
  const maps = panels(360).map(({ name, drawn, place, rowLabels, columnLabels, own, linked }) => {
    const query = own || linked ? view.selection.query : -1;
    moveCross(drawn, place, { query, key: null, rows: rowLabels.length, columns: columnLabels.length, theme: view.theme });
    return { name, drawn };
  });
  const width = maps.length * 384 - 24;
  return compose({ title: view.page.title, subtitle: `${view.runs[0].label}: ${headName()}`, bracket: bracket(width), maps, theme: view.theme });
}

async function exportPicture(kind) {
  const drawn = picture();
  if (kind === "save-svg") return save(new Blob([asText(drawn)], { type: "image/svg+xml" }), "windows.svg");
  if (kind === "save-png") return save(await asPng(drawn), "windows.png");
  if (kind === "copy-svg") return navigator.clipboard.writeText(asText(drawn));
  return navigator.clipboard.write([new ClipboardItem({ "image/png": asPng(drawn) })]);
}

function connectExport() {
  for (const kind of ["copy-png", "copy-svg", "save-png", "save-svg"]) {
    byId(kind).addEventListener("click", async () => {
      try {
        await exportPicture(kind);
        byId("status").textContent = kind.startsWith("copy") ? "Copied." : "Saved.";
      } catch (error) {
        byId("status").textContent = `The browser refused (${error.message}); save the picture instead.`;
      }
    });
  }
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  view.theme = THEMES[name];
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", name === "dark" ? "Use the light theme" : "Use the dark theme");
  if (view.selection) showAll();
}

function connectPage() {
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  preferred.addEventListener("change", () => setTheme(preferred.matches ? "dark" : "light"));
  setTheme(preferred.matches ? "dark" : "light");
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  // ink on paper, whatever the screen shows
  let before = null;
  addEventListener("beforeprint", () => ((before = document.documentElement.dataset.theme), setTheme("light")));
  addEventListener("afterprint", () => setTheme(before));
  const queryOf = (event) => event.target.closest("[data-query]")?.dataset.query;
  for (const kind of ["pointerover", "click"]) {
    byId("queries").addEventListener(kind, (event) => queryOf(event) && change({ query: Number(queryOf(event)), key: null }));
  }
  byId("bracket").addEventListener("pointerover", (event) => {
    const key = event.target.closest("[data-key]")?.dataset.key;
    if (key !== undefined && Number(key) !== view.selection.key) change({ key: Number(key) });
  });
  byId("bracket").addEventListener("click", (event) => {
    const key = event.target.closest("[data-key]")?.dataset.key;
    if (key !== undefined && view.layer.queries === view.layer.keys) change({ query: Number(key) });
  });
  document.addEventListener("keydown", (event) => {
    if (document.activeElement !== byId("queries") || event.altKey || event.ctrlKey || event.metaKey) return;
    const changes = view.selection && keyChange(view, event.key, view.maps.numQueries);
    if (!changes) return;
    event.preventDefault();
    change({ key: null, ...changes });
  });
  let width = 0;
  new ResizeObserver(() => {
    if (view.selection && byId("main").clientWidth !== width) {
      width = byId("main").clientWidth;
      showAll();
    }
  }).observe(byId("main"));
}

/** Show new data; a server may bring some at any time. */
async function load(page) {
  const runs = await readRuns(page);
  const first = initialSelection(runs);
  Object.assign(view, { page, runs, kept: view.kept ?? first, selection: keptSelection(runs, view.kept ?? first, first) });
  byId("main").hidden = false;
  showAll();
}

connectPage();
connectControls(view, change);
connectExport();
const data = JSON.parse(byId("data").textContent);
if (data.live) connectLive(data.live, load);
byId("title").textContent = data.title;
if (data.runs.length) await load(data);
document.documentElement.dataset.ready = "";
