// SPDX-License-Identifier: Apache-2.0

/* What the fields of the daemon's answer look like: which job needs a look, the colour of a state, what the time went to. */

/* tone: a colour of page.css; sign: of dom.js. */
const STATES = {
  forming: { word: 'Forming', tone: 'wait', sign: 'dots' },
  starting: { word: 'Starting', tone: 'info', sign: 'play' },
  running: { word: 'Running', tone: 'ok', sign: 'dot' },
  checkpointing: { word: 'Checkpointing', tone: 'info', sign: 'save' },
  stopping: { word: 'Stopping', tone: 'wait', sign: 'stop' },
  recovering: { word: 'Recovering', tone: 'info', sign: 'again' },
  moved: { word: 'Moved', tone: 'idle', sign: 'again' },
};
const OUTCOMES = {
  success: { word: 'Finished', tone: 'idle', sign: 'check' },
  failed: { word: 'Failed', tone: 'bad', sign: 'cross' },
  stopped: { word: 'Stopped', tone: 'idle', sign: 'stop' },
};

/* How a round ended: a fault, or a plan. */
const PLANNED = new Set(['operator', 'node-leaving', 'node-joined', 'node-drained']);

const BUCKETS = [
  ['productive', 'useful work'],
  ['checkpoint', 'checkpoints'],
  ['starting', 'starting'],
  ['forming', 'forming'],
  ['stopping', 'stopping'],
  ['waiting', 'waiting for nodes'],
  ['lost', 'lost work'],
];

function keyOf(job) {
  return `${job.uid}/${job.job}`;
}

function isOver(job) {
  return job.state === 'ended' || job.state === 'ending';
}

function nodesHere(job) {
  return job.members.filter((m) => m.state !== 'away').length;
}

function isRunning(job) {
  return job.state === 'running' || job.state === 'checkpointing';
}

function stateOf(job) {
  if (job.moved_to !== undefined) return STATES.moved;
  if (isOver(job)) return OUTCOMES[job.outcome] || OUTCOMES.stopped;
  return STATES[job.state] || { word: job.state, tone: 'idle', sign: 'ring' };
}

/* The daemon judges progress, in these words, from good to bad. The page only shows it. */
const LEVELS = ['up to date', 'slowing', 'late', 'stuck'];
const levelOf = (judgement) => LEVELS.indexOf(judgement);

/* A node as the grid shows it: kind (of page.css), level if its progress is judged, and a word. `later`: ms since the daemon said so. */
function nodeView(m, later) {
  const level = levelOf(m.judgement);
  if (level >= 0) return { kind: `level${level}`, level, age: m.progress_age_ms + later, word: m.judgement };
  if (m.state === 'running' || m.state === 'checkpointing' || m.state === 'checkpointed') return { kind: 'runs', level: -1, word: m.state };
  const kinds = { starting: 'starts', stopping: 'stops', stopped: 'stops', finished: 'done', away: 'away', 'finished, away': 'done', drained: 'out', 'kept waiting': 'out', spare: 'spare', waiting: 'waits' };
  return { kind: kinds[m.state] || 'done', level: -1, word: m.state.includes('the end') ? 'ended' : m.state };
}

/* Several agents of a host have its name. */
function namesOf(members) {
  const agents = new Map();
  for (const m of members) agents.set(m.host, (agents.get(m.host) || 0) + 1);
  return (m) => (agents.get(m.host) > 1 && m.node_rank >= 0 ? `${m.host} · ${m.node_rank}` : m.host);
}

/* Its workers that are not where the others are. */
function laggardsOf(m, later) {
  return (m.laggards || []).map((l) => ({ ...l, age: l.age_ms + later, level: Math.max(1, levelOf(l.judgement)) }));
}

/* A word about nodes that are late or away; '': there are none. */
function noteOf(job) {
  const p = job.progress;
  if (!isRunning(job) || !p) return '';
  return p.late ? p.judgement : p.away ? `${count(p.away, 'node')} away` : '';
}

/* How urgent a job is, for the order of the list: the larger, the higher. */
function urgency(job) {
  if (job.moved_to !== undefined) return 0;
  if (isOver(job)) return job.outcome === 'failed' ? 2 : 1;
  return isRunning(job) ? 3 + Math.max(0, levelOf(job.progress && job.progress.judgement)) : 5;
}

/* The part of a job's time that was useful; NaN: unknown. A younger job has hardly done anything but start. */
const USEFUL_FROM_S = 10;
function usefulOf(job) {
  return job.goodput && job.goodput.total >= USEFUL_FROM_S ? job.goodput.useful : NaN;
}

/* Rounds, oldest first: those that have ended, and the one that is under way. `now`: the daemon's clock. */
function roundsOf(job, now) {
  const past = (job.verdicts || []).slice().reverse();
  const rounds = past.map((v, i) => ({
    round: v.round,
    began: v.began_wall_ms || (i ? past[i - 1].wall_ms : 0),
    ended: v.wall_ms,
    nodes: v.nodes,
    charged: v.charged,
    verdict: v.verdict,
    planned: PLANNED.has(v.verdict.cause),
  }));
  if (job.round > (past.length ? past[past.length - 1].round : 0)) {
    const ended = isOver(job) ? job.ended_wall_ms : now;
    rounds.push({ round: job.round, began: job.round_began_wall_ms, ended, nodes: job.nodes, open: !isOver(job), stops: Boolean(job.ending), done: job.outcome === 'success' });
  }
  for (const r of rounds) if (!r.began) r.began = Math.min(r.ended, rounds[0].ended - 1000);
  return rounds;
}
