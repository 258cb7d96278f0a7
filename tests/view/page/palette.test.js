import assert from "node:assert/strict";
import { test } from "node:test";

import { LEVELS, THEMES, colourAt, inkOn, levelOf, luminance } from "../../../src/diffwindow/view/page/palette.js";

// what people without red, green or blue cones see (Machado et al. 2009, severity 1), on linear light
const SIGHTS = {
  full: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protan: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deutan: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritan: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};
const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
const seen = (colour, matrix) => {
  const light = colour.map(linear);
  const [red, green, blue] = matrix.map((row) => Math.max(0, row.reduce((sum, share, i) => sum + share * light[i], 0)));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};

for (const [theme, { scales }] of Object.entries(THEMES)) {
  for (const [name, stops] of Object.entries(scales)) {
    for (const [sight, matrix] of Object.entries(SIGHTS)) {
      test(`${theme} ${name}: brightness is monotone for ${sight} sight`, () => {
        const lights = Array.from({ length: LEVELS }, (_, i) => seen(colourAt(stops, i / (LEVELS - 1)), matrix));
        const sign = Math.sign(lights.at(-1) - lights[0]);
        lights.slice(1).forEach((light, i) => assert.ok(sign * (light - lights[i]) > 0, `step ${i}`));
      });
    }
  }
}

test("text on any colour of any scale has a contrast of 4.5 or more", () => {
  for (const { scales } of Object.values(THEMES)) {
    for (const stops of Object.values(scales)) {
      for (let i = 0; i < LEVELS; i++) {
        const colour = colourAt(stops, i / (LEVELS - 1));
        const ink = inkOn(colour) === "#ffffff" ? 1 : 0;
        const [high, low] = [Math.max(ink, luminance(colour)), Math.min(ink, luminance(colour))];
        assert.ok((high + 0.05) / (low + 0.05) >= 4.5, `${colour}`);
      }
    }
  }
});

test("a level is a share of the scale, and never outside it", () => {
  assert.deepEqual([-1, 0, 1, 7, NaN].map(levelOf).slice(0, 4), [0, 0, LEVELS - 1, LEVELS - 1]);
});
