// The keywords of the picture that is shown, on request.

import * as api from "./api.js";
import { byId, calm, complain, make, tell } from "./dom.js";
import { state, whenShown } from "./state.js";

export function start() {
  byId("find-tags").addEventListener("click", () => find(state.current));
  whenShown("shown", show);
}

async function find(picture) {
  byId("tags").textContent = "Looking at it…";
  try {
    picture.tags = (await api.tags(picture)).tags;
    calm();
  } catch (error) {
    complain(error);
  }
  if (picture === state.current) show(picture);
}

function show({ tags = null }) {
  if (!tags) return void (byId("tags").textContent = "");
  const chip = ({ text, score }) =>
    make("span", { class: "chip" }, text, make("small", { class: "expert" }, ` ${score.toFixed(2)}`));
  byId("tags").replaceChildren(...(tags.length ? tags.map(chip) : ["none that it is sure enough of"]));
  tell(`Keywords: ${tags.map((tag) => tag.text).join(", ") || "none"}`);
}
