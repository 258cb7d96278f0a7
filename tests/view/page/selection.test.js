import assert from "node:assert/strict";
import { test } from "node:test";

import { goldOf, headMaps, headMeasures, initialSelection, keptSelection, layerOf, rulesOf, sortedHeads, sortsOf, windowSettings } from "../../../src/diffwindow/view/page/selection.js";
import { prefixSums } from "../../../src/diffwindow/view/page/window.js";

const oneHot = (place, size) => Float32Array.from({ length: size }, (_, i) => Number(i === place));
const stack = (...rows) => Float32Array.from(rows.flatMap((row) => [...row]));

// one layer of two heads, one query over four keys: head 0 sees all of them, head 1 the middle two
function run() {
  const tokens = { labels: ["a", "b@@", "c", "d"], words: [0, 1, 1, 2] };
  const layer = {
    role: "Cr", layer: 1, kind: "AW", heads: 2, numQueries: 1, numKeys: 4, queries: "target", keys: "source",
    segment_size: 1, segment_origin: 0, expectation: "exact", queryTokens: { labels: ["x"], words: [0] }, keyTokens: tokens,
    weights: stack([0.25, 0.25, 0.25, 0.25], [0, 0.75, 0.25, 0]),
    left: stack(prefixSums(oneHot(0, 4)), prefixSums(oneHot(1, 4))),
    right: stack(prefixSums(oneHot(3, 4)), prefixSums(oneHot(2, 4))),
  };
  return { label: "AW", gold: { role: "Cr", query: 0, first: 1, last: 2 }, snapshots: [{ label: "final", layers: [layer] }] };
}

const settings = { snapshot: 0, role: "Cr", layer: 1, merge: false, segmentSize: null, expectation: null, sort: "layer" };

test("a page starts at the head that fits the gold span best", () => {
  const { head, query, show } = initialSelection([run()]);
  assert.deepEqual({ head, query, show }, { head: 1, query: 0, show: "window" });
});

test("without a gold span it starts at the narrowest window", () => {
  assert.equal(initialSelection([{ ...run(), gold: null }]).head, 1);
});

test("new data keeps the selection, or starts anew where its layer is not there", () => {
  const runs = [{ ...run(), gold: null }];
  const first = initialSelection(runs);
  const before = { ...first, head: 0, merge: true, sort: "entropy", query: 7, key: 2 };
  assert.deepEqual(keptSelection(runs, before, first), { ...before, query: 0, key: null });
  assert.equal(keptSelection(runs, { ...before, role: "Enc" }, first), first);
});

test("segments are no longer than the slider", () => {
  const [layer] = run().snapshots[0].layers;
  assert.equal(windowSettings(layer, { ...settings, segmentSize: 12 }).segmentSize, layer.numKeys);
});

test("a role without windows or a gold span has no order by them", () => {
  const one = run();
  assert.ok(sortsOf(one, settings).includes("overlap"));
  const [layer] = one.snapshots[0].layers;
  const plain = { ...one, gold: null, snapshots: [{ label: "final", layers: [{ ...layer, left: null }] }] };
  assert.deepEqual(sortsOf(plain, settings), ["layer", "entropy", "distance"]);
});

test("windows come from the pointers, with the settings of the page", () => {
  const [layer] = run().snapshots[0].layers;
  assert.deepEqual([...headMaps(layer, 1, settings).window], [0, 1, 1, 0]);
  assert.deepEqual([...headMaps(layer, 1, { ...settings, segmentSize: 2 }).window], [1, 1, 1, 1]);
  assert.deepEqual([...headMaps(layer, 1, settings).phiLeft], [0, 1, 0, 0]);
});

test("sinks are one, for a decoder's query those up to itself", () => {
  const [layer] = run().snapshots[0].layers;
  assert.deepEqual([...headMaps({ ...layer, sinks: 1 }, 1, settings).window], [1, 1, 1, 0]);
  const last = stack(...[0, 1, 2].map((query) => prefixSums(oneHot(query, 3))));
  const decoder = { ...layer, role: "Dec", heads: 1, numQueries: 3, numKeys: 3, weights: last, left: last, right: last, sinks: 2 };
  assert.deepEqual([...headMaps(decoder, 0, settings).window], [1, 0, 0, 1, 1, 0, 1, 1, 1]);
});

test("a rule for windows shows its own maps, of the final model alone", () => {
  const one = run();
  const [layer] = one.snapshots[0].layers;
  const hard = { ...layer, window_rule: "argmax", window: stack([1, 1, 1, 1], [0, 1, 0, 0]) };
  one.rules = [{ label: "argmax", layers: [hard] }];
  one.snapshots.unshift({ label: "update 1", layers: [{ ...layer }] });
  const last = { ...settings, snapshot: 1, rule: "argmax" };
  assert.deepEqual(rulesOf(one, last), ["soft", "argmax"]);
  assert.equal(layerOf(one, last), hard);
  assert.deepEqual([...headMaps(hard, 1, { ...last, segmentSize: 2 }).window], [0, 1, 0, 0]);
  assert.equal(layerOf(one, { ...last, rule: "soft" }), layer);
  assert.deepEqual(rulesOf(one, { ...last, snapshot: 0 }), ["soft"]);
  assert.equal(layerOf(one, { ...last, snapshot: 0 }), one.snapshots[0].layers[0]);
});

test("the mean of heads is the mean of their maps", () => {
  const [layer] = run().snapshots[0].layers;
  const { window, weights } = headMaps(layer, "mean", settings);
  assert.deepEqual([...window], [0.5, 1, 1, 0.5]);
  assert.deepEqual([...weights], [0.125, 0.5, 0.25, 0.125]);
});

test("words have the sum of their attention and pointers and the mean of their window", () => {
  const one = run();
  const [layer] = one.snapshots[0].layers;
  const maps = headMaps(layer, 1, { ...settings, merge: true, segmentSize: 1 });
  assert.deepEqual(maps.keyLabels, ["a", "bc", "d"]);
  assert.deepEqual([...maps.weights], [0, 1, 0]);
  assert.deepEqual([...maps.window], [0, 1, 0]);
  assert.deepEqual([...maps.phiRight], [0, 1, 0]);
  const { first, last } = goldOf(one, layer, { ...settings, merge: true });
  assert.deepEqual([first, last], [1, 1]);
});

test("heads sort by width, entropy and overlap; a head without a window comes last", () => {
  const one = run();
  const order = (sort) => sortedHeads(one, { ...settings, sort }).map(({ layer, head }) => `${layer.layer}.${head}`);
  assert.deepEqual(order("width"), ["1.1", "1.0"]);
  assert.deepEqual(order("overlap"), ["1.1", "1.0"]);
  assert.deepEqual(order("layer"), ["1.0", "1.1"]);
  const [layer] = one.snapshots[0].layers;
  one.snapshots[0].layers.unshift({ ...layer, layer: 0, left: null, right: null });
  assert.deepEqual(order("width").slice(0, 2), ["1.1", "1.0"]);
  assert.equal(headMeasures(one, layer, 0, settings).overlap, 0.5);
});
