// The page: asks the manager once a second, and shows what it knows.
import {html, render, useEffect, useState} from "/vendor/htm-preact.js";
import {Actions} from "/actions.js";
import {Goodput} from "/goodput.js";
import {Heatmap, Legend} from "/heatmap.js";
import {Events, Hang, hangText, Rank, Suspects, Switches} from "/panels.js";
import {Phases} from "/phases.js";
import {Store} from "/store.js";

const INTERVAL_MS = 1000, PATIENCE_MS = 5000, QUIET_S = 10;
const LEDGER_MS = 10000;  // it says little that is new in a second, and of many incidents is long
const VALUES = {own_time: "self time", period: "whole step", dataloader: "data loader", communication: "communication"};
const EXPLAINED = {
  own_time: "what a rank does by itself, without waiting for others: a slow rank is orange",
  period: "from the end of one step to the end of the next: ranks that wait for each other have the same",
  dataloader: "time within the data loader",
  communication: "time covered by communication: a rank that others wait for has less of it, and is blue",
};
const STATES = {unknown: "no job yet", starting: "starting", running: "running", slow: "slow", hung: "hung", restarting: "restarting", ended: "ended"};

class Refused extends Error {}

async function fetchJson(path) {
  const response = await fetch(path, {signal: AbortSignal.timeout(PATIENCE_MS)});
  if (response.status === 401) throw new Refused();
  if (!response.ok) throw new Error(`${response.status}`);
  return response.json();
}

const store = new Store();

async function update() {
  try {
    // One of them, so that there is one request a second.
    if (!store.whole && store.live) store.takeWhole(await fetchJson(`/api/v1/heatmap?value=${store.value}`));
    else if (store.live && performance.now() - store.goodputAt > LEDGER_MS) {
      store.goodputAt = performance.now();
      store.goodput = await fetchJson("/api/v1/goodput");
    } else if (store.live?.decides && performance.now() - store.actionsAt > LEDGER_MS) {
      store.actionsAt = performance.now();
      store.actions = await fetchJson("/api/v1/actions");
    } else store.takeLive(await fetchJson(`/api/v1/live?value=${store.value}`));
  } catch (error) {
    store.refused = error instanceof Refused;
    store.lostSince ??= new Date();
  }
}

// What a person can do next, where the picture alone does not say it.
function Hint({live}) {
  const {ranks, nodes, state, step} = live;
  const kinds = live.switch.kinds;
  let hint = null;
  if (state === "hung") hint = html`No rank gets on. Below: who is behind, and where each stands.`;
  else if (state === "ended") hint = html`The job has ended; this is how it was. Look at its files at any time: <code>taskd diagnose --from DIR</code>`;
  else if (live.waits_for) hint = html`No rank is started yet: the nodes that are here wait for ${live.waits_for}.`;
  else if (nodes.known === 0) hint = html`No node has connected yet. Start the ranks with <code>taskd run</code> in torchrun's place, or
    ${" "}<code>taskd proxy</code> on each node with the manager's address.`;
  else if (ranks.attached === 0) hint = html`${nodes.connected} of ${nodes.known} nodes are connected, but no rank is recorded yet. A rank appears with its
    first mark; <code>taskd status</code> says what each node sees.`;
  else if (kinds.step === "off" && (step === null || live.step_age_s > QUIET_S)) hint = html`Steps are not marked, so there is nothing new to draw. Switch them
    on, while the job runs:${" "}<code>taskd switch step=on communication=on</code>`;
  else if (step === null) hint = html`${ranks.attached === 1 ? "One rank is" : `${ranks.attached} ranks are`} there. Waiting for the first step to end; with compilation that can take minutes.`;
  else if (ranks.attached === 1) hint = html`One rank has no peers to be compared with: the colors show nothing, its numbers do.`;
  else if (kinds.communication === "off" && !store.columns.at(-1)?.phases[2]) hint = html`Communication is not marked: who waits looks the same
    as who computes. Tell them apart with${" "}<code>taskd switch communication=on</code>`;
  else if (nodes.connected < nodes.known) hint = html`Nodes ${nodes.lost} are not connected: what their ranks do now is not seen.`;
  return hint && html`<p id="hint">${hint}</p>`;
}

function Lost() {
  const since = store.lostSince.toLocaleTimeString([], {hour12: false});
  if (store.refused) {
    return html`<p id="lost" role="alert">The manager does not let this browser look any more (since ${since}): it was restarted.
      ${" "}<code>taskd ui</code> prints the address anew.</p>`;
  }
  return html`<p id="lost" role="alert">The manager has not answered since ${since}. What you see is how it was then; this page goes on by itself when the
    manager is back. If the job has ended that is as it should be; else look at the manager's log on node 0.</p>`;
}

function Numbers({live}) {
  const {ranks} = live;
  const known = Math.max(ranks.expected, ranks.known);
  const age = live.step_age_s;
  const stale = age !== null && age > 5 && age * 1000 > 3 * live.step_ms && live.state !== "ended";
  return html`<dl class="numbers">
    <div><dt>state</dt><dd id="state">${STATES[live.state] ?? live.state}</dd></div>
    <div><dt>step</dt><dd id="step">${live.step ?? "–"}</dd>${stale && html`<small>${Math.round(age)} s ago</small>`}</div>
    <div><dt>a step takes</dt><dd id="steptime">${live.step_ms > 0 ? live.step_ms >= 1000 ? `${(live.step_ms / 1000).toPrecision(3)} s`
      : `${live.step_ms.toPrecision(3)} ms` : "–"}</dd></div>
    <div><dt>ranks</dt><dd id="ranks">${ranks.attached}${known > ranks.attached ? ` of ${known}` : ""}</dd></div>
    <div><dt>restarts</dt><dd>${live.restarts}</dd></div></dl>
    ${live.mark_files && html`<p id="files">mark files: ${live.mark_files}</p>`}`;
}

function Page() {
  const [tick, setTick] = useState(0);
  const [rank, setRank] = useState(null);
  useEffect(() => {
    let timer = null, busy = false;
    const round = async () => {
      if (busy) return;
      busy = true;
      clearTimeout(timer);
      const first = store.live === null;
      await update();
      busy = false;
      setTick(tick => tick + 1);
      if (document.hidden) return;  // nobody looks
      timer = setTimeout(round, first ? 0 : INTERVAL_MS);
    };
    document.addEventListener("visibilitychange", () => { if (!document.hidden) round(); });
    round();
  }, []);
  const choose = value => { store.value = value; store.whole = false; setTick(tick => tick + 1); };

  const {live} = store;
  if (live === null) {
    return html`<main>${store.lostSince ? html`<${Lost} />` : html`<p class="loading" id="verdict">Asking the manager …</p>`}</main>`;
  }
  const drawn = store.columns.length > 0;
  const notes = live.diagnosis.notes.filter(note => !live.verdict.includes(note.text));
  const accused = live.diagnosis.verdicts.filter(verdict => verdict.state === "open" && verdict.scope === "rank")
    .flatMap(verdict => verdict.ids);
  document.title = `${live.state === "slow" || live.state === "hung" ? "▲ " : ""}${STATES[live.state]} · ${live.job || "TaskD"}`;
  return html`<main>
    ${store.lostSince && html`<${Lost} />`}
    <header class=${`state-${live.state}`}>
      <p class="job">${live.job || "a job without a name"}${live.task_id && html` <span class="quiet">${live.task_id}</span>`}</p>
      <h1 id="verdict">${live.hang ? `hung: ${hangText(live.hang)}` : live.verdict}</h1>
      <${Numbers} live=${live} />
      <${Hint} live=${live} />
    </header>
    ${live.hang && html`<${Hang} hang=${live.hang} />`}
    <section class="map" hidden=${!drawn}>
      <h2>Ranks × steps</h2>
      <div class="bar"><fieldset><legend>Drawn value</legend>${Object.entries(VALUES).map(([value, name]) => html`<label key=${value}>
        <input type="radio" name="value" checked=${store.value === value} onChange=${() => choose(value)} />${name}</label>`)}</fieldset>
        <${Legend} scale=${store.scale} /></div>
      <p class="quiet">${VALUES[store.value]}: ${EXPLAINED[store.value]}.</p>
      <${Heatmap} store=${store} tick=${tick} accused=${accused} onRank=${setRank} />
    </section>
    ${rank !== null && html`<${Rank} number=${rank} fetchJson=${fetchJson} onClose=${() => setRank(null)} />`}
    <${Suspects} verdicts=${live.diagnosis.verdicts} onRank=${setRank} />
    <div class="columns">
      <section id="phases" hidden=${!drawn}><h2>Where a step's time goes</h2><${Phases} store=${store} tick=${tick} /></section>
      <${Switches} live=${live} />
    </div>
    ${live.decides && store.actions && html`<${Actions} answer=${store.actions} />`}
    ${store.goodput && html`<${Goodput} goodput=${store.goodput} />`}
    <${Events} events=${live.events} />
    ${notes.length > 0 && html`<section><h2>Notes of the diagnosis</h2><ul>${notes.map((note, i) =>
      html`<li key=${i}>${note.text}</li>`)}</ul></section>`}
    <footer>TaskD ${live.version} · history since ${new Date(live.since).toLocaleString([], {hour12: false})}, when the manager started · <a href="/report.html" download="taskd-report.html">report for a ticket</a> ·
      ${" "}<a href="/api/v1/diagnosis">diagnosis</a> and <a href="/api/v1/goodput">goodput</a> as JSON ·${" "}
      <a href="/licenses.txt">licenses</a></footer>
  </main>`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${Page} />`, root);
