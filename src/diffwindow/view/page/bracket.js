// The soft bracket: a query's window over the keys, with both pointers as bars below (the paper's Figure 1).

import { fitted, shown, svg, textWidth } from "./dom.js";
import { colourAt, inkOn, rgb } from "./palette.js";

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
const CHIP_FONT = `13px ${FONT}`;
const LANE = { top: 26, window: 112, gap: 8, pointers: 62, bottom: 24 };
const LONGEST = 110;

/** Return the value at the top of a window's lane: 1, or the next quarter above all values. */
export function windowTop(window) {
  const highest = window ? window.reduce((most, value) => Math.max(most, value), 0) : 1;
  return Math.max(1, Math.ceil((highest - 0.005) * 4) / 4);
}

/** Place the keys: side by side as they read if they fit, else in equal columns with turned labels. */
export function columns(labels, width) {
  const natural = labels.map((label) => Math.max(textWidth(label, CHIP_FONT) + 16, 30));
  const total = natural.reduce((sum, one) => sum + one, 0);
  const turned = total > width;
  const spare = turned ? 0 : (width - total) / labels.length;
  const widths = turned ? labels.map(() => Math.max(width / labels.length, 15)) : natural.map((one) => one + spare);
  let x = 0;
  const places = widths.map((one) => {
    const place = { x, width: one, middle: x + one / 2 };
    x += one;
    return place;
  });
  return { places, turned, width: x };
}

/**
 * Draw the window of one query.
 *
 * `maps` are those of `headMaps`; `top` is the value of M at the top of the lane, `steps` whether the
 * window is drawn in steps, as by segments, and `own` the key that is the query itself, if any.
 */
export function drawBracket({ maps, query, key, own, gold, top, steps, theme, width }) {
  const row = (matrix) => matrix && matrix.subarray(query * maps.numKeys, (query + 1) * maps.numKeys);
  const [weights, window, left, right] = [maps.weights, maps.window, maps.phiLeft, maps.phiRight].map(row);
  const layout = columns(maps.keyLabels, width);
  const chips = layout.turned ? Math.min(Math.max(...maps.keyLabels.map((label) => textWidth(label, CHIP_FONT))) + 14, LONGEST) : 30;
  const base = LANE.top + LANE.window;
  const below = base + LANE.gap + chips + LANE.gap;
  const height = below + (window ? LANE.pointers + LANE.bottom : 6);
  const drawn = svg("svg", {
    width: layout.width, height, viewBox: `0 0 ${layout.width} ${height}`, "font-family": FONT, "font-size": 13,
    role: "img", "aria-label": `The window of the query ${maps.queryLabels[query]} over the keys`,
  });
  if (key !== null && layout.places[key]) {
    const { x, width: wide } = layout.places[key];
    drawn.append(svg("rect", { x, y: LANE.top, width: wide, height: height - LANE.top - LANE.bottom, fill: theme.ink, "fill-opacity": 0.05 }));
  }
  drawn.append(...windowLane({ window, layout, top, steps, theme, base, gold: gold?.query === query ? gold : null }));
  drawn.append(...keyChips({ maps, weights, layout, theme, y: base + LANE.gap, height: chips, own }));
  if (window) drawn.append(...pointerLane({ left, right, layout, theme, y: below }));
  return drawn;
}

function windowLane({ window, layout, top, steps, theme, base, gold }) {
  const parts = [];
  const y = (value) => base - (Math.min(value, top) / top) * LANE.window;
  parts.push(svg("line", { x1: 0, x2: layout.width, y1: base, y2: base, stroke: theme.line }));
  if (!window) {
    parts.push(svg("text", { x: layout.width / 2, y: base - LANE.window / 2, fill: theme.muted, "text-anchor": "middle" }, "This attention has no learned window."));
    return parts;
  }
  for (let value = 1; value <= top; value++) {
    parts.push(svg("line", { x1: 0, x2: layout.width, y1: y(value), y2: y(value), stroke: theme.muted, "stroke-opacity": 0.5, "stroke-dasharray": "2 4" }));
  }
  if (gold) parts.push(...goldSpan(layout.places[gold.first].x, layout.places[gold.last], theme));
  const line = steps ? stepPath(window, layout.places, y) : smoothPath(window, layout.places, y);
  parts.push(
    svg("path", { d: `${line} L ${layout.width} ${base} L 0 ${base} Z`, fill: theme.windowFill, "fill-opacity": 0.2 }),
    svg("path", { d: line, fill: "none", stroke: theme.window, "stroke-width": 2.25, "stroke-linejoin": "round", "data-part": "window" }),
    svg("text", { x: 0, y: 14, fill: theme.window, "font-size": 12, "font-weight": 600 }, `window, 0 to ${top}`),
  );
  return parts;
}

function goldSpan(from, { x, width }, theme) {
  const [start, end, y] = [from + 3, x + width - 3, LANE.top - 8];
  return [
    svg("path", { d: `M ${start} ${y + 6} V ${y} H ${end} V ${y + 6}`, fill: "none", stroke: theme.gold, "stroke-width": 1.5, "data-part": "gold" }),
    svg("text", { x: (start + end) / 2, y: y - 4, fill: theme.gold, "font-size": 11, "text-anchor": "middle" }, "gold span"),
  ];
}

function keyChips({ maps, weights, layout, theme, y, height, own }) {
  const most = Math.max(...weights, 1e-9);
  return layout.places.map(({ x, width, middle }, key) => {
    const colour = colourAt(theme.scales.attention, 0.85 * (weights[key] / most));
    const text = { fill: inkOn(colour), "text-anchor": layout.turned ? "end" : "middle", "dominant-baseline": "central", "unicode-bidi": "plaintext" };
    const label = svg(
      "text",
      layout.turned ? { ...text, transform: `translate(${middle} ${y + 6}) rotate(-90)` } : { ...text, x: middle, y: y + height / 2 },
      layout.turned ? fitted(maps.keyLabels[key], height - 12, CHIP_FONT) : maps.keyLabels[key],
    );
    if (key === own) label.setAttribute("font-weight", 700);
    const chip = svg("rect", {
      x: x + 1, y, width: Math.max(width - 2, 1), height, rx: 5, fill: rgb(colour),
      stroke: key === own ? theme.ink : theme.line, "stroke-width": key === own ? 2 : 1,
    });
    return svg("g", { "data-key": key }, svg("title", {}, `${maps.keyLabels[key]}: attention ${shown(weights[key])}`), chip, label);
  });
}

function pointerLane({ left, right, layout, theme, y }) {
  const parts = [svg("line", { x1: 0, x2: layout.width, y1: y, y2: y, stroke: theme.line })];
  layout.places.forEach(({ middle, width }, key) => {
    const bar = Math.min(width * 0.34, 14);
    for (const [values, colour, at, part] of [[left, theme.left, middle - bar - 0.5, "left"], [right, theme.right, middle + 0.5, "right"]]) {
      const height = Math.max(values[key] * LANE.pointers, values[key] > 0.004 ? 1 : 0);
      parts.push(svg("rect", { x: at, y, width: bar, height, fill: colour, "data-part": part, "data-key": key }));
    }
  });
  const text = { y: y + LANE.pointers + 15, "font-size": 12, "font-weight": 600 };
  const [leftText, rightText] = [`left pointer, up to ${shown(Math.max(...left))}`, `right pointer, up to ${shown(Math.max(...right))}`];
  const apart = textWidth(leftText + rightText, CHIP_FONT) + 24 < layout.width;
  parts.push(
    svg("text", { ...text, x: 0, fill: theme.left }, apart ? leftText : "left pointer"),
    svg("text", { ...text, x: layout.width, fill: theme.right, "text-anchor": "end" }, apart ? rightText : "right pointer"),
  );
  return parts;
}

function stepPath(values, places, y) {
  const parts = places.map(({ x, width }, key) => `${key === 0 ? "M" : "L"} ${x} ${y(values[key])} L ${x + width} ${y(values[key])}`);
  return parts.join(" ");
}

/** Draw through the middle of each column: cubic pieces that never overshoot (Fritsch and Carlson). */
export function smoothPath(values, places, y) {
  const last = places[places.length - 1];
  const xs = [0, ...places.map((place) => place.middle), last.x + last.width];
  const ys = [values[0], ...values, values[values.length - 1]].map(y);
  const slope = (i) => (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i]);
  const tangents = xs.map((_, i) => {
    if (i === 0 || i === xs.length - 1) return 0;
    const [before, after] = [slope(i - 1), slope(i)];
    return before * after <= 0 ? 0 : (2 * before * after) / (before + after);
  });
  let path = `M ${xs[0]} ${ys[0]}`;
  for (let i = 0; i + 1 < xs.length; i++) {
    const third = (xs[i + 1] - xs[i]) / 3;
    path += ` C ${xs[i] + third} ${ys[i] + third * tangents[i]} ${xs[i + 1] - third} ${ys[i + 1] - third * tangents[i + 1]} ${xs[i + 1]} ${ys[i + 1]}`;
  }
  return path;
}
