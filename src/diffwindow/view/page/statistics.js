// One number per head, to sort heads by. Means over queries that see something.

/** Average f(row, query) over the queries where it is a number; NaN if there is none. */
function meanOverRows(matrix, numQueries, numKeys, f) {
  let total = 0;
  let count = 0;
  for (let query = 0; query < numQueries; query++) {
    const value = f(matrix.subarray(query * numKeys, (query + 1) * numKeys), query);
    if (Number.isFinite(value)) {
      total += value;
      count += 1;
    }
  }
  return count ? total / count : NaN;
}

function sum(row) {
  let total = 0;
  for (const value of row) total += value;
  return total;
}

/**
 * Return the mean number of keys in an exact window: Σ_k M, the expected distance of its first and last key + 1.
 * A causal query sees the keys up to its own; a segment of its window may go on after them.
 */
export function meanWidth(window, numQueries, numKeys, causal = false) {
  const visible = (query) => (causal ? numKeys - numQueries + query + 1 : numKeys);
  return meanOverRows(window, numQueries, numKeys, (row, query) => sum(row.subarray(0, visible(query))) || NaN);
}

/** Return the mean entropy of the attention in bits, each row scaled to sum to one. */
export function meanEntropy(weights, numQueries, numKeys) {
  return meanOverRows(weights, numQueries, numKeys, (row) => {
    const total = sum(row);
    let bits = 0;
    for (const value of row) if (value > 0) bits -= (value / total) * Math.log2(value / total);
    return total > 0 ? bits : NaN;
  });
}

/** Return the mean distance in keys from the diagonal to the keys attended to. */
export function meanDistance(weights, numQueries, numKeys) {
  const slope = numQueries > 1 ? (numKeys - 1) / (numQueries - 1) : 0;
  return meanOverRows(weights, numQueries, numKeys, (row, query) => {
    let distance = 0;
    row.forEach((value, key) => (distance += value * Math.abs(key - query * slope)));
    return distance / sum(row);
  });
}

/** Return Σ min(M, g) / Σ max(M, g) of a window row, at most 1, and a gold span [first, last]. */
export function softOverlap(row, first, last) {
  let shared = 0;
  let joint = 0;
  row.forEach((value, key) => {
    const gold = first <= key && key <= last ? 1 : 0;
    const inside = Math.min(value, 1);
    shared += Math.min(inside, gold);
    joint += Math.max(inside, gold);
  });
  return joint ? shared / joint : NaN;
}
