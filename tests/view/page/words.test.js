import assert from "node:assert/strict";
import { test } from "node:test";

import { mergeColumns, mergeRows, wordLabels } from "../../../src/diffwindow/view/page/words.js";

test("pieces join to words without the marks of their tokenizer", () => {
  assert.deepEqual(wordLabels(["un@@", "lock", "it"], [0, 0, 1]), ["unlock", "it"]);
  assert.deepEqual(wordLabels(["un", "##lock", "it"], [0, 0, 1]), ["unlock", "it"]);
});

test("a mark inside a word of its own is text", () => {
  assert.deepEqual(wordLabels(["##", "x@@"], [0, 1]), ["##", "x@@"]);
});

test("columns are summed or averaged, rows averaged", () => {
  const matrix = Float64Array.of(1, 2, 3, 4, 5, 6);
  assert.deepEqual([...mergeColumns(matrix, 3, [0, 0, 1], "sum")], [3, 3, 9, 6]);
  assert.deepEqual([...mergeColumns(matrix, 3, [0, 0, 1], "mean")], [1.5, 3, 4.5, 6]);
  assert.deepEqual([...mergeRows(matrix, 3, [0, 0])], [2.5, 3.5, 4.5]);
});
