// The controls: each shows the selection and changes it.

import { byId, html } from "./dom.js";
import { SORTS, layerOf, layersOf, maxSegmentSize, rolesOf, rulesOf, sortedHeads, sortsOf, windowSettings } from "./selection.js";

// what the rules for windows at test time do
const RULES = {
  soft: "As it was trained.",
  argmax: "From the likeliest key of one pointer to that of the other.",
  half: "The smallest interval of all keys that are inside with a probability of ½ or more.",
  joint: "The likeliest pair of a first and a last key, in this order.",
  none: "Every key: M = 1.",
};
const ROLES = { Enc: "Encoder", Cr: "Cross-attention", Dec: "Decoder" };

export function roleName(role) {
  return ROLES[role] ?? role;
}

/** Make a group of radio buttons that look like one switch; buttons that are there already stay, and keep the focus. */
function fillSwitch(box, name, choices, chosen, choose) {
  const present = [...box.querySelectorAll("input")].map((input) => input.value);
  if (present.join() !== choices.map(([value]) => value).join()) {
    box.replaceChildren(
      ...choices.map(([value, label]) => {
        const input = html("input", { type: "radio", name, value, id: `${name}-${value}` });
        return html("label", { for: input.id }, input, html("span", {}, label));
      }),
    );
  }
  for (const input of box.querySelectorAll("input")) input.checked = input.value === chosen;
  box.onchange = (event) => choose(event.target.value);
}

/** Connect the controls once; `change` takes what is new in the selection. */
export function connectControls(view, change) {
  byId("segment").addEventListener("input", (event) => change({ segmentSize: Number(event.target.value) }));
  byId("reset").addEventListener("click", () => {
    change({ segmentSize: null, expectation: null });
    // the button is hidden now
    byId("segment").focus();
  });
  byId("merge").addEventListener("change", (event) => change(mergeChange(view, event.target.checked)));
  byId("sort").addEventListener("change", (event) => change({ sort: event.target.value }));
  byId("checkpoint").addEventListener("input", (event) => change({ snapshot: Number(event.target.value) }));
  byId("play").addEventListener("click", () => play(view, change));
}

/** Keep the same query when tokens become words, and its first token when words become tokens. */
function mergeChange({ runs, selection }, merge) {
  const { words } = layerOf(runs[0], selection).queryTokens;
  return { merge, key: null, query: merge ? words[selection.query] : words.indexOf(selection.query) };
}

function play(view, change) {
  const last = view.runs[0].snapshots.length - 1;
  const step = (snapshot) => {
    change({ snapshot });
    if (snapshot < last) setTimeout(() => view.selection.snapshot === snapshot && step(snapshot + 1), 450);
  };
  step(0);
}

/** Show the selection in the controls; what a page has no use for is hidden. */
export function showControls({ runs, selection }, change) {
  const [run] = runs;
  const layer = layerOf(run, selection);
  fillSwitch(byId("roles"), "role", rolesOf(run).map((role) => [role, roleName(role)]), selection.role, (role) => change(roleChange(run, selection, role)));
  byId("roles").hidden = rolesOf(run).length < 2;
  const anyWindow = layersOf(run, selection, selection.role).some((one) => one.left);
  byId("window-settings").hidden = !layer.left;
  byId("shows").hidden = !anyWindow;
  fillSwitch(byId("shows"), "show", [["window", "window"], ["attention", "attention"]], selection.show, (show) => change({ show }));
  if (layer.left) {
    showRules(run, layer, selection, change);
    showWindowSettings(layer, selection, change);
  }
  const subwords = layer.queryTokens.words.length !== new Set(layer.queryTokens.words).size || layer.keyTokens.words.length !== new Set(layer.keyTokens.words).size;
  byId("merge").checked = selection.merge;
  byId("merge").parentElement.hidden = !subwords && !selection.merge;
  const sorts = sortsOf(run, selection).map((value) => html("option", { value, selected: value === selection.sort }, SORTS[value].name));
  byId("sort").replaceChildren(...sorts);
  byId("checkpoints").hidden = run.snapshots.length < 2;
  byId("checkpoint").max = run.snapshots.length - 1;
  byId("checkpoint").value = selection.snapshot;
  byId("checkpoint").setAttribute("aria-valuetext", run.snapshots[selection.snapshot].label);
  byId("checkpoint-label").textContent = run.snapshots[selection.snapshot].label;
}

function showRules(run, layer, selection, change) {
  const rules = rulesOf(run, selection);
  const chosen = layer.window_rule ?? "soft";
  byId("rule-settings").hidden = rules.length < 2;
  fillSwitch(byId("rules"), "rule", rules.map((rule) => [rule, rule]), chosen, (rule) => change({ rule }));
  byId("rule-text").textContent = `${RULES[chosen]}${chosen === "soft" ? "" : " The model has attended so in every layer."}`;
  // a window that the page is given is not composed anew
  byId("soft-settings").hidden = Boolean(layer.window);
}

function showWindowSettings(layer, selection, change) {
  const { segmentSize, expectation } = windowSettings(layer, selection);
  byId("segment").max = maxSegmentSize(layer);
  byId("segment").value = segmentSize;
  byId("segment").setAttribute("aria-valuetext", segmentSize === 1 ? "1, by token" : `${segmentSize} tokens`);
  byId("segment-label").textContent = segmentSize === 1 ? "1 (by token)" : segmentSize;
  fillSwitch(byId("expectations"), "expectation", [["paper", "paper"], ["exact", "exact"], ["ordered", "ordered"]], expectation, (value) => change({ expectation: value }));
  const own = segmentSize === layer.segment_size && expectation === layer.expectation;
  byId("recomputed").hidden = own;
  byId("recomputed-text").textContent =
    `Windows are recomputed here; the model was trained with segment size ${layer.segment_size} and the ${layer.expectation} window, and its attention is shown as it was.`;
}

function roleChange(run, selection, role) {
  const layers = layersOf(run, selection, role);
  const layer = layers.find((one) => one.left) ?? layers[0];
  const queries = selection.merge ? new Set(layer.queryTokens.words).size : layer.numQueries;
  return { role, layer: layer.layer, head: 0, query: queries - 1, key: null, segmentSize: null, expectation: null };
}

/** Return what an arrow key changes: the query (left, right), the head (up, down) or the layer (page keys). */
export function keyChange({ runs, selection }, name, numQueries) {
  const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
  if (name in moves) {
    const query = Math.min(Math.max(selection.query + moves[name], 0), numQueries - 1);
    return { query };
  }
  if (name === "ArrowUp" || name === "ArrowDown") {
    const heads = sortedHeads(runs[0], selection);
    const index = heads.findIndex(({ layer, head }) => layer.layer === selection.layer && head === selection.head);
    const next = heads[(index + (name === "ArrowDown" ? 1 : -1) + heads.length) % heads.length];
    return { layer: next.layer.layer, head: next.head };
  }
  if (name === "PageUp" || name === "PageDown") {
    const layers = layersOf(runs[0], selection, selection.role).map((one) => one.layer);
    const index = layers.indexOf(selection.layer) + (name === "PageDown" ? 1 : -1);
    return index in layers ? { layer: layers[index] } : null;
  }
  return null;
}
