// The decisions on slow nodes: the answer of /api/v1/actions, docs/acting.md.
import {html} from "/vendor/htm-preact.js";

const MOST = 20;  // decisions that are shown

const nodeOf = ({node, node_name: name, host}) => node === null ? "" : name || host ? `${node} (${name || host})` : `${node}`;

export function Actions({answer}) {
  const {actions, summary, paused, no_node_name: nameless} = answer;
  return html`<section id="actions"><h2>What was decided about slow nodes</h2>
    <p class="sentence">${summary}${paused && html`. Decisions are paused: <code>taskd act allow</code>`}</p>
    ${nameless && html`<p class="quiet">No node name: ${nameless}</p>`}
    ${actions.length > 0 && html`<table><thead><tr><th>time</th><th>node</th><th>decision</th><th>reason</th></tr></thead>
      <tbody>${actions.slice(0, MOST).map(action => html`<tr key=${action.id}>
        <td data-head="time"><time dateTime=${action.time}>${new Date(action.time).toLocaleString([], {hour12: false, dateStyle: "short", timeStyle: "medium"})}</time></td>
        <td data-head="node">${nodeOf(action)}</td>
        <td data-head="decision">${action.refused_by ? `refused: ${action.refused_by}` : `${action.decision}, ${action.state}`}</td>
        <td>${action.reason}${action.orders.map(({to, outcome, text}) => html`<br />${to}: ${outcome}, ${text}`)}</td></tr>`)}</tbody></table>`}
    ${actions.length > MOST && html`<p class="quiet">and ${actions.length - MOST} before them: <code>taskd act list</code></p>`}</section>`;
}
