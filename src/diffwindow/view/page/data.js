// From the JSON in the page to arrays: runs, their snapshots, and the layers of each.

/** Return the bytes of a base64 text that zlib compressed. */
export async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Read an array of unsigned integers of 8 or 16 bits (little-endian), each a share of `scale`. */
export async function readArray({ bits, scale, data }) {
  const bytes = await inflate(data);
  const step = scale / (2 ** bits - 1);
  if (bits === 8) return Float32Array.from(bytes, (value) => value * step);
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true) * step);
}

async function readLayer(raw, tokens) {
  const [heads, numQueries, numKeys] = raw.shape;
  const [weights, left, right, window] = await Promise.all(
    [raw.weights, raw.left, raw.right, raw.window].map((array) => (array ? readArray(array) : null)),
  );
  return {
    ...raw, heads, numQueries, numKeys, weights, left, right, window,
    queryTokens: tokens[raw.queries], keyTokens: tokens[raw.keys],
  };
}

/** Read the page's data: each run becomes { label, snapshots: [{ label, layers }], rules: [the same], tokens, gold }. */
export async function readRuns(page) {
  const readAll = (named, tokens) =>
    Promise.all(
      named.map(async ({ label, layers }) => ({ label, layers: await Promise.all(layers.map((layer) => readLayer(layer, tokens))) })),
    );
  return Promise.all(
    page.runs.map(async (run) => ({
      ...run, snapshots: await readAll(run.snapshots, run.tokens), rules: await readAll(run.rules ?? [], run.tokens),
    })),
  );
}
