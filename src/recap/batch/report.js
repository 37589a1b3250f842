"use strict";
const told = document.getElementById("told");
const cards = [...document.querySelectorAll(".card")];
const words = (card) => [...card.querySelectorAll(".w[data-n]")];
const sources = (word) => (word.dataset.from ?? "").split(" ").filter(Boolean);

function clear(card) {
  card.classList.remove("asked");
  for (const item of card.querySelectorAll(".on")) item.classList.remove("on");
}

function showWord(card, word) {
  clear(card);
  word.classList.add("on");
  card.classList.add("asked");
  for (const place of sources(word)) card.querySelector(`[data-i="${place}"]`).classList.add("on");
  for (const same of card.querySelectorAll(`.rows i[data-n~="${word.dataset.n}"]`)) same.classList.add("on");
}

function showRow(card, row) {
  clear(card);
  card.classList.add("asked");
  row.classList.add("on");
  for (const same of row.querySelectorAll("i")) same.classList.add("on");
  for (const word of words(card)) if (sources(word).includes(row.dataset.i)) word.classList.add("on");
}

function tell(card, word) {
  const rows = sources(word).map((place) => card.querySelector(`[data-i="${place}"] span`).textContent.trim());
  const said = rows.length ? `in ${rows.length} retrieved captions: ${rows.slice(0, 3).join("; ")}` : "in no retrieved caption";
  told.textContent = `${word.textContent}: ${said}`;
}

function step(card, by) {
  const all = words(card);
  if (!all.length) return;
  const present = all.findIndex((word) => word.classList.contains("on"));
  const next = all[present < 0 ? (by > 0 ? 0 : all.length - 1) : (present + by + all.length) % all.length];
  showWord(card, next);
  tell(card, next);
}

document.addEventListener("pointerover", ({ target }) => {
  const word = target.closest(".w[data-n]");
  const row = target.closest("[data-i]");
  const card = target.closest(".card");
  if (word) showWord(card, word);
  else if (row) showRow(card, row);
  else if (card && !card.contains(document.activeElement)) clear(card);
});
document.addEventListener("pointerout", ({ target, relatedTarget }) => {
  const card = target.closest(".card");
  if (card && !card.contains(relatedTarget)) clear(card);
});
document.addEventListener("focusout", ({ target }) => {
  if (target.matches(".said")) clear(target.closest(".card"));
});
document.addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!event.target.matches(".said")) return;
  const card = event.target.closest(".card");
  if (by) {
    event.preventDefault();
    step(card, by);
  } else if (event.key === "Escape") clear(card);
});

const find = document.getElementById("find");
const order = document.getElementById("order");
const count = document.getElementById("count");

function filter() {
  const wanted = find.value.trim().toLowerCase();
  let shown = 0;
  for (const card of cards) {
    const text = card.querySelector(".said").textContent + "\n" + card.querySelector(".file").textContent;
    card.hidden = !text.toLowerCase().includes(wanted);
    if (!card.hidden) shown += 1;
  }
  const all = cards.length === 1 ? "1 picture" : `${cards.length.toLocaleString("en")} pictures`;
  count.textContent = wanted ? `${shown.toLocaleString("en")} of ${all}` : all;
}

function sort() {
  const sign = { up: 1, down: -1 }[order.value];
  const sorted = sign ? [...cards].sort((a, b) => sign * (a.dataset.sure - b.dataset.sure)) : cards;
  document.getElementById("pictures").append(...sorted);
}

find.addEventListener("input", filter);
order.addEventListener("change", sort);
find.form.addEventListener("submit", (event) => event.preventDefault());
find.form.hidden = false;
filter();
