// What the page knows of the job: the newest answer of /api/v1/live, and the columns of the heat map.

export const NO_DATA = 255;
const MAX_COLUMNS = 2048;

// What people call a node: as the scheduler does; its host name too where that is another one.
export const nameOf = ({host, node_name}) => node_name && node_name !== host ? `${node_name}, ${host}` : host;

const bytesOf = text => Uint8Array.from(atob(text), character => character.charCodeAt(0));

// One column a step: {key, step, run, reported, median, phases, cells}.
function columnsOf(map) {
  const width = map.steps.length;
  const cells = bytesOf(map.cells);
  const rows = width ? cells.length / width : 0;
  return map.steps.map((step, x) => {
    const column = new Uint8Array(rows);
    for (let y = 0; y < rows; y++) column[y] = cells[y * width + x];
    return {
      key: `${map.runs[x]}:${step}`, step, run: map.runs[x], reported: map.reported[x], median: map.median_ms[x],
      phases: [map.dataloader_ms[x], map.compute_ms[x], map.communication_ms[x], map.checkpoint_ms[x]], cells: column,
    };
  });
}

export class Store {
  live = null;       // newest answer
  value = "own_time";
  columns = [];
  ranks = 0;
  perRow = 1;
  scale = 3;
  nodes = [];        // {node, host, ranks: "0-7, 9"} with the ranks as ranges
  lostSince = null;  // Date since when the manager does not answer
  refused = false;   // it answers, but not to us
  whole = false;     // the columns are all that the manager has
  since = null;      // of the manager's life
  goodput = null;    // newest answer of /api/v1/goodput
  actions = null;    // newest answer of /api/v1/actions
  actionsAt = -Infinity;
  goodputAt = -Infinity;  // performance.now() when it was asked for

  takeWhole(map) {
    if (map.value !== this.value) return;
    this.columns = columnsOf(map);
    this.ranks = map.ranks;
    this.perRow = map.ranks_per_row;
    this.scale = map.scale.max;
    this.nodes = map.nodes.map(node => ({...node, runs: node.ranks.split(", ").map(run => run.split("-").map(Number))}));
    this.whole = true;
  }

  takeLive(live) {
    if (this.since !== null && Math.abs(Date.parse(live.since) - Date.parse(this.since)) > 2000) {
      this.columns = [];  // another life of the manager
      this.whole = false;
      this.goodputAt = -Infinity;
      this.actionsAt = -Infinity;
    }
    this.since = live.since;
    this.live = live;
    this.lostSince = null;
    this.refused = false;
    const map = live.heatmap;
    if (map.value !== this.value || !this.whole) return;
    const tail = columnsOf(map);
    const places = new Map(this.columns.map((column, x) => [column.key, x]));
    const joined = tail.length === 0 || this.columns.length === 0 ? this.columns.length === 0 && tail.length < 16 : places.has(tail[0].key);
    if (!joined || map.ranks !== this.ranks || map.ranks_per_row !== this.perRow) {
      this.whole = tail.length === 0 && this.columns.length === 0;
      if (!this.whole) return;
    }
    for (const column of tail) {
      if (places.has(column.key)) this.columns[places.get(column.key)] = column;
      else this.columns.push(column);
    }
    if (this.columns.length > MAX_COLUMNS) this.columns.splice(0, this.columns.length - MAX_COLUMNS);
  }

  get rows() { return Math.ceil(this.ranks / this.perRow); }

  ranksOfRow(row) {
    const first = row * this.perRow;
    const last = Math.min(first + this.perRow, this.ranks) - 1;
    return [first, last];
  }

  // "node 3 (host)", or "nodes 3-6"
  nodeOf(first, last) {
    const found = this.nodes.filter(node => node.runs.some(([from, to = from]) => from <= last && to >= first));
    if (found.length === 0) return "";
    if (found.length === 1) return `node ${found[0].node} (${nameOf(found[0])})`;
    return `nodes ${found[0].node}–${found[found.length - 1].node}`;
  }
}
