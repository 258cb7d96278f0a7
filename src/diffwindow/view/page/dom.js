// Elements from data. Text only ever becomes a text node, so nothing in a sentence can be markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    // aria-pressed="false" says something; a plain attribute that is false is not there
    if (typeof value === "boolean" && !name.startsWith("aria-")) element.toggleAttribute(name, value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Return a word of a sentence as an element of its own: one from right to left leaves the rest in order. */
export function word(label) {
  return html("bdi", {}, label);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

let ruler = null;

/** Return the width of a text in pixels. */
export function textWidth(text, font) {
  ruler ??= document.createElement("canvas").getContext("2d");
  ruler.font = font;
  return ruler.measureText(text).width;
}

/** Return a text that fits a width: cut with an ellipsis if it is too long. */
export function fitted(text, width, font) {
  if (textWidth(text, font) <= width) return text;
  const letters = [...text];
  while (letters.length > 1 && textWidth(`${letters.join("")}…`, font) > width) letters.pop();
  return `${letters.join("")}…`;
}

/** Show a value as people read it: three decimals, and no 0.000 for something small. */
export function shown(value) {
  if (!Number.isFinite(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.0005) return "<0.001";
  return value.toFixed(3);
}
