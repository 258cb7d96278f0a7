// The current view as one picture: SVG as text, or PNG.

import { FONT } from "./bracket.js";
import { svg } from "./dom.js";

const PAD = 24;

/** Arrange drawings in one SVG: the bracket on top, the maps side by side below, a title over each. */
export function compose({ title, subtitle, bracket, maps, theme }) {
  const size = (drawn) => ({ width: Number(drawn.getAttribute("width")), height: Number(drawn.getAttribute("height")) });
  const mapsWidth = maps.reduce((total, { drawn }) => total + size(drawn).width, 0) + PAD * (maps.length - 1);
  const width = Math.max(size(bracket).width, mapsWidth) + 2 * PAD;
  const below = 82 + size(bracket).height + PAD;
  const height = below + 20 + Math.max(...maps.map(({ drawn }) => size(drawn).height)) + PAD;
  const heading = (x, y, text, more) => svg("text", { x, y, fill: theme.ink, "font-size": 13, "font-weight": 600, ...more }, text);
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT });
  whole.append(
    svg("rect", { width, height, fill: theme.card }),
    heading(PAD, 36, title, { "font-size": 17, "unicode-bidi": "plaintext" }),
    heading(PAD, 58, subtitle, { fill: theme.muted, "font-weight": 400 }),
  );
  const put = (drawn, x, y) => {
    const copy = drawn.cloneNode(true);
    copy.setAttribute("x", x);
    copy.setAttribute("y", y);
    whole.append(copy);
  };
  put(bracket, PAD, 74);
  let x = PAD;
  for (const { name, drawn } of maps) {
    whole.append(heading(x, below + 8, name));
    put(drawn, x, below + 18);
    x += size(drawn).width + PAD;
  }
  return whole;
}

export function asText(drawn) {
  return new XMLSerializer().serializeToString(drawn);
}

/** Draw an SVG on a canvas, at twice its size, and return it as a PNG. */
export async function asPng(drawn) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(asText(drawn))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * Number(drawn.getAttribute("width"));
  canvas.height = 2 * Number(drawn.getAttribute("height"));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
