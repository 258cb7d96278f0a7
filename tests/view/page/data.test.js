import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { readArray } from "../../../src/diffwindow/view/page/data.js";
import { eachLine } from "../../../src/diffwindow/view/page/live.js";

const packed = (bytes) => deflateSync(Uint8Array.from(bytes)).toString("base64");

test("arrays of 8 and of 16 bits are shares of their scale", async () => {
  assert.deepEqual([...(await readArray({ bits: 8, scale: 2, data: packed([0, 255]) }))], [0, 2]);
  assert.deepEqual([...(await readArray({ bits: 16, scale: 1, data: packed([255, 255, 0, 0]) }))], [1, 0]);
});

test("lines of JSON arrive one by one, however the response is cut", async () => {
  const encoder = new TextEncoder();
  const stream = new ReadableStream({
    start(controller) {
      for (const part of ['{"a"', ":1}\n{", '"a":2}\n']) controller.enqueue(encoder.encode(part));
      controller.close();
    },
  });
  const found = [];
  await eachLine(new Response(stream), ({ a }) => found.push(a));
  assert.deepEqual(found, [1, 2]);
});
