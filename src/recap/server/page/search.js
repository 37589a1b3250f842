// The pictures of a folder, found by a text; one that is chosen is captioned.

import * as api from "./api.js";
import { byId, calm, complain, counted, make } from "./dom.js";
import { take } from "./intake.js";
import { state } from "./state.js";

export function start() {
  const { search } = state.served.limits;
  byId("search").hidden = search === null;
  if (search === null) return;
  byId("search-note").textContent = `among ${counted(search, "picture", "pictures")} of this service`;
  byId("search")
    .querySelector("form")
    .addEventListener("submit", (event) => {
      event.preventDefault();
      find(byId("search-text").value);
    });
}

async function find(text) {
  byId("search-told").textContent = "Searching…";
  try {
    const { results } = await api.find(text);
    calm();
    byId("search-told").textContent = `${counted(results.length, "picture", "pictures")}, the best first`;
    byId("search-found").replaceChildren(...results.map(tile));
  } catch (error) {
    byId("search-told").textContent = "";
    complain(error);
  }
}

function tile({ id, name, similarity }) {
  const image = make("img", { alt: "" });
  const shown = api.found(id).then((blob) => {
    image.src = URL.createObjectURL(blob);
    return new File([blob], name.split("/").pop());
  });
  shown.catch(complain);
  const click = async () => take([await shown]);
  const fit = make("small", { class: "expert" }, ` ${similarity.toFixed(2)}`);
  return make(
    "li",
    {},
    make("button", { type: "button", title: "Caption it", click }, image, make("span", { dir: "auto" }, name, fit)),
  );
}
