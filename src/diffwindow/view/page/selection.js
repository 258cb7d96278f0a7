// What is selected, and what it shows: the maps of one head under the settings of the page.

import { composeWindow, differences, segmentBounds } from "./window.js";
import { mergeColumns, mergeRows, wordLabels } from "./words.js";
import { meanDistance, meanEntropy, meanWidth, softOverlap } from "./statistics.js";

export const MEAN = "mean";

/**
 * Return the selection that a page starts with: the head whose window fits the gold span best, or else the
 * one with the narrowest window, from the gold query or the last token.
 */
export function initialSelection(runs) {
  const run = runs[0];
  const snapshot = run.snapshots.length - 1;
  const layers = run.snapshots[snapshot].layers;
  const windowed = layers.filter((one) => one.left);
  const of = (role) => windowed.find((one) => one.role === role);
  const first = of(run.gold?.role) ?? of("Cr") ?? windowed[0] ?? layers[0];
  const gold = run.gold?.role === first.role;
  const selection = {
    snapshot, role: first.role, layer: first.layer, head: 0, otherHead: MEAN, key: null,
    query: gold ? run.gold.query : first.numQueries - 1,
    segmentSize: null, expectation: null, rule: "soft", merge: false, sort: "layer", show: first.left ? "window" : "attention",
  };
  if (!first.left) return selection;
  const [best] = sortedHeads(run, { ...selection, sort: gold ? "overlap" : "width" });
  return { ...selection, layer: best.layer.layer, head: best.head };
}

/**
 * Return the selection `before` on new data, at the checkpoint of `first` and at the gold query or the last one;
 * or `first`, if its layer is not there.
 */
export function keptSelection(runs, before, first) {
  const { snapshot } = first;
  const layer = layerOf(runs[0], { ...before, snapshot });
  if (!layer) return first;
  const query = runs[0].gold?.role === layer.role ? runs[0].gold.query : layer.numQueries - 1;
  return { ...before, snapshot, key: null, query: before.merge ? layer.queryTokens.words[query] : query };
}

export function rolesOf(run) {
  return [...new Set(run.snapshots[0].layers.map((layer) => layer.role))];
}

/** Return the rules for windows that a page can show: of the last snapshot alone, the final model. */
export function rulesOf(run, { snapshot }) {
  return ["soft", ...(snapshot >= run.snapshots.length - 1 ? (run.rules ?? []).map((one) => one.label) : [])];
}

export function layersOf(run, { snapshot, rule }, role) {
  const ruled = rulesOf(run, { snapshot }).includes(rule) && run.rules?.find((one) => one.label === rule);
  const { layers } = ruled || run.snapshots[Math.min(snapshot, run.snapshots.length - 1)];
  return layers.filter((layer) => layer.role === role);
}

export function layerOf(run, selection) {
  return layersOf(run, selection, selection.role).find((one) => one.layer === selection.layer) ?? null;
}

/** Return the longest segments that a page tries on a layer. */
export function maxSegmentSize(layer) {
  return Math.max(layer.segment_size, Math.min(layer.numKeys, 12));
}

/** Return the window settings of a layer: the page's where they are set, else the model's own. */
export function windowSettings(layer, selection) {
  return {
    segmentSize: Math.min(selection.segmentSize ?? layer.segment_size, maxSegmentSize(layer)),
    expectation: selection.expectation ?? layer.expectation,
  };
}

const memory = new WeakMap();

/** Compute once for a layer and a key. */
function remembered(layer, key, compute) {
  if (!memory.has(layer)) memory.set(layer, new Map());
  const known = memory.get(layer);
  // a slider that is dragged leaves many entries behind
  if (known.size > 400) known.clear();
  if (!known.has(key)) known.set(key, compute());
  return known.get(key);
}

/**
 * Return the maps of a head, or of the mean of all heads: weights, and window, phiLeft and phiRight or
 * null, each a [numQueries × numKeys] matrix, with the labels of both sides.
 */
export function headMaps(layer, head, selection) {
  const { segmentSize, expectation } = windowSettings(layer, selection);
  const merge = selection.merge;
  return remembered(layer, `maps ${head} ${segmentSize} ${expectation} ${merge}`, () => {
    const heads = head === MEAN ? Array.from({ length: layer.heads }, (_, index) => index) : [head];
    const each = heads.map((index) => tokenMaps(layer, index, segmentSize, expectation));
    const maps = each.length === 1 ? each[0] : averaged(each);
    return merge ? byWord(layer, maps) : withLabels(layer, maps);
  });
}

/** Compute the maps of one head by token. */
export function tokenMaps(layer, head, segmentSize, expectation) {
  const size = layer.numQueries * layer.numKeys;
  const part = (array) => array.subarray(head * size, (head + 1) * size);
  const maps = { weights: part(layer.weights), window: null, phiLeft: null, phiRight: null };
  if (!layer.left) return maps;
  const bounds = segmentBounds(layer.numKeys, segmentSize, layer.segment_origin);
  for (const name of ["window", "phiLeft", "phiRight"]) maps[name] = new Float64Array(size);
  if (layer.window) maps.window.set(part(layer.window));
  for (let query = 0; query < layer.numQueries; query++) {
    const start = query * layer.numKeys;
    const row = (array) => part(array).subarray(start, start + layer.numKeys);
    const [left, right] = [row(layer.left), row(layer.right)];
    if (!layer.window) {
      // a decoder's query sees no sinks after itself
      const seen = layer.role === "Dec" ? layer.numKeys - layer.numQueries + query + 1 : layer.numKeys;
      const sinks = [layer.segment_origin, Math.min(layer.segment_origin + (layer.sinks ?? 0), seen)];
      maps.window.set(composeWindow(left, right, bounds, { expectation, tolerance: layer.window_tolerance, sinks }), start);
    }
    maps.phiLeft.set(differences(left), start);
    maps.phiRight.set(differences(right), start);
  }
  return maps;
}

function averaged(each) {
  const mean = (name) =>
    each[0][name] && Float64Array.from(each[0][name], (_, i) => each.reduce((total, maps) => total + maps[name][i], 0) / each.length);
  return { weights: mean("weights"), window: mean("window"), phiLeft: mean("phiLeft"), phiRight: mean("phiRight") };
}

function withLabels(layer, maps) {
  return {
    ...maps, numQueries: layer.numQueries, numKeys: layer.numKeys,
    queryLabels: layer.queryTokens.labels, keyLabels: layer.keyTokens.labels,
  };
}

/** Merge subwords: attention and pointers of a word are sums, its window is the mean; queries are averaged. */
function byWord(layer, maps) {
  const [rows, columns] = [layer.queryTokens.words, layer.keyTokens.words];
  const queryLabels = wordLabels(layer.queryTokens.labels, rows);
  const keyLabels = wordLabels(layer.keyTokens.labels, columns);
  const merged = (matrix, how) =>
    matrix && mergeRows(mergeColumns(matrix, layer.numKeys, columns, how), keyLabels.length, rows);
  return {
    weights: merged(maps.weights, "sum"), window: merged(maps.window, "mean"),
    phiLeft: merged(maps.phiLeft, "sum"), phiRight: merged(maps.phiRight, "sum"),
    numQueries: queryLabels.length, numKeys: keyLabels.length, queryLabels, keyLabels,
  };
}

/** Return the gold span of a run in the units of the page: tokens or words. Null if there is none here. */
export function goldOf(run, layer, selection) {
  const gold = run.gold;
  if (!gold || gold.role !== layer.role) return null;
  if (!selection.merge) return gold;
  const [rows, columns] = [layer.queryTokens.words, layer.keyTokens.words];
  return { ...gold, query: rows[gold.query], first: columns[gold.first], last: columns[gold.last] };
}

/** Return the numbers to sort a head by; NaN where it has none. Windows are measured exact, by token. */
export function headMeasures(run, layer, head, selection) {
  const { segmentSize } = windowSettings(layer, selection);
  return remembered(layer, `measures ${head} ${segmentSize}`, () => {
    const { weights, window } = tokenMaps(layer, head, segmentSize, "exact");
    const gold = run.gold?.role === layer.role ? run.gold : null;
    const goldRow = gold && window?.subarray(gold.query * layer.numKeys, (gold.query + 1) * layer.numKeys);
    return {
      width: window ? meanWidth(window, layer.numQueries, layer.numKeys, layer.role === "Dec") : NaN,
      entropy: meanEntropy(weights, layer.numQueries, layer.numKeys),
      distance: meanDistance(weights, layer.numQueries, layer.numKeys),
      overlap: goldRow ? softOverlap(goldRow, gold.first, gold.last) : NaN,
    };
  });
}

// name, whether the largest comes first, and how the number is told
export const SORTS = {
  layer: { name: "layer and head" },
  width: { name: "window width, narrow first", unit: "keys wide" },
  entropy: { name: "entropy of attention, low first", unit: "bits" },
  distance: { name: "locality, nearest first", unit: "keys away" },
  overlap: { name: "overlap with the gold span", unit: "of gold", descending: true },
};

/** Return the names of the orders that the heads of a role have. */
export function sortsOf(run, selection) {
  const gold = run.gold?.role === selection.role;
  const windowed = layersOf(run, selection, selection.role).some((one) => one.left);
  return Object.keys(SORTS).filter((name) => (name !== "overlap" || gold) && (name !== "width" || windowed));
}

/** Return the heads of a role as { layer, head, measures }, in the order that is asked for. */
export function sortedHeads(run, selection) {
  const heads = layersOf(run, selection, selection.role).flatMap((layer) =>
    Array.from({ length: layer.heads }, (_, head) => ({ layer, head, measures: headMeasures(run, layer, head, selection) })),
  );
  if (selection.sort === "layer") return heads;
  const sign = SORTS[selection.sort].descending ? -1 : 1;
  const value = ({ measures }) => (Number.isFinite(measures[selection.sort]) ? sign * measures[selection.sort] : Infinity);
  return heads.sort((a, b) => (value(a) === value(b) ? 0 : value(a) - value(b)));
}
