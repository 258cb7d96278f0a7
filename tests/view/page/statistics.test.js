import assert from "node:assert/strict";
import { test } from "node:test";

import { meanDistance, meanEntropy, meanWidth, softOverlap } from "../../../src/diffwindow/view/page/statistics.js";

test("width counts the keys of a window; a row without any does not count", () => {
  assert.equal(meanWidth(Float64Array.of(1, 1, 0, 0, 1, 0, 0, 0, 0), 3, 3), 1.5);
  assert.equal(meanWidth(Float64Array.of(1, 1, 1, 1, 1, 1), 2, 3, true), 2.5);
});

test("entropy is in bits, of rows scaled to one", () => {
  assert.equal(meanEntropy(Float64Array.of(1, 1, 0, 0, 0, 3, 0, 0), 2, 4), 0.5);
});

test("distance is measured from the diagonal", () => {
  assert.equal(meanDistance(Float64Array.of(1, 0, 0, 0, 1, 0, 0, 0, 1), 3, 3), 0);
  assert.equal(meanDistance(Float64Array.of(0, 0, 1, 0, 1, 0, 1, 0, 0), 3, 3), 4 / 3);
  // two queries over five keys: the diagonal ends at the last key
  assert.equal(meanDistance(Float64Array.of(1, 0, 0, 0, 0, 0, 0, 0, 0, 1), 2, 5), 0);
});

test("overlap of a window with a span, the window at most one", () => {
  assert.equal(softOverlap([0, 2, 1, 0], 1, 2), 1);
  assert.equal(softOverlap([0, 0.5, 0.5, 0], 1, 2), 0.5);
  assert.equal(softOverlap([1, 0, 0, 0], 1, 2), 0);
});
