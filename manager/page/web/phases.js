// Where a step's time goes: the share of each phase, step after step.
import {html, useEffect, useRef} from "/vendor/htm-preact.js";
import {isDark} from "/heatmap.js";

export const PHASES = ["data loader", "compute", "communication", "checkpoint"];
const COLORS = {light: ["#b8860b", "#3b6fb6", "#8fa3bd", "#7a4fa3"], dark: ["#e0b040", "#6fa3ea", "#56657c", "#b48ae0"]};
const MOST = 400;  // steps that are drawn

// Each series is the sum of its phase and those below it, so that the ones drawn later cover its lower part.
function dataOf(columns) {
  const newest = columns.slice(-MOST);
  const shares = newest.map(({phases}) => {
    const sum = phases.reduce((a, b) => a + b, 0);
    return sum > 0 ? phases.map(ms => 100 * ms / sum) : null;
  });
  const series = PHASES.map((_, last) => shares.map(share => share && share.slice(0, last + 1).reduce((a, b) => a + b, 0)));
  return [newest.map((_, x) => x), ...series.reverse()];
}

export function Phases({store, tick}) {
  const box = useRef();
  const plot = useRef();
  const dark = isDark();
  const colors = COLORS[dark ? "dark" : "light"];
  const present = store.columns.slice(-MOST);
  const stepAt = useRef(() => "");
  stepAt.current = x => present[x]?.step ?? "";
  useEffect(() => {
    const text = getComputedStyle(document.documentElement).getPropertyValue("--soft");
    const line = getComputedStyle(document.documentElement).getPropertyValue("--line");
    const axis = {stroke: text, grid: {stroke: line, width: 1}, ticks: {stroke: line, width: 1}, font: "12px system-ui, sans-serif"};
    plot.current = new uPlot({
      width: box.current.clientWidth || 400, height: 190, legend: {show: false}, cursor: {show: false},
      scales: {x: {time: false, range: (_, least, most) => [least, Math.max(most, least + 1)]}, y: {range: [0, 100]}},
      axes: [{...axis, values: (_, ticks) => ticks.map(x => Number.isInteger(x) ? stepAt.current(x) : "")},
             {...axis, size: 58, values: (_, ticks) => ticks.map(share => `${share} %`)}],
      series: [{}, ...colors.map((_, i) => ({fill: colors[PHASES.length - 1 - i], width: 0, points: {show: false}}))],
    }, dataOf(store.columns), box.current);
    const observer = new ResizeObserver(() => plot.current.setSize({width: box.current.clientWidth, height: 190}));
    observer.observe(box.current);
    return () => { observer.disconnect(); plot.current.destroy(); };
  }, [dark]);
  useEffect(() => { plot.current.setData(dataOf(store.columns)); }, [tick]);

  const newest = present.slice(-20).map(column => column.phases).filter(phases => phases.some(ms => ms > 0));
  const means = PHASES.map((_, i) => newest.reduce((sum, phases) => sum + phases[i], 0) / (newest.length || 1));
  const total = means.reduce((a, b) => a + b, 0);
  return html`<div ref=${box} class="plot" aria-hidden="true"></div>
    <ul class="keys">${PHASES.map((name, i) => html`<li key=${name}><span class=${`swatch phase${i}`}></span>${name}
      <b>${total > 0 ? `${(100 * means[i] / total).toFixed(means[i] / total < 0.1 ? 1 : 0)} %` : "–"}</b></li>`)}</ul>`;
}
