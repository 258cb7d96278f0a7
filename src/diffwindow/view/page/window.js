// The window of the paper, M = F_l ⊙ G_r + F_r ⊙ G_l, as in diffwindow/functional.py.
//
// A pointer φ travels as its prefix sums F, because rounding an F does not add up along the keys.
// Everything here works on one row: the keys of one query of one head.

/** Return the prefix sums of a distribution: F_i = φ_0 + … + φ_i. */
export function prefixSums(phi) {
  const sums = new Float64Array(phi.length);
  let total = 0;
  for (let i = 0; i < phi.length; i++) sums[i] = total += phi[i];
  return sums;
}

/** Return the distribution that has these prefix sums. */
export function differences(sums) {
  return Float64Array.from(sums, (sum, i) => (i === 0 ? sum : Math.max(0, sum - sums[i - 1])));
}

/** Return the first and the last key of each key's segment, on a grid that starts at `origin`. */
export function segmentBounds(numKeys, segmentSize, origin = 0) {
  const first = new Int32Array(numKeys);
  const last = new Int32Array(numKeys);
  for (let key = 0; key < numKeys; key++) {
    const start = origin + Math.floor((key - origin) / segmentSize) * segmentSize;
    first[key] = Math.max(start, 0);
    last[key] = Math.min(start + segmentSize - 1, numKeys - 1);
  }
  return { first, last };
}

/** Sum φ from the left up to each key, or up to the end of its segment. */
export function rightward(sums, { last }) {
  return Float64Array.from(sums, (_, key) => sums[last[key]]);
}

/** Sum φ from the right down to each key, or down to the start of its segment. */
export function leftward(sums, { first }) {
  const total = sums.length ? sums[sums.length - 1] : 0;
  return Float64Array.from(sums, (_, key) => (first[key] === 0 ? total : total - sums[first[key] - 1]));
}

/**
 * Compose the prefix sums of two pointers into a window.
 *
 * The paper's window counts two boundaries in one segment (of one key or more) twice; "exact" subtracts
 * that case once, so that M is the probability that a key lies between the boundaries; "ordered" has no
 * window where the left boundary is behind the right (Eq. 6). M below the tolerance is set to 0, and then M
 * of the `sinks`, keys from the first up to before the second, to 1.
 */
export function composeWindow(left, right, bounds, { expectation = "paper", tolerance = 0, sinks = [0, 0] } = {}) {
  const fLeft = rightward(left, bounds);
  const gLeft = leftward(left, bounds);
  const fRight = rightward(right, bounds);
  const gRight = leftward(right, bounds);
  const reversed = expectation === "ordered" ? 0 : 1;
  const window = fLeft.map((f, key) => f * gRight[key] + reversed * fRight[key] * gLeft[key]);
  const cut = (value, key) => (key >= sinks[0] && key < sinks[1] ? 1 : value < tolerance ? 0 : value);
  if (expectation !== "exact") return window.map(cut);
  const totalLeft = left.length ? left[left.length - 1] : 0;
  const totalRight = right.length ? right[right.length - 1] : 0;
  return window.map((value, key) => {
    const massLeft = fLeft[key] + gLeft[key] - totalLeft;
    const massRight = fRight[key] + gRight[key] - totalRight;
    return cut(value - massLeft * massRight, key);
  });
}

/** Compose two distributions into a window: `functional.soft_window` for one row. */
export function softWindow(phiLeft, phiRight, { segmentSize = 1, origin = 0, expectation = "paper", tolerance = 0, sinks = 0 } = {}) {
  const bounds = segmentBounds(phiLeft.length, segmentSize, origin);
  return composeWindow(prefixSums(phiLeft), prefixSums(phiRight), bounds, { expectation, tolerance, sinks: [origin, origin + sinks] });
}
