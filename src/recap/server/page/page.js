// The page begins.

import * as api from "./api.js";
import * as chart from "./chart.js";
import * as compare from "./compare.js";
import { byId, calm, complain, counted, plain } from "./dom.js";
import * as intake from "./intake.js";
import * as result from "./result.js";
import * as score from "./score.js";
import * as search from "./search.js";
import * as settings from "./settings.js";
import { state } from "./state.js";
import * as store from "./store.js";
import * as tags from "./tags.js";

async function start() {
  try {
    state.served = await api.packs();
  } catch (error) {
    byId("key").hidden = error.status !== 401;
    if (error.status === 401) byId("key-value").focus();
    return complain(error, error.status === 401 ? null : start);
  }
  calm();
  byId("key").hidden = true;
  state.pack = state.served.packs[0];
  const { name, captions, encoder, language_model: model } = state.pack;
  const parts = [
    `recap ${state.served.version}`,
    `pack ${name}`,
    counted(captions, "caption", "captions"),
    encoder,
    model ?? "no language model",
  ];
  byId("served").textContent = plain(parts.join(" · "));
  for (const part of [settings, result, tags, score, compare, chart, store, search, intake]) part.start();
  document.documentElement.dataset.ready = "";
}

const EXPERT = "recap-expert";
const expert = byId("expert");
expert.checked = localStorage.getItem(EXPERT) === "yes";
const showExpert = () => document.documentElement.toggleAttribute("data-expert", expert.checked);
expert.addEventListener("change", () => {
  localStorage.setItem(EXPERT, expert.checked ? "yes" : "no");
  showExpert();
});
showExpert();

byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  api.useKey(byId("key-value").value);
  start();
});
start();
