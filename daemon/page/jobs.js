// SPDX-License-Identifier: Apache-2.0

/* The list of all jobs. Those that need a look come first. */

const FILTER_FROM = 9; /* jobs */

function jobRow() {
  const link = el('a');
  const cell = (name, label, ...children) => el('td', { class: name, 'data-label': label }, ...children);
  const row = el(
    'tr',
    {},
    el('th', { scope: 'row' }, link, el('span', { class: 'detail' })),
    cell('state', 'state', badge(), el('span', { class: 'detail' })),
    cell('num', 'round', el('span')),
    cell('num', 'nodes', el('span')),
    cell('progress', 'step', el('span'), el('span', { class: 'track' }, el('i'))),
    cell('num speed', 'samples/s', el('span')),
    cell('good', 'goodput', el('span'), el('span', { class: 'bar' })),
    cell('last', 'what happened', el('span')),
  );
  return row;
}

function updateSpeed(cell, job) {
  const now = (job.progress && job.progress.samples_per_second) ?? NaN;
  say(cell.firstChild, Number.isFinite(now) ? decimals(now, 4) : '–');
  const points = (job.history || []).slice(-60).map(([at, , , v]) => ({ at, value: v ?? NaN }));
  const seal = points.length ? `${points.length} ${points[points.length - 1].at} ${points[points.length - 1].value}` : '';
  if (cell.seal === seal) return;
  cell.seal = seal;
  const curve = spark(points, 72, 18);
  cell.replaceChildren(cell.firstChild, ...(curve ? [curve] : []));
}

function updateRow(row, entry) {
  const { job, look, twin } = entry;
  const [name, state, round, nodes, progress, speed, good, last] = row.children;
  const { now, later } = look;
  attribute(name.firstChild, 'href', `#${encodeURIComponent(keyOf(job))}`);
  say(name.firstChild, job.job);
  say(name.lastChild, twin ? `uid ${job.uid}` : '');
  const shown = stateOf(job);
  const note = job.moved_to === undefined ? noteOf(job) : '';
  setBadge(state.firstChild, note ? { ...shown, tone: 'wait', sign: 'alert' } : shown);
  if (job.moved_to !== undefined) {
    say(last.firstChild, `to the daemon on ${job.moved_to}`);
    for (const cell of [round, nodes, progress, speed, good]) say(cell.firstChild, '');
    return;
  }
  say(state.lastChild, `${isOver(job) ? `${duration(job.state_for_ms + later)} ago` : duration(job.state_for_ms + later)}${note && `, ${note}`}`);
  say(round.firstChild, job.round || '–');
  say(nodes.firstChild, job.state === 'forming' ? `${nodesHere(job)} of ${job.min_nodes}` : job.nodes || '–');
  const { step = -1, of = 0 } = job.progress || {};
  say(progress.firstChild, step < 0 ? '–' : of ? `${whole.format(step)} of ${whole.format(of)}` : whole.format(step));
  show(progress.lastChild, step >= 0 && of > 0);
  style(progress.lastChild.firstChild, 'width', `${of ? (100 * step) / of : 0}%`);
  updateSpeed(speed, job);
  const useful = usefulOf(job);
  say(good.firstChild, Number.isFinite(useful) ? percent(useful) : '–');
  show(good.lastChild, Number.isFinite(useful));
  if (Number.isFinite(useful)) setBar(good.lastChild, goodputParts(job.goodput), job.goodput.total);
  const v = job.ending || job.last_verdict;
  const what = job.waiting ? `Waiting: ${job.waiting.sentence}` : v ? v.sentence : '';
  say(last.firstChild, what);
  attribute(last.firstChild, 'title', what ? printable(what) : null);
}

function tally(jobs, drained) {
  const words = new Map();
  for (const j of jobs) {
    const word = stateOf(j).word.toLowerCase();
    words.set(word, (words.get(word) || 0) + 1);
  }
  const nodes = jobs.filter((j) => j.members && !isOver(j)).reduce((n, j) => n + nodesHere(j), 0);
  const parts = [...words].map(([word, n]) => `${n} ${word}`);
  parts.push(count(nodes, 'node'));
  if (drained.length) parts.push(`${count(drained.length, 'host')} drained`);
  return parts.join(' · ');
}

function listView() {
  const title = el('h1', { text: 'Jobs', tabindex: '-1' });
  const sum = el('p', { class: 'facts-line' });
  const filter = el('input', { type: 'search', placeholder: 'Filter by name, state or host', 'aria-label': 'Filter the jobs by name, state or host', autocomplete: 'off', spellcheck: 'false' });
  const heads = ['Job', 'State', 'Round', 'Nodes', 'Step', 'Samples/s', 'Goodput', 'What happened'];
  const body = el('tbody');
  const table = el('table', { class: 'jobs' }, el('thead', {}, el('tr', {}, ...heads.map((h) => el('th', { scope: 'col', text: h, class: ['Round', 'Nodes', 'Samples/s'].includes(h) ? 'num' : '' })))), body);
  const empty = el('p', { class: 'empty' });
  const drained = drainedCard();
  const card = el('div', { class: 'card flush' }, table);
  const node = el('div', { class: 'list' }, el('div', { class: 'list-head' }, el('div', {}, title, sum), filter), empty, card, drained.node);
  let last = null;

  function fits(job) {
    const wanted = filter.value.trim().toLowerCase();
    if (!wanted) return true;
    return [job.job, stateOf(job).word, ...(job.members || []).map((m) => m.host)].some((text) => text.toLowerCase().includes(wanted));
  }

  function update(jobs, look) {
    last = [jobs, look];
    const names = new Map();
    for (const j of jobs) names.set(j.job, (names.get(j.job) || 0) + 1);
    const shown = jobs.filter(fits).map((job) => ({ job, look, twin: names.get(job.job) > 1, urgency: urgency(job) }));
    shown.sort((a, b) => b.urgency - a.urgency || (a.job.job < b.job.job ? -1 : a.job.job > b.job.job ? 1 : a.job.uid - b.job.uid));
    sync(body, shown, (e) => keyOf(e.job), jobRow, updateRow);
    say(sum, tally(jobs, look.drained));
    show(sum, jobs.length > 0);
    show(card, shown.length > 0);
    show(filter, jobs.length >= FILTER_FROM || filter.value !== '');
    show(empty, shown.length === 0);
    say(empty, jobs.length ? 'No job fits this filter.' : look.about ? 'This job is not here, or not yours.' : 'No job here yet. A job appears as soon as its first agent has joined.');
    drained.update(look.drained, look.now);
  }
  filter.addEventListener('input', () => last && update(...last));
  return { node, title, update };
}
