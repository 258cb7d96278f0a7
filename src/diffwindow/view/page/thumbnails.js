// Layers × heads as small pictures, each a button.

import { windowTop } from "./bracket.js";
import { html, shown } from "./dom.js";
import { levelOf, levels } from "./palette.js";
import { MEAN, SORTS, headMaps, layersOf, sortedHeads } from "./selection.js";

/** Paint a matrix on a canvas, one pixel per cell; the page scales it up without smoothing. */
export function paint(canvas, values, rows, columns, highest, stops) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const colours = levels(stops).map((colour) => [...colour, 255]);
  values.forEach((value, index) => image.data.set(colours[levelOf(value / highest)], 4 * index));
  context.putImageData(image, 0, 0);
}

function thumbnail({ layer, head, measures }, selection, theme) {
  const maps = headMaps(layer, head, selection);
  const windowed = selection.show === "window" && maps.window;
  const values = windowed ? maps.window : maps.weights;
  const highest = windowed ? windowTop(values) : values.reduce((most, value) => Math.max(most, value), 1e-9);
  const canvas = html("canvas", { "aria-hidden": "true" });
  paint(canvas, values, maps.numQueries, maps.numKeys, highest, theme.scales[windowed ? "window" : "attention"]);
  const name = head === MEAN ? `layer ${layer.layer}, mean of heads` : `layer ${layer.layer}, head ${head + 1}`;
  const tag = head === MEAN ? "mean" : `${layer.layer} · ${head + 1}`;
  const sorted = SORTS[selection.sort];
  const measure = sorted.unit && measures ? `${shown(measures[selection.sort])} ${sorted.unit}` : "";
  const chosen = layer.layer === selection.layer && head === selection.head;
  const button = html(
    "button",
    { type: "button", class: "thumbnail", "aria-pressed": chosen, "aria-label": `${tag}, ${name}${measure && `, ${measure}`}`, title: `${name}, ${layer.kind}` },
    canvas,
    html("span", {}, tag),
  );
  if (measure) button.append(html("small", {}, measure));
  return button;
}

/** Fill a box with the heads of a role: a row per layer, or one list in the order of a measure. */
export function drawThumbnails(box, run, selection, theme, choose) {
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.head : null;
  const add = (row, one) => {
    const button = thumbnail(one, selection, theme);
    button.dataset.head = `${one.layer.layer} ${one.head}`;
    button.addEventListener("click", () => choose({ layer: one.layer.layer, head: one.head }));
    row.append(button);
  };
  const rows = [];
  if (selection.sort === "layer") {
    for (const layer of layersOf(run, selection, selection.role)) {
      const row = html("div", { class: "heads", role: "group", "aria-label": `Layer ${layer.layer}, ${layer.kind}` });
      row.append(html("div", { class: "layer" }, `Layer ${layer.layer}`, html("span", { class: "kind" }, layer.kind)));
      for (let head = 0; head < layer.heads; head++) add(row, { layer, head });
      if (layer.heads > 1) add(row, { layer, head: MEAN });
      rows.push(row);
    }
  } else {
    const row = html("div", { class: "heads", role: "group", "aria-label": `Heads by ${SORTS[selection.sort].name}` });
    for (const one of sortedHeads(run, selection)) add(row, one);
    rows.push(row);
  }
  box.replaceChildren(...rows);
  if (focused !== null) [...box.querySelectorAll("button")].find((button) => button.dataset.head === focused)?.focus();
}
