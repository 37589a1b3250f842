// Captions of one's own, judged beside the machine's.

import * as api from "./api.js";
import { bar, byId, calm, complain, make, tell } from "./dom.js";
import { state, whenShown } from "./state.js";

const MOST = 40;

export function start() {
  byId("score")
    .querySelector("form")
    .addEventListener("submit", (event) => {
      event.preventDefault();
      const text = byId("score-text").value.trim();
      const { tried } = state.current;
      if (!text) return;
      if (!tried.includes(text)) tried.unshift(text);
      tried.splice(MOST);
      refresh(text);
      byId("score-text").select();
    });
  whenShown("shown", () => refresh());
  whenShown("result", () => refresh());
}

async function refresh(just = null) {
  const picture = state.current;
  if (!picture.tried.length || !picture.result) return void (byId("scores").hidden = true);
  const reference = byId("score-references")
    .value.split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
  const machine = picture.result.caption;
  const captions = [...new Set([machine, ...picture.tried])];
  try {
    const { scores } = await api.score(picture, { caption: captions, reference });
    if (picture !== state.current) return;
    calm();
    show(picture, scores, machine, reference.length > 0);
    const judged = scores.find((item) => item.caption === just);
    if (judged) tell(`${judged.aclip_s.toFixed(2)} for ${just}`);
  } catch (error) {
    if (just) picture.tried = picture.tried.filter((text) => text !== just);
    complain(error);
  }
}

function show(picture, scores, machine, withReferences) {
  const value = (item) => (withReferences ? item.refaclip_s : item.aclip_s);
  const sorted = [...scores].sort((a, b) => value(b) - value(a) || b.cosine - a.cosine);
  const best = (name) => Math.max(...scores.map((item) => item[name] ?? 0));
  const row = (item) => {
    const name = item.caption === machine ? make("small", { class: "badge" }, "recap") : null;
    const cells = [make("td", {}, make("span", { dir: "auto" }, item.caption), " ", name)];
    cells.push(make("td", { title: `aligned cosine ${item.cosine.toFixed(3)}` }, bar(item.aclip_s, best("aclip_s"))));
    if (withReferences) cells.push(make("td", {}, bar(item.refaclip_s, best("refaclip_s"))));
    return make("tr", {}, ...cells);
  };
  byId("with-references").hidden = !withReferences;
  byId("scores")
    .querySelector("tbody")
    .replaceChildren(...sorted.map(row));
  byId("scores").hidden = false;
}
