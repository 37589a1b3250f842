// The sliders. Only what differs from the pack is sent.

import { byId, make } from "./dom.js";
import { renew, state } from "./state.js";

const PAUSE = 250; // milliseconds without a move, before a request is sent

const SLIDERS = [
  {
    name: "k",
    label: "Captions it may read",
    what: "k",
    min: 1,
    max: 30,
    step: 1,
    of: (pack) => pack.settings.k,
  },
  {
    name: "temperature",
    label: "How freely it writes",
    what: "temperature; 0 is greedy",
    min: 0,
    max: 2,
    step: 0.1,
    written: true,
    of: (pack) => pack.settings.decoding.temperature,
  },
  {
    name: "samples",
    label: "Sentences it tries",
    what: "l",
    min: 1,
    max: 30,
    step: 1,
    written: true,
    of: (pack) => pack.settings.decoding.samples,
  },
];

export function start() {
  const form = byId("settings");
  let pause;
  const change = () => {
    reset.disabled = Object.keys(state.changed).length === 0;
    clearTimeout(pause);
    pause = setTimeout(renew, PAUSE);
  };
  const sliders = SLIDERS.map((slider) => build(slider, change));
  const back = () => sliders.forEach((slider) => slider.reset());
  const reset = make("button", { type: "button", class: "plain", disabled: true, click: back }, "as the pack has it");
  form.replaceChildren(...sliders.map((slider) => slider.row));
  form.addEventListener("submit", (event) => event.preventDefault());
  if (state.pack.language_model === null)
    form.append(
      make("small", {}, "This pack is served without a language model: only the first slider has an effect."),
    );
  form.append(reset);
}

function build({ name, label, what, min, max, step, written = false, of }, change) {
  const usual = of(state.pack);
  const shown = make("output", { for: `set-${name}` }, usual);
  const input = make("input", {
    type: "range",
    id: `set-${name}`,
    min,
    max: Math.max(max, usual),
    step,
    value: usual,
    disabled: written && state.pack.language_model === null,
    input: () => set(Number(input.value)),
  });
  const set = (value) => {
    if (value === usual) delete state.changed[name];
    else state.changed[name] = value;
    shown.textContent = String(value);
    change();
  };
  const reset = () => {
    if (!(name in state.changed)) return;
    input.value = usual;
    set(usual);
  };
  const row = make(
    "div",
    { class: "slider" },
    make("label", { for: `set-${name}` }, label, " ", make("small", {}, what)),
    shown,
    input,
  );
  return { row, reset };
}
