// Colours. Both scales only get darker (light theme) or lighter (dark theme), so they read without hue.

export const THEMES = {
  light: {
    page: "#f6f5f1", card: "#ffffff", ink: "#1a1d21", muted: "#59616b", line: "#dfdfd8",
    left: "#0067a8", right: "#b84500", window: "#00735c", windowFill: "#009e7d", focus: "#1a1d21", gold: "#b8006e",
    scales: {
      window: ["#ffffff", "#d3efe6", "#8dd1bc", "#389f88", "#0d6c5e", "#053b36"],
      attention: ["#ffffff", "#e1e3f6", "#b3b6e7", "#7f7bd0", "#5243a1", "#2b1a63"],
    },
  },
  dark: {
    page: "#0e1115", card: "#161a20", ink: "#e9ebee", muted: "#9ea8b5", line: "#2b323b",
    left: "#6cb8ff", right: "#ffa65c", window: "#43d6ad", windowFill: "#2fb592", focus: "#e9ebee", gold: "#ff8ac6",
    scales: {
      window: ["#161a20", "#123d3b", "#156b64", "#2fa98f", "#8be3c6", "#effff8"],
      attention: ["#161a20", "#2b2757", "#4b409d", "#7e72d6", "#bbb3f2", "#f5f2ff"],
    },
  },
};

export const LEVELS = 48;

function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** Return the colour [r, g, b] of a share between 0 and 1 on a scale of evenly spaced stops. */
export function colourAt(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const index = Math.min(Math.floor(place), stops.length - 2);
  const [from, to] = [channels(stops[index]), channels(stops[index + 1])];
  return from.map((value, i) => Math.round(value + (to[i] - value) * (place - index)));
}

/** Return the colours [r, g, b] of `LEVELS` equal steps of a scale. */
export function levels(stops) {
  return Array.from({ length: LEVELS }, (_, i) => colourAt(stops, i / (LEVELS - 1)));
}

/** Return which of the `LEVELS` steps a share between 0 and 1 falls on. */
export function levelOf(share) {
  return Math.round(Math.min(Math.max(share, 0), 1) * (LEVELS - 1));
}

export function rgb([red, green, blue]) {
  return `rgb(${red},${green},${blue})`;
}

/** Return the relative luminance of a colour (WCAG 2). */
export function luminance(colour) {
  const [red, green, blue] = colour.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Return black or white, whichever reads better on a colour. */
export function inkOn(colour) {
  return luminance(colour) > 0.179 ? "#000000" : "#ffffff";
}
