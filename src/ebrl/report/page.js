"use strict";
// Zoom and move of the swim lanes. Times are milliseconds; a view is [left, right].

function niceTicks(left, right) {
  const rough = (right - left) / 8;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => power * factor >= rough * (1 - 1e-9));
  const ticks = [];
  for (let index = Math.ceil(left / step - 1e-9); index * step <= right + 1e-9 * step; index++) ticks.push(index * step);
  return ticks;
}

function swimLanes(figure) {
  const chart = figure.querySelector(".swim");
  const lanes = chart.querySelector(".lanes");
  const ticks = chart.querySelector(".ticks");
  const end = Number(lanes.dataset.end);
  const x = Number(lanes.getAttribute("x")), width = Number(lanes.getAttribute("width"));
  const height = Number(lanes.getAttribute("height"));
  const first = lanes.getAttribute("viewBox").split(" ").map(Number);
  let view = [first[0], first[0] + first[2]];

  function draw(name, attributes, text) {
    const shape = document.createElementNS(chart.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
    if (text !== undefined) shape.textContent = text;
    ticks.append(shape);
  }

  function show(left, right) {
    const size = Math.min(Math.max(right - left, 1), end);
    left = Math.min(Math.max(left, 0), end - size);
    view = [left, left + size];
    lanes.setAttribute("viewBox", `${left} 0 ${size} ${height}`);
    ticks.replaceChildren();
    for (const seconds of niceTicks(view[0] / 1000, view[1] / 1000)) {
      const at = x + ((seconds * 1000 - left) / size) * width;
      draw("line", { x1: at, x2: at, y1: 8, y2: height, class: "grid" });
      draw("text", { x: at, y: height + 17, class: "tick middle" }, String(Number(seconds.toPrecision(9))));
    }
  }

  function zoom(factor, share) {
    const size = view[1] - view[0], fixed = view[0] + share * size;
    show(fixed - share * size * factor, fixed + (1 - share) * size * factor);
  }

  function move(share) {
    const by = share * (view[1] - view[0]);
    show(view[0] + by, view[1] + by);
  }

  const actions = {
    in: () => zoom(0.5, 0.5),
    out: () => zoom(2, 0.5),
    left: () => move(-0.5),
    right: () => move(0.5),
    all: () => show(0, end),
  };
  const keys = { "+": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" };

  const buttons = figure.querySelector(".buttons");
  buttons.hidden = false;
  for (const button of buttons.querySelectorAll("button")) button.addEventListener("click", actions[button.dataset.do]);
  chart.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  const shareOf = (event) => {
    const box = chart.getBoundingClientRect(), whole = chart.viewBox.baseVal.width;
    return (((event.clientX - box.left) / box.width) * whole - x) / width;
  };
  chart.addEventListener("wheel", (event) => {
    if (!event.shiftKey) return; // the page scrolls
    event.preventDefault();
    zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, Math.min(Math.max(shareOf(event), 0), 1));
  }, { passive: false });
  let grip = null;
  lanes.addEventListener("pointerdown", (event) => {
    grip = { share: shareOf(event), view };
    lanes.setPointerCapture(event.pointerId);
  });
  lanes.addEventListener("pointermove", (event) => {
    if (grip === null) return;
    const by = (grip.share - shareOf(event)) * (grip.view[1] - grip.view[0]);
    show(grip.view[0] + by, grip.view[1] + by);
  });
  for (const name of ["pointerup", "pointercancel"]) lanes.addEventListener(name, () => { grip = null; });
}

for (const chart of document.querySelectorAll(".swim")) swimLanes(chart.closest("figure"));
