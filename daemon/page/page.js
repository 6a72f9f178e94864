// SPDX-License-Identifier: Apache-2.0

/* Looks at the jobs again and again, and chooses what is shown.
 *
 * A look is a request for /status. The next one follows half a second later, or later if the answer is large, or if nobody sees the page.
 * 304 means that nothing has happened: ages go on, and nothing else is drawn. */

const STATUS = new URL('status', location.origin + location.pathname); /* the address may have a password in it */
const EVERY_MS = 500;
const HIDDEN_MS = 5000;
const BYTES_PER_MS = 512; /* of the answer, while the page waits for the next one */
const PATIENCE_MS = 15000;
const LOST_AFTER_MS = 3000;

const main = document.getElementById('main');
const beat = document.getElementById('beat');
const trouble = document.getElementById('trouble');
const news = document.getElementById('news');
const views = { list: listView(), job: jobView() };

let data = null; /* of the last answer */
let tag = '';
let came = 0; /* performance.now() of it */
let heard = 0; /* of the last answer of any kind */
let wait = EVERY_MS;
let timer = 0;
let asking = false;
let asked = ''; /* the job that the last answer is about; '': all */
let shown = null; /* the view */
let shownKey = null;
const told = new Map(); /* job -> what was read out last */

function wanted() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return '';
  }
}

/* Of one job alone the daemon says more: its curves are there however many jobs there are. */
function question() {
  const [, uid, job] = wanted().match(/^(-?\d+)\/(.*)$/s) || [];
  const url = new URL(STATUS);
  if (job) url.searchParams.set('job', job);
  if (job && uid >= 0) url.searchParams.set('uid', uid);
  url.search = url.search.replaceAll('+', '%20');
  return url;
}

/* The job that the address names, or the only one. NULL: the list. */
function chosen() {
  const key = wanted();
  const found = data.jobs.find((j) => keyOf(j) === key || j.job === key);
  return found || (data.jobs.length === 1 && !key && !asked ? data.jobs[0] : null);
}

function setShown(view, key) {
  if (shown === view && shownKey === key) return;
  const moved = shown !== null;
  main.replaceChildren(view.node);
  shown = view;
  shownKey = key;
  if (!moved) return;
  scrollTo(0, 0);
  view.title.focus({ preventScroll: true });
}

/* What is worth reading out: how the job is, and how its last round ended. A round may end and the next one begin between two looks. */
function newsOf(job) {
  const last = job.ending || (job.verdicts && job.verdicts[0] && job.verdicts[0].verdict);
  const how = last ? `. Round ${last.round}: ${printable(last.sentence)}` : '';
  return `Job ${printable(job.job)}: ${stateOf(job).word}${how}`;
}

function announce() {
  const lines = [];
  for (const job of data.jobs) {
    const key = keyOf(job);
    const line = newsOf(job);
    if (told.has(key) && told.get(key) !== line && (!shownKey || shownKey === key)) lines.push(line);
    told.set(key, line);
  }
  if (lines.length) say(news, lines.slice(0, 3).join('. '));
}

const COLOURS = { ok: '#2f9e6b', wait: '#c98a1b', bad: '#d5452f', info: '#3f7fce', idle: '#8a94a3' };

function setTitle(job) {
  const jobs = job ? [job] : data.jobs;
  const state = jobs.length ? jobs.map(stateOf).sort((a, b) => 'idle info ok wait bad'.indexOf(b.tone) - 'idle info ok wait bad'.indexOf(a.tone))[0] : STATES.moved;
  const title = job ? `${printable(job.job)}: ${stateOf(job).word.toLowerCase()} – rdzv` : `${count(jobs.length, 'job')} – rdzv`;
  if (document.title !== title) document.title = title;
  const { s, f } = ICONS[state.sign];
  const drawn = s ? `<path d="${s}" fill="none" stroke="white" stroke-width="2" stroke-linecap="round"/>` : `<path d="${f}" fill="white"/>`;
  const image = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 20 20"><circle cx="8" cy="8" r="9" fill="${COLOURS[state.tone]}"/>${drawn}</svg>`;
  attribute(document.getElementById('icon'), 'href', `data:image/svg+xml,${encodeURIComponent(image)}`);
}

function setBeat() {
  const silent = performance.now() - heard;
  const lost = silent > Math.max(LOST_AFTER_MS, 2 * wait);
  attribute(beat, 'class', lost ? 'beat lost' : 'beat');
  say(beat.lastChild, lost ? 'Not answering' : 'Live');
  document.body.classList.toggle('old', lost && data !== null);
  if (!lost) return;
  const others = [...new Set((data ? data.jobs : []).flatMap((j) => (j.daemon && !isOver(j) ? j.daemon.successors : [])))].map(printable);
  const hint = others.length ? ` If its machine is lost, the daemon goes on at one of: ${others.join(', ')}.` : '';
  problem(`The daemon has not answered for ${roughly(silent)}.${data ? ' What is below is what it said last.' : ''}${hint}`);
}

function problem(text) {
  say(trouble, text);
  show(trouble, text !== '');
}

function draw() {
  if (!data) return;
  const later = performance.now() - came;
  const look = { later, now: data.wall_ms + later, drained: data.drained || [], about: asked };
  const job = chosen();
  if (!job && asked !== wanted()) return; /* the answer is on its way */
  const crumb = document.getElementById('crumb');
  show(crumb, wanted() !== '');
  if (job) {
    setShown(views.job, keyOf(job));
    views.job.update(job, look);
  } else {
    setShown(views.list, '');
    views.list.update(data.jobs, look);
  }
  setTitle(job);
}

async function take(answer, about) {
  if (answer.status === 304) return;
  const text = await answer.text();
  if (answer.status === 401) throw new Error('The daemon wants a token again: load this page anew.');
  if (answer.status !== 200) throw new Error(`The daemon answers: ${explained(text)}`);
  if (about !== wanted()) return;
  data = JSON.parse(text);
  asked = about;
  tag = answer.headers.get('ETag') || '';
  came = performance.now();
  wait = Math.max(EVERY_MS, text.length / BYTES_PER_MS);
  announce();
}

/* A refusal is a line, or an object with one. */
function explained(text) {
  try {
    return JSON.parse(text).text || text;
  } catch {
    return text;
  }
}

async function look() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  const began = performance.now();
  const about = wanted();
  if (about !== asked) tag = '';
  try {
    const answer = await fetch(question(), { cache: 'no-store', headers: tag ? { 'If-None-Match': tag } : {}, signal: AbortSignal.timeout(PATIENCE_MS) });
    heard = performance.now();
    await take(answer, about);
    heard = performance.now();
    problem('');
  } catch (e) {
    if (heard > began) problem(e.message);
    wait = Math.max(wait, 1000);
  }
  asking = false;
  if (about !== wanted()) {
    look();
    return;
  }
  draw();
  setBeat();
  const took = performance.now() - began;
  timer = setTimeout(look, Math.max(document.hidden ? HIDDEN_MS : wait, 3 * took) - Math.min(took, wait / 2));
}

setInterval(() => {
  if (document.hidden) return;
  setBeat();
  if (performance.now() - heard > 1000) draw();
}, 500);
document.addEventListener('visibilitychange', () => document.hidden || look());
addEventListener('hashchange', () => {
  draw();
  look();
});
look();
