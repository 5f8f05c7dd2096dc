// Where the job's time went: the answer of /api/v1/goodput, docs/goodput.md.
import {html} from "/vendor/htm-preact.js";

const MOST = 10;  // incidents that are shown

const percentOf = share => `${(100 * share).toFixed(1)} %`;
const secondsOf = seconds => seconds < 100 ? seconds.toFixed(1) : Math.round(seconds).toLocaleString("en");
const amountOf = seconds => seconds < 600 ? `${Math.round(seconds)} rank-seconds` : `${(seconds / 3600).toFixed(seconds < 36000 ? 2 : 0)} rank-hours`;

function Shares({seconds, all}) {
  const parts = Object.entries(seconds).filter(([, part]) => part > 0).map(([category, part]) => ({category, part, text: percentOf(part / all)}));
  return html`<div class="shares" role="img" aria-label=${`shares of all rank-seconds: ${parts.map(({category, text}) => `${category} ${text}`).join(", ")}`}>
      ${parts.map(({category, part, text}) => html`<span key=${category} class=${`share-${category}`} style=${{flexGrow: part / all}} title=${`${category} ${text}`}></span>`)}</div>
    <ul class="keys">${parts.map(({category, text}) => html`<li key=${category}><span class=${`swatch share-${category}`}></span>${category} <b>${text}</b></li>`)}</ul>`;
}

const listOf = (name, numbers) => numbers.length > 0 ? `${name}${numbers.length > 1 ? "s" : ""} ${numbers.join(", ")}` : "";
const whatOf = ({text, ranks, nodes}) => text || [listOf("rank", ranks), listOf("node", nodes)].filter(Boolean).join("; ");

function Incidents({incidents, older}) {
  const dearest = [...incidents].sort((a, b) => b.rank_s - a.rank_s).slice(0, MOST);
  const more = incidents.length - dearest.length + Object.values(older).reduce((sum, {count}) => sum + count, 0);
  if (dearest.length === 0 && more === 0) return html`<p class="quiet">Nothing has interrupted the job.</p>`;
  return html`<h3>What interrupted it, the dearest first</h3>
    <table id="incidents"><thead><tr><th>no.</th><th>time</th><th>kind</th><th>what</th><th>rank-seconds</th></tr></thead>
    <tbody>${dearest.map(incident => html`<tr key=${incident.number}>
      <td data-head="no.">${incident.number}</td>
      <td data-head="time"><time dateTime=${incident.time}>${new Date(incident.time).toLocaleString([], {hour12: false, dateStyle: "short", timeStyle: "medium"})}</time></td>
      <td data-head="kind">${incident.kind}</td>
      <td>${whatOf(incident)}</td>
      <td data-head="rank-seconds">${secondsOf(incident.rank_s)}<br /><small>${Object.entries(incident.seconds).map(([category, seconds]) =>
        `${category} ${secondsOf(seconds)}`).join(", ")}</small></td></tr>`)}</tbody></table>
    ${more > 0 && html`<p class="quiet">and ${more} more: <code>taskd goodput --incidents 1000</code></p>`}`;
}

export function Goodput({goodput}) {
  const {rank_s: all, seconds, text, incidents, older_incidents: older, advice} = goodput;
  return html`<section id="goodput"><h2>Where the ranks' time went</h2>
    ${all > 0 ? html`<p class="sentence">${text}</p><${Shares} seconds=${seconds} all=${all} /><${Incidents} incidents=${incidents} older=${older} />`
      : html`<p class="quiet">There is no time yet: it begins with the job's launcher, or with its first marks.</p>`}
    ${advice.length > 0 && html`<h3>What would pay</h3><ul class="advice">${advice.map((one, i) =>
      html`<li key=${i}>${one.text} <small>(up to ${amountOf(one.saves_rank_s)})</small></li>`)}</ul>`}</section>`;
}
