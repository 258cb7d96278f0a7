// Subwords as words. `groups` has, for each token, the number of its word.

/** Return the words: the labels of each group's tokens joined, without the marks of the tokenizer. */
export function wordLabels(labels, groups) {
  const words = [];
  labels.forEach((label, token) => {
    const piece = cleanPiece(label, groups[token + 1] === groups[token], token > 0 && groups[token - 1] === groups[token]);
    words[groups[token]] = (words[groups[token]] ?? "") + piece;
  });
  return words;
}

function cleanPiece(label, continues, continued) {
  if (continues && label.endsWith("@@")) return label.slice(0, -2);
  if (continued && label.startsWith("##")) return label.slice(2);
  return label;
}

/** Sum the columns of each word of a [rows × columns] matrix, or average them. */
export function mergeColumns(matrix, columns, groups, how) {
  const words = numGroups(groups);
  const counts = groupSizes(groups);
  const rows = columns === 0 ? 0 : matrix.length / columns;
  const merged = new Float64Array(rows * words);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const share = how === "mean" ? 1 / counts[groups[column]] : 1;
      merged[row * words + groups[column]] += matrix[row * columns + column] * share;
    }
  }
  return merged;
}

/** Average the rows of each word of a [rows × columns] matrix. */
export function mergeRows(matrix, columns, groups) {
  const counts = groupSizes(groups);
  const merged = new Float64Array(numGroups(groups) * columns);
  groups.forEach((word, row) => {
    for (let column = 0; column < columns; column++) {
      merged[word * columns + column] += matrix[row * columns + column] / counts[word];
    }
  });
  return merged;
}

export function numGroups(groups) {
  return groups.length ? groups[groups.length - 1] + 1 : 0;
}

function groupSizes(groups) {
  const sizes = new Array(numGroups(groups)).fill(0);
  for (const word of groups) sizes[word] += 1;
  return sizes;
}
