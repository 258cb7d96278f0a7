// A page that a server gave: type a sentence and see its windows.

import { byId } from "./dom.js";

/** Call `handle` with each line of JSON in a response, as soon as it is there. */
export async function eachLine(response, handle) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) await handle(JSON.parse(line));
    if (done) break;
  }
}

async function ask(body, load) {
  const response = await fetch("attention", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  if (!response.ok) {
    const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
    throw new Error(answer.error);
  }
  await eachLine(response, async (event) => {
    if (event.error) throw new Error(event.error);
    if (event.text !== undefined) byId("output").textContent = event.text;
    if (event.page) await load(event.page);
  });
}

/** Connect the form; `live.label` names its field. */
export function connectLive(live, load) {
  byId("live").hidden = false;
  byId("live-label").textContent = live.label;
  byId("live").addEventListener("submit", async (event) => {
    event.preventDefault();
    const send = byId("send");
    send.disabled = true;
    byId("live-status").textContent = "Computing …";
    byId("output").textContent = "";
    try {
      await ask({ text: byId("text").value }, load);
      byId("live-status").textContent = "";
    } catch (error) {
      byId("live-status").textContent = `${error.message}`;
    }
    send.disabled = false;
  });
}
