import assert from "node:assert/strict";
import { test } from "node:test";

import { differences, prefixSums, segmentBounds, softWindow } from "../../../src/diffwindow/view/page/window.js";

const oneHot = (place, size) => Float64Array.from({ length: size }, (_, i) => Number(i === place));
const near = (actual, expected) => {
  assert.equal(actual.length, expected.length);
  actual.forEach((value, i) => assert.ok(Math.abs(value - expected[i]) < 1e-12, `${actual} is not ${expected}`));
};

test("pointers at 3 and 8 give ones on 3 to 8, in either order", () => {
  const expected = [0, 0, 0, 1, 1, 1, 1, 1, 1, 0];
  near(softWindow(oneHot(3, 10), oneHot(8, 10)), expected);
  near(softWindow(oneHot(8, 10), oneHot(3, 10)), expected);
});

test("both pointers on one key count twice in the paper's window and once in the exact one", () => {
  near(softWindow(oneHot(1, 3), oneHot(1, 3)), [0, 2, 0]);
  near(softWindow(oneHot(1, 3), oneHot(1, 3), { expectation: "exact" }), [0, 1, 0]);
});

test("a segment shares its value, and the grid starts at the origin", () => {
  const pointers = [oneHot(2, 6), oneHot(2, 6)];
  near(softWindow(...pointers, { segmentSize: 2, expectation: "exact" }), [0, 0, 1, 1, 0, 0]);
  near(softWindow(...pointers, { segmentSize: 2, origin: 1, expectation: "exact" }), [0, 1, 1, 0, 0, 0]);
});

test("the bounds of segments are those of functional.segment_bounds", () => {
  const { first, last } = segmentBounds(5, 2);
  assert.deepEqual([[...first], [...last]], [[0, 0, 2, 2, 4], [1, 1, 3, 3, 4]]);
});

test("a query that sees no key has an empty window", () => {
  near(softWindow([0, 0, 0], [0, 0, 0]), [0, 0, 0]);
  near(softWindow([], []), []);
});

test("differences undo prefix sums", () => {
  near(differences(prefixSums([0.1, 0, 0.4, 0.5])), [0.1, 0, 0.4, 0.5]);
});

test("a window below the tolerance is zero", () => {
  near(softWindow([0.9, 0, 0.1], [0, 1, 0], { tolerance: 0.2 }), [0.9, 1, 0]);
  near(softWindow([0.9, 0, 0.1], [0, 1, 0], { tolerance: 0.2, expectation: "exact" }), [0.9, 1, 0]);
});

test("sinks count from the origin and are one, whatever the pointers and the tolerance say", () => {
  near(softWindow(oneHot(4, 6), oneHot(4, 6), { sinks: 2, origin: 1, tolerance: 0.5 }), [0, 1, 1, 0, 2, 0]);
  near(softWindow(oneHot(1, 4), oneHot(1, 4), { sinks: 2, expectation: "exact" }), [1, 1, 0, 0]);
});
