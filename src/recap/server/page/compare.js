// Retrieval with the pack's map beside retrieval with another map, or with none.

import * as api from "./api.js";
import { bar, byId, complain, make, origin } from "./dom.js";
import { evidenceCount, state, whenShown } from "./state.js";

const NONE = "none";
let request = null;
let asked = "";

export function start() {
  const panel = byId("compare");
  const { pack } = state;
  const others = pack.methods.filter((method) => method !== pack.method && method !== "identity");
  const usual = pack.shares_space ? NONE : others[0];
  panel
    .querySelector("fieldset")
    .append(
      pill(NONE, "no alignment", { disabled: !pack.shares_space, checked: usual === NONE }),
      ...others.map((method) => pill(method, method, { checked: usual === method })),
    );
  byId("apart").hidden = pack.shares_space;
  panel.querySelector("form").addEventListener("change", refresh);
  panel.addEventListener("toggle", refresh);
  for (const what of ["shown", "result"]) whenShown(what, refresh);
}

function pill(value, label, attributes) {
  return make(
    "label",
    { class: "pill" },
    make("input", { type: "radio", name: "beside", value, ...attributes }),
    make("span", {}, label),
  );
}

async function refresh() {
  const panel = byId("compare");
  const picture = state.current;
  if (!panel.open || !picture?.result) return;
  const chosen = panel.querySelector("input:checked").value;
  const k = evidenceCount();
  const wanted = [picture.url, state.edition, k, chosen].join(" ");
  if (wanted === asked) return;
  asked = wanted;
  request?.abort();
  request = new AbortController();
  const { signal } = request;
  const other = chosen === NONE ? { k, aligned: false } : { k, method: chosen };
  try {
    const [here, there] = await Promise.all([
      api.retrieve(picture, { k }, signal),
      api.retrieve(picture, other, signal),
    ]);
    show(here.evidence, there.evidence, chosen);
  } catch (error) {
    if (error.name === "AbortError") return;
    asked = "";
    complain(error, refresh);
  }
}

function show(here, there, chosen) {
  byId("here-title").textContent = `With this pack's map: ${state.pack.method}`;
  byId("there-title").textContent = chosen === NONE ? "Without alignment" : `With ${chosen}`;
  fill(byId("here"), here, there);
  fill(byId("there"), there, here);
  const texts = new Set(there.map((item) => item.text));
  const both = here.filter((item) => texts.has(item.text)).length;
  byId("overlap").textContent = `${both} of ${here.length} captions are in both lists; the others are marked.`;
}

function fill(list, items, others) {
  const known = new Set(others.map((item) => item.text));
  const best = items[0]?.similarity ?? 1;
  const alike = new Set([...items, ...others].map(({ source, synthetic }) => `${source}/${synthetic}`)).size === 1;
  const row = (item) => {
    const only = !known.has(item.text);
    const text = make(
      "span",
      {},
      make("span", { dir: "auto" }, item.text),
      only ? " " : null,
      only ? make("small", { class: "badge" }, "only here") : null,
      " ",
      alike ? null : origin(item),
    );
    return make("li", { class: only ? "fresh" : null }, bar(item.similarity, best), text);
  };
  list.replaceChildren(...items.map(row));
}
