// SPDX-License-Identifier: Apache-2.0

/* Parts of a job's view: its time, its rounds, what it waits for, its daemon. Each has a node and update(). */

function badge() {
  const word = el('span');
  return el('span', { class: 'badge' }, word);
}

function setBadge(node, state) {
  attribute(node, 'class', `badge ${state.tone}`);
  setIcon(node, state.sign);
  say(node.lastChild, state.word);
}

function bar(parts, total) {
  const node = el('span', { class: 'bar' });
  setBar(node, parts, total);
  return node;
}

/* parts: [name, amount] */
function setBar(node, parts, total) {
  const shown = parts.filter(([, v]) => v > 0);
  sync(node, shown, ([name]) => name, ([name]) => el('i', { class: `bucket ${name}` }), (i, [, v]) => style(i, 'flex-grow', ((1000 * v) / total).toFixed(1)));
}

function goodputParts(g) {
  return BUCKETS.map(([name, label]) => [name, g[name] || 0, label]);
}

function timeCard() {
  const useful = el('strong');
  const of = el('span', { class: 'detail' });
  const whole = el('span', { class: 'bar big' });
  const list = el('ul', { class: 'legend' });
  const note = el('p', { class: 'hint' });
  const node = el('section', { class: 'card time', 'aria-labelledby': 'h-time' }, el('div', { class: 'head' }, el('h2', { id: 'h-time', text: 'Goodput' }), useful, of), whole, list, note);
  return {
    node,
    update(job) {
      const g = job.goodput;
      show(node, Number.isFinite(usefulOf(job)));
      if (node.hidden) return;
      const parts = goodputParts(g);
      say(useful, percent(g.useful));
      say(of, `${g.steps ? 'useful' : 'ran'}, of ${duration(1000 * g.total)}`);
      setBar(whole, parts, g.total);
      const shown = parts.filter(([name, v]) => v >= 0.05 || name === 'productive');
      sync(list, shown, ([name]) => name, ([name]) => el('li', {}, el('i', { class: `swatch bucket ${name}` }), el('span'), el('b'), el('em')), (li, [name, v, label]) => {
        say(li.children[1], name === 'productive' && !g.steps ? 'running' : label);
        say(li.children[2], duration(1000 * v));
        say(li.children[3], percent(v / g.total));
      });
      const notes = [];
      if (!g.steps) notes.push('No worker has reported a step, so lost work is unknown.');
      if (g.longest_wait >= 1) notes.push(`The longest wait for nodes took ${duration(1000 * g.longest_wait)}${g.waited_for ? `, for ${g.waited_for}` : ''}.`);
      say(note, notes.join(' '));
      show(note, notes.length > 0);
    },
  };
}

const ENDINGS = {
  open: { word: 'under way', tone: 'ok', sign: 'dot' },
  stops: { word: 'being stopped', tone: 'wait', sign: 'stop' },
  done: { word: 'finished', tone: 'idle', sign: 'check' },
  planned: { word: 'planned end', tone: 'info', sign: 'again' },
  failed: { word: 'failed', tone: 'bad', sign: 'cross' },
};

function endingOf(r) {
  return ENDINGS[r.stops ? 'stops' : r.open ? 'open' : r.done ? 'done' : r.planned ? 'planned' : 'failed'];
}

function roundItem() {
  return el('li', {}, el('span', { class: 'badge' }, el('span')), el('p', {}, el('span', { class: 'sentence' }), el('span', { class: 'detail' })));
}

function updateRound(li, r, now) {
  const ending = endingOf(r);
  setBadge(li.firstChild, { ...ending, word: `Round ${r.round}` });
  attribute(li, 'class', ending.tone);
  say(li.lastChild.firstChild, r.verdict ? r.verdict.sentence : r.stops ? 'Being stopped' : r.open ? 'Under way' : 'Finished');
  const facts = [r.open ? `for ${duration(r.ended - r.began)}` : `${clock(r.ended)}, ${duration(now - r.ended)} ago, after ${duration(r.ended - r.began)}`];
  if (r.nodes) facts.push(count(r.nodes, 'node'));
  if (r.charged) facts.push('counts as a restart');
  say(li.lastChild.lastChild, facts.join(' · '));
}

function roundsCard() {
  const strip = el('div', { class: 'strip', role: 'img' });
  const list = el('ol', { class: 'rounds' });
  const more = el('p', { class: 'hint' });
  const sum = el('p', { class: 'sum' });
  const node = el('section', { class: 'card', 'aria-labelledby': 'h-rounds' }, el('div', { class: 'head' }, el('h2', { id: 'h-rounds', text: 'Rounds' }), sum), strip, list, more);
  return {
    node,
    update(job, now) {
      const rounds = roundsOf(job, now);
      show(node, rounds.length > 0);
      if (node.hidden) return;
      const earlier = rounds[0].round - 1;
      const total = Math.max(1, rounds[rounds.length - 1].ended - rounds[0].began);
      sync(strip, rounds, (r) => r.round, (r) => el('span', {}, el('b', { text: r.round })), (span, r) => {
        const ending = endingOf(r);
        attribute(span, 'class', ending.tone);
        setIcon(span, ending.sign);
        style(span, 'flex-grow', ((1000 * (r.ended - r.began)) / total).toFixed(1));
      });
      attribute(strip, 'aria-label', rounds.map((r) => `round ${r.round} ${endingOf(r).word}`).join(', '));
      sync(list, rounds.slice().reverse(), (r) => r.round, roundItem, (li, r) => updateRound(li, r, now));
      say(sum, job.max_restarts ? `${job.restarts_used} of ${count(job.max_restarts, 'restart')} used` : 'no restarts');
      say(more, earlier === 1 ? 'Round 1 is not shown.' : `Rounds 1 to ${earlier} are not shown.`);
      show(more, earlier > 0);
    },
  };
}

const REASONS = { 'never-came': 'never came', lost: 'lost', left: 'left', drained: 'drained', refused: 'refused' };

function waitingCard() {
  const text = el('p', { class: 'sentence' });
  const list = el('ul', { class: 'hosts' });
  const node = el('section', { class: 'card alert wait', 'aria-labelledby': 'h-wait' }, el('h2', { id: 'h-wait', text: 'Waiting for nodes' }), text, list);
  return {
    node,
    update(job) {
      const w = job.waiting;
      show(node, Boolean(w));
      if (!w) return;
      say(text, w.sentence);
      sync(list, w.absent || [], (a) => `${a.why} ${a.hosts}`, () => el('li', {}, el('strong'), el('span')), (li, a) => {
        say(li.firstChild, a.hosts);
        say(li.lastChild, REASONS[a.why] || a.why);
      });
    },
  };
}

function stallCard() {
  const head = el('h2', { id: 'h-stall' });
  const text = el('p', { class: 'sentence' });
  const node = el('section', { class: 'card alert wait', 'aria-labelledby': 'h-stall' }, head, text);
  return {
    node,
    update(job) {
      const { late = 0, away = 0, sentence = '' } = (isRunning(job) && job.progress) || {};
      show(node, late > 0 || away > 0);
      if (node.hidden) return;
      const hosts = job.members.filter((m) => m.node_rank >= 0 && m.state === 'away').map((m) => printable(m.host));
      const names = hosts.slice(0, 6).join(', ') + (hosts.length > 6 ? ` and ${hosts.length - 6} more` : '');
      const parts = sentence ? [`${sentence}.`] : [];
      if (away) parts.push(`${late ? 'Not' : 'No longer'} connected: ${names}.`);
      say(head, late ? `Progress is ${job.progress.judgement}` : `${count(away, 'node')} away`);
      say(text, parts.join(' '));
    },
  };
}

function slowCard() {
  const head = el('h2', { id: 'h-slow' });
  const list = el('ul', {});
  const node = el('section', { class: 'card alert wait', 'aria-labelledby': 'h-slow' }, head, list);
  return {
    node,
    update(job) {
      const slow = (isRunning(job) && job.slow_ranks) || [];
      show(node, slow.length > 0);
      say(head, `${count(slow.length, 'slow rank')}`);
      const sentences = [...new Set(slow.map((s) => s.sentence))]; /* a host's is that of all its ranks */
      sync(list, sentences, (s) => s, () => el('li', { class: 'sentence' }), (li, s) => say(li, s));
    },
  };
}

/* What ends the round now, or has ended the job. */
function verdictCard() {
  const head = el('h2', { id: 'h-verdict' });
  const text = el('p', { class: 'sentence' });
  const lines = el('pre', { tabindex: '0', 'aria-label': 'The last lines of the worker' });
  const node = el('section', { class: 'card alert', 'aria-labelledby': 'h-verdict' }, head, text, lines);
  return {
    node,
    update(job, now) {
      const last = job.verdicts && job.verdicts[0];
      const fresh = last && now - last.wall_ms < 60000 && !isOver(job) && !PLANNED.has(last.verdict.cause);
      const failed = isOver(job) && job.outcome === 'failed';
      const v = (!failed && job.ending) || ((fresh || failed) && job.last_verdict);
      show(node, Boolean(v));
      if (!v) return;
      attribute(node, 'class', `card alert ${PLANNED.has(v.cause) ? 'info' : 'bad'}`);
      const ending = PLANNED.has(v.cause) ? 'is ending as planned' : 'has failed, and is being stopped';
      say(head, !failed && job.ending ? `Round ${v.round} ${ending}` : failed ? `The job failed with exit code ${job.code}` : `Round ${v.round} failed ${duration(now - last.wall_ms)} ago`);
      say(text, v.sentence);
      /* "text" is what a dead worker wrote last; for other causes it is in the sentence already. */
      const wrote = v.cause === 'worker-exit' || v.cause === 'worker-signal' ? v.text || '' : '';
      if (lines.textContent !== wrote) lines.textContent = wrote.split('\n').map(printable).join('\n');
      show(lines, wrote !== '');
    },
  };
}

function daemonCard() {
  const list = el('dl', { class: 'facts' });
  const node = el('section', { class: 'card', 'aria-labelledby': 'h-daemon' }, el('div', { class: 'head' }, el('h2', { id: 'h-daemon', text: 'Daemon and policy' })), list);
  return {
    node,
    update(job, later) {
      const d = job.daemon || {};
      const s = job.settings || {};
      const facts = [];
      if (d.host && !isOver(job)) {
        const heard = d.age_ms === undefined ? '' : `, heard a majority ${duration(d.age_ms + later)} ago`;
        facts.push(['Daemon', d.successors && d.successors.length ? `${d.host}, term ${d.term}, ${d.in_charge ? 'in charge' : 'not in charge'}${heard}` : d.host]);
        facts.push(['Successors', d.successors && d.successors.length ? d.successors.join(', ') : 'none']);
        if (d.claims) facts.push(['Claims', 'each round']);
      }
      facts.push(['Nodes', job.min_nodes === job.max_nodes ? `${job.min_nodes}` : `${job.min_nodes} to ${job.max_nodes}`]);
      facts.push(['Restarts', job.max_restarts ? `${job.restarts_used} of ${job.max_restarts} used${job.restarts_earned ? ', refunded at the end of this round' : ''}` : 'off']);
      if (s.hang_timeout_ms) facts.push(['Hang timeout', duration(s.hang_timeout_ms)]);
      if (s.lease_ms) facts.push(['Lease', duration(s.lease_ms)]);
      sync(list, facts, (f) => f[0], ([name]) => el('div', {}, el('dt', { text: name }), el('dd')), (row, f) => say(row.lastChild, f[1]));
    },
  };
}

/* Hosts that are unlike the others, the worst first. */
function oddCard() {
  const list = el('ul', { class: 'hosts' });
  const node = el('section', { class: 'card', 'aria-labelledby': 'h-odd' }, el('div', { class: 'head' }, el('h2', { id: 'h-odd', text: 'Odd nodes' })), list);
  const weight = (f) => ['hint', 'suspect', 'certain'].indexOf(f.class);
  return {
    node,
    update(job, now) {
      const odd = [...(job.odd || [])].sort((a, b) => weight(b) - weight(a));
      show(node, odd.length > 0);
      sync(list, odd, (f) => `${f.host} ${f.fact} ${f.at}`, () => el('li', {}, el('strong'), badge(), el('span')), (li, f) => {
        say(li.firstChild, f.host);
        setBadge(li.children[1], { tone: f.class === 'certain' ? 'bad' : f.class === 'suspect' ? 'wait' : 'info', sign: 'alert', word: f.class });
        say(li.lastChild, `${f.sentence}, for ${duration(now - f.since_wall_ms)}`);
      });
    },
  };
}

function drainedCard() {
  const list = el('ul', { class: 'hosts' });
  const node = el('section', { class: 'card', 'aria-labelledby': 'h-drained' }, el('div', { class: 'head' }, el('h2', { id: 'h-drained', text: 'Drained hosts' })), list);
  return {
    node,
    update(drained, now) {
      show(node, drained.length > 0);
      sync(list, drained, (d) => `${d.host} ${d.by} ${d.since_wall_ms}`, () => el('li', {}, el('strong'), el('span')), (li, d) => {
        say(li.firstChild, d.host);
        const scope = d.job ? `, in job ${d.job}` : d.uid === undefined ? '' : `, in jobs of uid ${d.uid}`;
        say(li.lastChild, `${duration(now - d.since_wall_ms)} ago by ${d.by}${scope}`);
      });
    },
  };
}
