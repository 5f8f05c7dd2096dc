// The heat map: ranks down, steps across, the newest last. Where a pixel stands for several cells it shows the largest of
// them, so that one slow rank of 16,384 is a pixel.
import {html, useEffect, useRef, useState} from "/vendor/htm-preact.js";
import {NO_DATA} from "/store.js";

const LEFT = 84, MOST_NAMED = 12, BOTTOM = 22, TOP = 4;
const MAX_HEIGHT = 400, ROW_HEIGHT = 26, MAX_STEP_WIDTH = 14;

// Ratio to the median -> color. Blue and orange: told apart by everybody.
const STOPS = {
  light: [[0, [44, 90, 168]], [0.6, [122, 160, 214]], [0.93, [226, 229, 234]], [1.07, [226, 229, 234]], [1.25, [246, 185, 92]],
          [1.6, [214, 98, 18]], [3, [92, 28, 4]]],
  dark: [[0, [120, 170, 255]], [0.6, [62, 104, 176]], [0.93, [46, 52, 64]], [1.07, [46, 52, 64]], [1.25, [158, 92, 26]],
         [1.6, [255, 158, 46]], [3, [255, 240, 205]]],
};
const GAP = {light: [255, 255, 255], dark: [17, 20, 26]};

export const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function colorOf(ratio, stops) {
  const after = stops.findIndex(([at]) => at >= ratio);
  if (after <= 0) return stops[after === 0 ? 0 : stops.length - 1][1];
  const [from, a] = stops[after - 1], [to, b] = stops[after];
  const t = (ratio - from) / (to - from);
  return a.map((channel, i) => Math.round(channel + (b[i] - channel) * t));
}

// One 32-bit pixel for each byte.
function palette(scale) {
  const mode = isDark() ? "dark" : "light";
  const pixels = new Uint32Array(256);
  for (let byte = 0; byte < 256; byte++) {
    const [r, g, b] = byte === NO_DATA ? GAP[mode] : colorOf(byte / 254 * scale, STOPS[mode]);
    pixels[byte] = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  }
  return pixels;
}

// Where things are, in CSS pixels.
function layoutOf(store, width) {
  const rows = store.rows, steps = store.columns.length;
  const height = Math.max(2, Math.min(MAX_HEIGHT, rows * ROW_HEIGHT));
  return {rows, steps, width, height, left: LEFT, across: Math.min(width - LEFT - 8, steps * MAX_STEP_WIDTH)};
}

function paint(canvas, store, accused, cursor) {
  const width = canvas.clientWidth || 800;
  const place = layoutOf(store, width);
  const ratio = devicePixelRatio || 1;
  const total = place.height + BOTTOM + TOP;
  canvas.style.height = `${total}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(total * ratio);
  const context = canvas.getContext("2d");
  if (place.rows === 0 || place.steps === 0) return place;
  const w = Math.max(1, Math.round(place.across * ratio)), h = Math.max(1, Math.round(place.height * ratio));
  const image = new ImageData(w, h);
  const pixels = new Uint32Array(image.data.buffer);
  const colors = palette(store.scale);
  const line = new Uint8Array(place.rows);  // of byte + 1: then a gap is the smallest
  for (let x = 0; x < w; x++) {
    const first = Math.floor(x * place.steps / w);
    const last = Math.max(first + 1, Math.floor((x + 1) * place.steps / w));
    line.fill(0);
    for (let step = first; step < last; step++) {
      const cells = store.columns[step].cells;
      for (let y = 0; y < cells.length; y++) {
        const value = cells[y] + 1 & 255;
        if (value > line[y]) line[y] = value;
      }
    }
    for (let y = 0; y < h; y++) {
      const from = Math.floor(y * place.rows / h);
      const to = Math.max(from + 1, Math.floor((y + 1) * place.rows / h));
      let largest = 0;
      for (let row = from; row < to; row++) if (line[row] > largest) largest = line[row];
      pixels[y * w + x] = colors[largest - 1 & 255];
    }
  }
  context.putImageData(image, Math.round(place.left * ratio), Math.round(TOP * ratio));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawAxes(context, store, place, accused);
  if (cursor) drawCursor(context, place, cursor);
  return place;
}

function drawAxes(context, store, place, accused) {
  context.strokeStyle = style("--line");
  context.strokeRect(place.left - 0.5, TOP - 0.5, place.across + 1, place.height + 1);
  context.fillStyle = style("--soft");
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(place.rows / Math.max(1, Math.floor(place.height / 22))));
  const middle = row => Math.max(TOP + 7, TOP + (row + 0.5) * place.height / place.rows);
  const named = [...new Set(accused)].filter(rank => rank < store.ranks).slice(0, MOST_NAMED);
  const rowsNamed = named.map(rank => Math.floor(rank / store.perRow));
  for (let row = 0; row < place.rows; row += every) {
    if (rowsNamed.some(other => Math.abs(middle(row) - middle(other)) < 16)) continue;
    context.fillText(`rank ${store.ranksOfRow(row)[0]}`, place.left - 6, middle(row));
  }
  context.fillStyle = style("--mark");
  context.font = "bold 12px system-ui, sans-serif";
  named.forEach((rank, i) => context.fillText(`rank ${rank}`, place.left - 6, middle(rowsNamed[i])));
  context.fillStyle = style("--soft");
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "top";
  const labels = Math.max(1, Math.floor(place.across / 90));
  const stride = Math.max(1, Math.ceil(place.steps / labels));
  for (let x = place.steps - 1; x >= 0; x -= stride) {
    const at = place.left + (x + 1) * place.across / place.steps;
    if (at - place.left < 60 && x !== place.steps - 1) break;
    context.fillText(`${x === place.steps - 1 ? "step " : ""}${store.columns[x].step}`, at, TOP + place.height + 5);
  }
  // Where the job began anew.
  context.strokeStyle = style("--text");
  context.setLineDash([3, 3]);
  for (let x = 1; x < place.steps; x++) {
    if (store.columns[x].run === store.columns[x - 1].run) continue;
    const at = place.left + x * place.across / place.steps;
    context.beginPath();
    context.moveTo(at, TOP);
    context.lineTo(at, TOP + place.height);
    context.stroke();
  }
  context.setLineDash([]);
}

function drawCursor(context, place, cursor) {
  const w = place.across / place.steps, h = place.height / place.rows;
  context.strokeStyle = style("--text");
  context.lineWidth = 2;
  context.strokeRect(place.left + cursor.x * w - 1, TOP + cursor.row * h - 1, Math.max(w, 3) + 2, Math.max(h, 3) + 2);
}

const ms = value => value >= 1000 ? `${(value / 1000).toPrecision(3)} s` : `${value.toPrecision(3)} ms`;

function describe(store, {x, row}) {
  const column = store.columns[x];
  const [first, last] = store.ranksOfRow(row);
  const who = first === last ? `rank ${first}` : `ranks ${first}–${last} (the largest)`;
  const byte = column.cells[row] ?? NO_DATA;
  const node = store.nodeOf(first, last);
  const where = `${who}${node ? `, ${node}` : ""}, step ${column.step}`;
  if (byte === NO_DATA) return `${where}: no data`;
  const ratio = byte / 254 * store.scale;
  const more = byte === 254 ? " or more" : "";
  return `${where}: ${ms(ratio * column.median)}${more}, ${ratio.toFixed(2)} × the step's median of ${ms(column.median)}`;
}

export function Legend({scale}) {
  const ref = useRef();
  const dark = isDark();
  useEffect(() => {
    const context = ref.current.getContext("2d");
    const image = new ImageData(180, 1);
    const colors = palette(scale);
    new Uint32Array(image.data.buffer).forEach((_, x, pixels) => { pixels[x] = colors[Math.round(x / 180 * 254)]; });
    for (let y = 0; y < 12; y++) context.putImageData(image, 0, y);
  }, [scale, dark]);
  return html`<span class="legend"><span>0 ×</span><canvas ref=${ref} width="180" height="12" aria-hidden="true"></canvas>
    <span>${scale} × the step's median</span><span class="gap" aria-hidden="true"></span><span>no data</span></span>`;
}

export function Heatmap({store, tick, accused, onRank}) {
  const canvas = useRef();
  const place = useRef();
  const [cursor, setCursor] = useState(null);  // {key of the column, row}: stays on its step as new ones come
  const [size, setSize] = useState(0);
  const x = cursor ? store.columns.findIndex(column => column.key === cursor.key) : -1;
  const at = x >= 0 && cursor.row < store.rows ? {x, row: cursor.row} : null;
  useEffect(() => {
    const observer = new ResizeObserver(() => setSize(canvas.current.clientWidth));
    observer.observe(canvas.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setSize(size => size + 0.001);
    scheme.addEventListener("change", changed);
    return () => { observer.disconnect(); scheme.removeEventListener("change", changed); };
  }, []);
  useEffect(() => { place.current = paint(canvas.current, store, accused, at); }, [tick, size, at?.x, at?.row]);

  const cellUnder = event => {
    const box = canvas.current.getBoundingClientRect();
    const p = place.current;
    const column = Math.floor((event.clientX - box.left - p.left) / p.across * p.steps);
    const row = Math.floor((event.clientY - box.top - TOP) / p.height * p.rows);
    return column >= 0 && column < p.steps && row >= 0 && row < p.rows ? {key: store.columns[column].key, row} : null;
  };
  const move = event => { const cell = cellUnder(event); if (cell) setCursor(cell); };
  const open = cell => { if (cell) onRank(store.ranksOfRow(cell.row)[0]); };
  const press = event => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (event.key === "Enter" && at) return open(at);
    if (!step || store.columns.length === 0) return;
    event.preventDefault();
    const from = at ?? {x: store.columns.length - 1 - step[0], row: -step[1]};
    const many = event.shiftKey ? 10 : 1;
    const to = Math.max(0, Math.min(store.columns.length - 1, from.x + step[0] * many));
    setCursor({key: store.columns[to].key, row: Math.max(0, Math.min(store.rows - 1, from.row + step[1] * many))});
  };
  const title = "Heat map of ranks and steps. The arrow keys move over its cells; Enter shows the rank.";
  return html`<canvas id="heatmap" ref=${canvas} tabindex="0" role="img" aria-label=${title} aria-describedby="cell"
      onPointerMove=${move} onClick=${event => open(cellUnder(event))} onKeyDown=${press}></canvas>
    <p id="cell" aria-live="polite">${at ? describe(store, at) : "Point at a cell, or use Tab and the arrow keys; Enter or a click shows its rank."}</p>`;
}
