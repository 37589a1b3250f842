// Maps of a picture among captions: two directions of many, before and after alignment.

import * as api from "./api.js";
import { byId, complain, draw, make, percent, plain } from "./dom.js";
import { evidenceCount, state, whenShown } from "./state.js";

const CAPTIONS = 60;
const SIDE = 320;
const EDGE = 24;
let request = null;
let asked = "";

export function start() {
  byId("map").addEventListener("toggle", refresh);
  for (const what of ["shown", "result"]) whenShown(what, refresh);
}

async function refresh() {
  const picture = state.current;
  if (!byId("map").open || !picture?.result) return;
  const wanted = [picture.url, state.edition, evidenceCount()].join(" ");
  if (wanted === asked) return;
  asked = wanted;
  request?.abort();
  request = new AbortController();
  try {
    show(await api.map(picture, { k: CAPTIONS }, request.signal));
  } catch (error) {
    if (error.name === "AbortError") return;
    asked = "";
    complain(error, refresh);
  }
}

function show({ evidence, aligned, unaligned }) {
  const near = Math.min(evidenceCount(), evidence.length);
  const planes = [...(unaligned ? [["Before alignment", unaligned]] : []), ["After alignment", aligned]];
  const charts = planes.map(([title, plane]) => chart(title, plane, evidence, near, (place) => point(place)));
  const point = (place) => {
    for (const { mark } of charts) mark(place);
    const { text, similarity } = evidence[place];
    byId("read").textContent = plain(`${place + 1}. ${text} (${similarity.toFixed(2)})`);
  };
  const read = byId("read");
  read.textContent = "";
  const figures = charts.map(({ figure }) => figure);
  if (unaligned) {
    byId("charts").replaceChildren(...figures);
    byId("charts").after(read);
  } else {
    byId("charts").replaceChildren(
      ...figures,
      make("div", {}, make("p", { class: "note" }, byId("apart").textContent), read),
    );
  }
}

function chart(title, plane, evidence, near, point) {
  const place = scale([plane.picture, ...plane.captions]);
  const middle = place(plane.picture);
  const spots = plane.captions.map(place);
  const dots = spots.map(({ x, y }, index) =>
    draw("circle", { cx: x, cy: y, r: index < near ? 4.5 : 3.5, class: index < near ? "near" : "far" }),
  );
  const rays = spots.slice(0, near).map(({ x, y }) => draw("line", { x1: middle.x, y1: middle.y, x2: x, y2: y }));
  const ring = draw("circle", { r: 8, class: "ring", visibility: "hidden" });
  const size = 7;
  const picture = draw("rect", {
    x: middle.x - size,
    y: middle.y - size,
    width: 2 * size,
    height: 2 * size,
    rx: 3,
    class: "here",
  });
  const svg = draw(
    "svg",
    {
      viewBox: `0 0 ${SIDE} ${SIDE}`,
      tabindex: 0,
      role: "slider",
      "aria-label": `${title}: captions by nearness`,
      "aria-valuemin": 1,
      "aria-valuemax": evidence.length,
      "aria-valuenow": 1,
      "aria-valuetext": evidence[0].text,
    },
    ...rays,
    ...dots.reverse(),
    picture,
    ring,
  );
  let present = -1;
  const mark = (index) => {
    present = index;
    ring.setAttribute("cx", spots[index].x);
    ring.setAttribute("cy", spots[index].y);
    ring.setAttribute("visibility", "visible");
    svg.setAttribute("aria-valuenow", index + 1);
    svg.setAttribute("aria-valuetext", plain(evidence[index].text));
  };
  svg.addEventListener("pointermove", (event) => point(nearest(spots, inside(svg, event))));
  svg.addEventListener("pointerdown", (event) => point(nearest(spots, inside(svg, event))));
  svg.addEventListener("keydown", (event) => {
    const last = evidence.length - 1;
    const next = {
      ArrowRight: present + 1,
      ArrowUp: present + 1,
      ArrowLeft: present - 1,
      ArrowDown: present - 1,
      Home: 0,
      End: last,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    point(Math.min(last, Math.max(0, next)));
  });
  const note = make("small", {}, `${percent(plane.explained)} of the differences are in these two directions`);
  return {
    figure: make("figure", { class: "chart" }, svg, make("figcaption", {}, make("strong", {}, title), " ", note)),
    mark,
  };
}

/** Fit points into the square, with the same scale both ways. */
function scale(points) {
  const [xs, ys] = [points.map((one) => one.x), points.map((one) => one.y)];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const unit = (SIDE - 2 * EDGE) / Math.max(right - left, high - low, 1e-9);
  return ({ x, y }) => ({ x: SIDE / 2 + (x - (left + right) / 2) * unit, y: SIDE / 2 - (y - (low + high) / 2) * unit });
}

function inside(svg, event) {
  const box = svg.getBoundingClientRect();
  return { x: ((event.clientX - box.left) / box.width) * SIDE, y: ((event.clientY - box.top) / box.height) * SIDE };
}

function nearest(spots, { x, y }) {
  const distances = spots.map((spot) => Math.hypot(spot.x - x, spot.y - y));
  return distances.indexOf(Math.min(...distances));
}
