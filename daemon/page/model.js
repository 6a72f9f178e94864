// SPDX-License-Identifier: Apache-2.0

/* What the numbers mean: which job needs a look, how old progress may be, what the time went to. */

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

/* Steps per second by the newest part of the history; 0: unknown. */
function pace(job) {
  const points = job.history || [];
  const last = points.length - 1;
  for (let i = last - 1; i >= 0; i--) {
    if (points[i][1] > points[i + 1][1]) break; /* a later round began behind it */
    const steps = points[last][1] - points[i][1];
    const ms = points[last][0] - points[i][0];
    if (steps > 0 && (last - i >= 12 || i === 0)) return (1000 * steps) / ms;
  }
  return 0;
}

/* From which age on progress is late, and from which it seems to have stopped: steps of this job take their time. Nodes report it about once a
 * second, so less than LATE_MIN_MS says nothing. */
const LATE_MIN_MS = 4000;
function patience(job) {
  const stepMs = pace(job) ? 1000 / pace(job) : 0;
  const hang = (job.settings && job.settings.hang_timeout_ms) || Infinity;
  const late = Math.max(LATE_MIN_MS, Math.min(Math.max(10000, 5 * stepMs), hang / 2));
  return { fresh: late / 2, late, stuck: Math.max(1.5 * late, Math.min(6 * late, hang * 0.8)) };
}

function levelOf(age, limits) {
  return age < limits.fresh ? 0 : age < limits.late ? 1 : age < limits.stuck ? 2 : 3;
}
const LEVELS = ['up to date', 'slowing', 'late', 'stuck'];

/* The step that all nodes have reached; -1: unknown. */
function stepOf(job) {
  const steps = (job.members || []).filter((m) => m.node_rank >= 0 && m.step >= 0).map((m) => m.step);
  if (steps.length) return Math.min(...steps);
  const points = job.history || [];
  return points.length ? points[points.length - 1][1] : -1;
}

function ofSteps(job) {
  for (const m of job.members || []) if (m.of > 0) return m.of;
  return 0;
}

function sampleOf(job, name, index) {
  if (isRunning(job)) for (const m of job.members || []) if (Number.isFinite(m[name])) return m[name];
  const points = job.history || [];
  for (let i = points.length - 1; i >= 0; i--) if (Number.isFinite(points[i][index])) return points[i][index];
  return NaN;
}

const speedOf = (job) => sampleOf(job, 'samples_per_second', 3);
const lossOf = (job) => sampleOf(job, 'loss', 2);

/* A node as the grid shows it: kind (of page.css), level if it reports progress, and a word. `later`: ms since the daemon said so. */
function nodeView(job, m, limits, later) {
  const runs = m.state === 'running' || m.state === 'checkpointing' || m.state === 'checkpointed';
  if (runs && m.progress_age_ms !== undefined) {
    const age = m.progress_age_ms + later;
    const level = levelOf(age, limits);
    return { kind: `level${level}`, level, age, word: LEVELS[level] };
  }
  if (runs) return { kind: 'runs', level: -1, word: m.state };
  const kinds = { starting: 'starts', stopping: 'stops', stopped: 'stops', finished: 'done', away: 'away', 'finished, away': 'done', drained: 'out', 'kept waiting': 'out', spare: 'spare', waiting: 'waits' };
  return { kind: kinds[m.state] || 'done', level: -1, word: m.state };
}

/* Its workers that are not where the others are. */
function laggardsOf(m, limits, later) {
  return (m.laggards || []).map((l) => ({ ...l, age: l.age_ms + later, level: Math.max(1, levelOf(l.age_ms + later, limits)) }));
}

/* What is wrong with the progress of a job that runs: which nodes are late, and who is furthest behind. NULL: nothing. */
function stallOf(job, later) {
  if (!isRunning(job)) return null;
  const limits = patience(job);
  const nodes = job.members.filter((m) => m.node_rank >= 0);
  const late = nodes.filter((m) => nodeView(job, m, limits, later).level >= 2);
  const away = nodes.filter((m) => m.state === 'away');
  if (!late.length && !away.length) return null;
  let behind = null;
  for (const m of late) {
    const rows = m.laggards && m.laggards.length ? m.laggards : [{ local_rank: -1, step: m.step }];
    for (const l of rows) if (!behind || l.step < behind.step) behind = { m, ...l };
  }
  const ages = late.map((m) => m.progress_age_ms + later);
  const furthest = late.some((m) => m.step > behind.step || (m.laggards || []).length) || late.length < nodes.length;
  return { late, away, nodes, age: Math.max(0, ...ages), behind: furthest ? behind : null };
}

/* How urgent a job is, for the order of the list: the larger, the higher. */
function urgency(job, later) {
  if (job.moved_to !== undefined) return 0;
  if (isOver(job)) return job.outcome === 'failed' ? 2 : 1;
  if (isRunning(job)) return 3 + worstLevel(job, later);
  return 5;
}

function worstLevel(job, later) {
  const limits = patience(job);
  let worst = 0;
  for (const m of job.members || []) worst = Math.max(worst, nodeView(job, m, limits, later).level);
  return worst;
}

/* The part of a job's time that was useful; NaN: unknown. */
function usefulOf(job) {
  return job.goodput && job.goodput.total > 0 ? job.goodput.useful : NaN;
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
    const before = rounds.length ? rounds[rounds.length - 1].ended : 0;
    const ended = isOver(job) ? now - job.state_for_ms : now;
    const first = job.goodput ? now - 1000 * job.goodput.total : ended - job.state_for_ms;
    rounds.push({ round: job.round, began: job.round_began_wall_ms || before || first, ended, nodes: job.nodes, open: !isOver(job), stops: Boolean(job.ending), done: job.outcome === 'success' });
  }
  for (const r of rounds) if (!r.began) r.began = Math.min(r.ended, rounds[0].ended - 1000);
  return rounds;
}
