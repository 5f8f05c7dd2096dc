// What stands beside the heat map. Texts of the job are always children of elements, never markup.
import {nameOf} from "/store.js";
import {html, useEffect, useState} from "/vendor/htm-preact.js";

const KIND_NAMES = {step: "step", fp: "forward", dataloader: "dataloader", save_checkpoint: "checkpoint", communication: "communication"};
const CAUSES = {
  compute: "slow computation", memory: "memory", dataloader: "data loading", host: "busy host", gc: "garbage collection",
  checkpoint: "checkpoint", network: "network", intra_node_link: "link within the node", pp_link: "pipeline link", fabric: "fabric",
  config: "configuration", unknown: "unknown cause",
};
const timeOf = text => text ? new Date(text).toLocaleTimeString([], {hour12: false}) : "";
const runsOf = ids => {
  const runs = [];
  for (let i = 0; i < ids.length; i++) {
    const first = i;
    while (i + 1 < ids.length && ids[i + 1] === ids[i] + 1) i++;
    runs.push(first === i ? `${ids[i]}` : `${ids[first]}–${ids[i]}`);
  }
  return runs.length > 8 ? `${runs.slice(0, 8).join(", ")} and more` : runs.join(", ");
};
export const entityOf = ({scope, ids}) => scope === "job" ? "the whole job"
  : scope === "link" ? `link ${ids.slice(0, 4).map(([a, b]) => `${a}–${b}`).join(", ")}${ids.length > 4 ? " and more" : ""}`
  : `${scope}${ids.length > 1 ? "s" : ""} ${runsOf(ids)}`;

const percentOf = ratio => (100 * (ratio - 1)).toFixed(1);
const intervalOf = ({slowdown_interval: [low, high]}) => high === null ? ` (at least ${percentOf(low)})`
  : high > low ? ` (${percentOf(low)} to ${percentOf(high)})` : "";
// 1: what a step takes without it is not known.
const slowdownOf = verdict => verdict.slowdown > 1 ? `${percentOf(verdict.slowdown)} % longer${intervalOf(verdict)}` : "";

const FEATURES = {own_time: "self time", cpu_wait: "wait for a CPU", save_checkpoint: "checkpoint"};

function Evidence({verdict}) {
  return html`<details><summary>evidence</summary>
    <p>${verdict.text}</p>
    <table><thead><tr><th>feature</th><th>ms</th><th>expected</th><th>compared with</th><th>sigmas</th><th>steps</th></tr></thead>
    <tbody>${verdict.evidence.map((row, i) => html`<tr key=${i}><td>${FEATURES[row.feature] || row.feature}</td><td>${row.value}</td><td>${row.reference}</td>
      <td>${row.peers === 0 ? "its own past" : `${row.peers} peers`}</td><td>${row.z}</td><td>${row.steps.join("–")}</td></tr>`)}</tbody></table>
    ${verdict.alternatives.length > 0 && html`<p>Or instead: ${verdict.alternatives.map(other =>
      `${entityOf(other)}${other.cause ? `, ${other.cause}` : ""} (${Math.round(100 * other.p)} %)`).join(", ")}</p>`}</details>`;
}

export function Suspects({verdicts, onRank}) {
  const open = verdicts.filter(verdict => verdict.state === "open");
  const earlier = verdicts.filter(verdict => verdict.state !== "open");
  return html`<section><h2>Suspects</h2>
    <table id="suspects"><thead><tr><th>who</th><th>cause</th><th>since</th><th>cost of a step</th><th>confidence</th><th>why</th></tr></thead>
    <tbody>${open.map((verdict, i) => html`<tr key=${i}>
      <td>${verdict.scope === "rank" && verdict.ids.length === 1
        ? html`<button class="link" onClick=${() => onRank(verdict.ids[0])}>${entityOf(verdict)}</button>` : entityOf(verdict)}${
          verdict.nodes.length > 0 && html`<br /><small>on ${verdict.nodes.slice(0, 4).map(nameOf).join("; ")}${verdict.nodes.length > 4 ? " and more" : ""}</small>`}</td>
      <td data-head="cause">${CAUSES[verdict.cause] ?? verdict.cause}</td>
      <td data-head="since">step ${verdict.since_step}${verdict.since_time && html`<br /><small>${timeOf(verdict.since_time)}</small>`}</td>
      <td data-head="cost of a step">${verdict.cost_ms_per_step.toPrecision(3)} ms<br /><small>${slowdownOf(verdict)}</small></td>
      <td data-head="confidence">${Math.round(100 * verdict.confidence)} %</td>
      <td><${Evidence} verdict=${verdict} /></td></tr>`)}
      ${open.length === 0 && html`<tr><td colspan="6" class="quiet">Nobody is accused.</td></tr>`}</tbody></table>
    ${earlier.length > 0 && html`<details class="earlier"><summary>${earlier.length} earlier</summary><ul>${earlier.slice(0, 20).map((verdict, i) =>
      html`<li key=${i}>${entityOf(verdict)}: ${CAUSES[verdict.cause] ?? verdict.cause}, ${verdict.state === "unjudged"
        ? `from step ${verdict.since_step} until step ${verdict.until_step}, when its marks ended or were switched off` : `since step ${verdict.since_step}, cleared`}</li>`)}</ul></details>`}
  </section>`;
}

export function Switches({live}) {
  const {kinds, unanswered, unanswered_ranks, failed, failed_ranks, failure, revision} = live.switch;
  return html`<section id="switches"><h2>Marks</h2>
    <ul class="kinds">${Object.entries(kinds).map(([kind, state]) => html`<li key=${kind} class=${state}>
      <span>${KIND_NAMES[kind] ?? kind}</span> <b>${state}</b></li>`)}</ul>
    ${unanswered > 0 && html`<p class="note">${unanswered} of ${live.ranks.attached} ranks have not answered revision ${revision} yet: ${unanswered_ranks}</p>`}
    ${failed > 0 && html`<p class="note">${failed} ranks could not take it on: ${failed_ranks} (${failure})</p>`}
    ${unanswered + failed === 0 && live.ranks.attached > 0 && html`<p class="quiet">All ranks have it so.</p>`}
    <p class="quiet">Change it: <code>taskd switch communication=${kinds.communication === "on" ? "off" : "on"}</code></p></section>`;
}

export function Events({events}) {
  return html`<section><h2>Events</h2>
    <ol id="events">${[...events].reverse().map(event => html`<li key=${event.number}>
      <time dateTime=${event.time}>${timeOf(event.time)}</time> <b>${event.kind.replace("_", " ")}</b> <span>${event.text}</span></li>`)}
      ${events.length === 0 && html`<li class="quiet">Nothing has happened since the manager started.</li>`}</ol></section>`;
}

// Its kind stands before the sentence, where the launcher's log has it.
export const hangText = hang => hang.text.replace(/^hang: /, "");

// The first few by their paths; /api/v1/hang has all.
const SHOWN_SOURCES = 8;
function sourcesOf({sources, more_sources}) {
  const shown = sources.slice(0, SHOWN_SOURCES).map(({path, note}) => note ? `${path} (${note})` : path).join(", ");
  const more = sources.length - Math.min(sources.length, SHOWN_SOURCES) + more_sources;
  return more > 0 ? `${shown} and ${more} more` : shown;
}

export function Hang({hang}) {
  return html`<section id="hang"><h2>The job hangs</h2>
    <p>${hang.missing ? html`Behind, at step ${hang.lowest_step}: <b>${/[-,]/.test(hang.missing) ? "ranks" : "rank"} ${hang.missing}</b>. Others are at step ${hang.highest_step}.`
      : html`All ${hang.ranks} ranks stand at step ${hang.lowest_step}.`} Since ${timeOf(hang.since)}.</p>
    ${hang.sources.length > 0 && html`<p id="evidence">What their communication libraries left: ${sourcesOf(hang)}.</p>`}
    ${hang.evidence.map((text, i) => html`<p key=${i} class="note">${text}</p>`)}
    ${hang.stacks ? html`<h3>Stacks, equal ones together</h3><pre tabindex="0">${hang.stacks}</pre>`
      : html`<p class="quiet">No stacks have come. <code>taskd run</code> collects them; without it:
        ${" "}<code>py-spy dump --pid PID</code> on the node of a rank that is behind.</p>`}</section>`;
}

const cellOf = value => value === null ? "–" : value.toPrecision(3);

// As it was when it was asked for.
export function Rank({number, fetchJson, onClose}) {
  const [rank, setRank] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    let current = true;  // the answer for another rank may come late
    setError("");
    fetchJson(`/api/v1/rank/${number}`).then(answer => current && setRank(answer),
      () => current && setError(`Nothing is known of rank ${number}.`));
    return () => { current = false; };
  }, [number]);
  const close = html`<button class="close" onClick=${onClose}>Close</button>`;
  if (rank?.rank !== number) return html`<section id="rank"><h2>Rank ${number} ${close}</h2><p>${error || "Asking …"}</p></section>`;
  const marks = rank.marks && Object.entries(rank.marks).filter(([, count]) => count > 0).map(([kind, count]) => `${KIND_NAMES[kind] ?? kind} ${count}`);
  return html`<section id="rank"><h2>Rank ${number} ${close}</h2>
    ${rank.host !== undefined && html`<p>node ${rank.node} (${nameOf(rank)}), ${rank.device === null ? "" : `device ${rank.device}, `}process ${rank.pid}, ${rank.attached && rank.connected ? "recorded"
      : `not recorded: ${rank.reason || "its node is not connected"}`}</p>
      <p class="quiet">Marks written: ${marks.join(", ") || "none"}; lost: ${rank.lost}; ${rank.overhead_ns_per_mark.toFixed(0)} ns each.</p>`}
    ${rank.groups.length > 0 && html`<p>Groups: ${rank.groups.map((group, i) => html`<span key=${i}>${i > 0 ? "; " : ""}${group.label || group.name}${
      group.size > 0 ? ` (${group.size} ranks: ${group.ranks})` : ""}</span>`)}</p>`}
    ${rank.why && html`<p id="why" class="note">${rank.why.text}</p>`}
    ${rank.verdicts.map((verdict, i) => html`<p key=${i} class="note">${verdict.state}: ${verdict.text}</p>`)}
    ${rank.steps.length > 0 && html`<table><thead><tr><th>step</th><th>whole, ms</th><th>self time</th><th>data loader</th><th>compute</th><th>communication</th><th>checkpoint</th></tr></thead>
      <tbody>${[...rank.steps].reverse().map((step, i) => html`<tr key=${i}><td>${step.step}</td><td>${cellOf(step.period_ms)}</td>
        <td>${cellOf(step.own_ms)}</td><td>${cellOf(step.dataloader_ms)}</td><td>${cellOf(step.compute_ms)}</td><td>${cellOf(step.communication_ms)}</td>
        <td>${cellOf(step.checkpoint_ms)}</td></tr>`)}</tbody></table>`}</section>`;
}
