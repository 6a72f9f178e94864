// SPDX-License-Identifier: Apache-2.0

/* The nodes of a job: a block for each, a cell for each of its workers. Small jobs have names beside the blocks; in large ones the blocks
 * stand close, and the line below names the one under the pointer, or the focus, or else the worst. The places follow the node ranks and
 * never change by what happens, so that a person recognizes them. */

const NAMED = 48; /* nodes that have their names beside them */
const HEIGHT = 340; /* of the others' area, if the cells need not be smaller than the last size */
const SIZES = [
  { cell: 12, gap: 2, columns: 8, pad: 4 },
  { cell: 10, gap: 1, columns: 8, pad: 4 },
  { cell: 8, gap: 1, columns: 8, pad: 3 },
  { cell: 7, gap: 1, columns: 4, pad: 2 },
  { cell: 5, gap: 1, columns: 4, pad: 1 },
  { cell: 4, gap: 1, columns: 4, pad: 1 },
];
const WORKERS_DRAWN = 128; /* of a node; beyond, one cell stands for all */

function shapeOf(size, workers) {
  const n = workers > WORKERS_DRAWN ? 1 : workers;
  const columns = Math.min(n, size.columns);
  return { n, columns, rows: Math.ceil(n / columns), step: size.cell + size.gap };
}

function sizeFor(members, width) {
  if (members.length <= NAMED) return { name: 'named', cell: 14, gap: 2, columns: 16 };
  const workers = Math.max(...members.map((m) => m.workers));
  const fits = (size) => {
    const { columns, rows, step } = shapeOf(size, workers);
    const across = Math.max(1, Math.floor(width / (columns * step + 2 * size.pad)));
    return Math.ceil(members.length / across) * (rows * step + 2 * size.pad) <= HEIGHT;
  };
  const size = SIZES.find(fits) || SIZES[SIZES.length - 1];
  return { name: size.cell < 8 ? 'close' : 'dense', ...size };
}

function nodeName(m) {
  const place = m.node_rank >= 0 ? `node ${m.node_rank}, ` : '';
  return `${printable(m.host)}, ${place}${ranks(m)}`;
}

function makeNode(entry) {
  const cells = el('span', { class: 'cells' });
  const node = el('button', { class: 'node', type: 'button', tabindex: '-1' }, el('span', { class: 'host' }), cells, el('span', { class: 'age' }));
  node.cells = cells;
  node.entry = entry;
  return node;
}

function drawCells(node, size, entry) {
  const { m, view, laggards } = entry;
  const shape = shapeOf(size, m.workers);
  const seal = `${size.cell} ${m.workers} ${laggards.map((l) => `${l.local_rank}:${l.level}`)}`;
  if (node.seal === seal) return;
  node.seal = seal;
  style(node.cells, '--step', `${shape.step}px`);
  style(node.cells, '--cell', `${size.cell}px`);
  style(node.cells, 'width', `${shape.columns * shape.step - size.gap}px`);
  style(node.cells, 'height', `${shape.rows * shape.step - size.gap}px`);
  const marks = [];
  if (shape.n === m.workers)
    for (const l of laggards) {
      const mark = el('i', { class: `behind level${l.level}` });
      style(mark, 'left', `${(l.local_rank % shape.columns) * shape.step}px`);
      style(mark, 'top', `${Math.floor(l.local_rank / shape.columns) * shape.step}px`);
      marks.push(mark);
    }
  const rest = shape.rows * shape.columns - shape.n;
  if (rest) {
    const mark = el('i', { class: 'none' });
    style(mark, 'width', `${rest * shape.step}px`);
    marks.push(mark);
  }
  node.cells.replaceChildren(...marks);
}

function updateNode(node, entry, size) {
  const { m, view, laggards } = entry;
  node.entry = entry;
  const behind = laggards.length ? `, ${count(laggards.length, 'worker')} behind` : '';
  const kind = laggards.length && size.name !== 'close' ? `level${entry.othersLevel}` : view.kind;
  attribute(node, 'class', laggards.length ? `node ${kind} lags` : `node ${kind}`);
  attribute(node, 'aria-label', `${nodeName(m)}, ${view.word}${behind}`);
  if (size.name === 'named') {
    say(node.firstChild, entry.name);
    say(node.lastChild, view.level >= 0 ? duration(view.age) : view.word);
  }
  drawCells(node, size, entry);
}

function inspect(line, entry, job) {
  if (!entry) return;
  const { m, view, laggards, later } = entry;
  const facts = [ranks(m)];
  if (m.node_rank >= 0) facts.unshift(`node ${m.node_rank}`);
  facts.push(view.level >= 0 ? `${m.state}, ${view.word}` : view.word);
  if (m.step >= 0) facts.push(m.of > 0 ? `step ${whole.format(m.step)} of ${whole.format(m.of)}` : `step ${whole.format(m.step)}`);
  if (view.age !== undefined) facts.push(`progress ${duration(view.age)} ago`);
  if (m.state !== 'away' && !isOver(job)) facts.push(`heard ${duration(m.heard_ms_ago + later)} ago`);
  if (m.addr) facts.push(m.addr);
  for (const l of laggards.slice(0, 4)) facts.push(`local rank ${l.local_rank} behind at step ${whole.format(l.step)}`);
  if (laggards.length > 4) facts.push(`${laggards.length - 4} more behind`);
  say(line.firstChild, m.host);
  say(line.lastChild, facts.join(' · '));
}

const LEGEND = [
  ['level0', (p) => `up to date, under ${roughly(p.slowing_ms)}`],
  ['level1', (p) => `slowing, under ${roughly(p.late_ms)}`],
  ['level2', (p) => `late, under ${roughly(p.stuck_ms)}`],
  ['level3', (p) => `stuck, over ${roughly(p.stuck_ms)}`],
];
const KINDS = { runs: 'running, reports no steps', starts: 'starting', stops: 'stopping or stopped', done: 'finished or ended', waits: 'waiting', spare: 'spare', away: 'away', out: 'drained or kept waiting' };

function legend(node, entries, progress) {
  const kinds = new Set(entries.map((e) => e.view.kind));
  const levels = [...kinds].some((k) => k.startsWith('level'));
  const items = levels ? LEGEND.map(([kind, text]) => ({ kind, text: text(progress) })) : [];
  for (const [kind, text] of Object.entries(KINDS)) if (kinds.has(kind)) items.push({ kind, text });
  if (entries.some((e) => e.laggards.length)) items.push({ kind: 'behind', text: 'behind the others of its node' });
  show(node.firstChild, levels);
  sync(node.lastChild, items, (i) => i.kind, (i) => el('li', {}, el('i', { class: `swatch ${i.kind}` }), el('span')), (li, i) => say(li.lastChild, i.text));
}

/* "61 up to date · 2 late: gpu17, gpu18". Of two groups of one size, the worse one is named. */
function summary(job, entries) {
  const groups = new Map();
  for (const e of entries) {
    const word = e.view.level === 0 && e.laggards.length ? 'with workers behind' : e.view.word;
    if (!groups.has(word)) groups.set(word, []);
    groups.get(word).push(e);
  }
  const order = [...groups].sort((a, b) => b[1].length - a[1].length || a[1][0].rank - b[1][0].rank);
  const names = (of) => of.map((e) => printable(e.name)).join(', ');
  return order.map(([word, of], i) => (i === 0 || of.length > 3 ? `${whole.format(of.length)} ${word}` : `${of.length} ${word}: ${names(of)}`)).join(' · ');
}

function nodesCard() {
  const line = el('p', { class: 'inspector' }, el('strong'), el('span'));
  const box = el('div', { class: 'nodes', role: 'group', 'aria-label': 'Nodes. Arrow keys move between them.' });
  const sum = el('p', { class: 'sum' });
  const key = el('div', { class: 'key' }, el('span', { text: 'Time since the last step' }), el('ul'));
  const node = el('section', { class: 'card', 'aria-labelledby': 'h-nodes' }, el('div', { class: 'head' }, el('h2', { id: 'h-nodes', text: 'Nodes' }), sum), box, line, key);
  const state = { hover: null, entries: [], job: null };

  function focusable() {
    const now = box.contains(document.activeElement) ? document.activeElement : [...box.children].find((b) => b.tabIndex === 0);
    for (const b of box.children) attribute(b, 'tabindex', b === (now || box.firstChild) ? '0' : '-1');
  }

  function look() {
    const focused = box.contains(document.activeElement) ? document.activeElement.entry : null;
    const worst = state.entries.reduce((a, b) => (b.rank > a.rank ? b : a), state.entries[0]);
    inspect(line, (state.hover && state.hover.isConnected && state.hover.entry) || focused || worst, state.job);
  }

  box.addEventListener('pointerover', (e) => {
    state.hover = e.target.closest('.node');
    look();
  });
  box.addEventListener('pointerleave', () => {
    state.hover = null;
    look();
  });
  box.addEventListener('focusin', () => {
    focusable();
    look();
  });
  box.addEventListener('keydown', (e) => {
    const list = [...box.children];
    const at = list.indexOf(document.activeElement);
    const columns = Math.max(1, list.findIndex((b) => b.offsetTop > list[0].offsetTop));
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + columns, ArrowUp: at - columns, Home: 0, End: list.length - 1 }[e.key];
    if (at < 0 || to === undefined) return;
    e.preventDefault();
    if (list[to]) list[to].focus();
  });

  return {
    node,
    update(job, later) {
      const size = sizeFor(job.members, box.clientWidth || 1000);
      const name = namesOf(job.members);
      const entries = job.members.map((m) => {
        const view = nodeView(m, later);
        const laggards = view.level >= 0 ? laggardsOf(m, later) : [];
        const troubled = { away: 9, out: 2, stops: 1 }[view.kind] || 0;
        return { m, name: name(m), view, laggards, later, othersLevel: Math.max(0, levelOf(m.others_judgement)), rank: view.level + troubled + (laggards.length ? 0.5 : 0) };
      });
      entries.sort((a, b) => (a.m.node_rank < 0) - (b.m.node_rank < 0) || a.m.node_rank - b.m.node_rank);
      Object.assign(state, { entries, job });
      attribute(box, 'class', `nodes ${size.name}`);
      style(box, '--pad', `${size.pad || 4}px`);
      sync(box, entries, (e) => e.m.agent, makeNode, (n, e) => updateNode(n, e, size));
      focusable();
      say(sum, summary(job, entries));
      look();
      legend(key, entries, job.progress);
      show(node, entries.length > 0);
    },
  };
}
