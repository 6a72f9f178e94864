// SPDX-License-Identifier: Apache-2.0

/* The view of one job. */

function stepPart() {
  const value = el('strong');
  const detail = el('span', { class: 'detail' });
  const track = el('span', { class: 'track' }, el('i'));
  const figure = el('p', { class: 'step' }, el('span', { class: 'detail', text: 'Step ' }), value, detail);
  return {
    figure,
    track,
    update(job) {
      const { step = -1, of = 0, left_ms: left } = job.progress || {};
      show(figure, step >= 0);
      show(track, step >= 0 && of > 0);
      if (step < 0) return;
      say(value, whole.format(step));
      say(detail, of ? ` of ${whole.format(of)}${left === undefined ? '' : `, about ${duration(left)} left`}` : '');
      if (of) style(track.firstChild, 'width', `${((100 * step) / of).toFixed(2)}%`);
    },
  };
}

function jobHead(job, now, later) {
  const facts = [];
  const ago = duration(job.state_for_ms + later);
  facts.push(isOver(job) ? `${ago} ago, exit code ${job.code}` : `for ${ago}`);
  if (job.round) facts.push(`round ${job.round}`);
  if (job.state === 'forming') facts.push(`${nodesHere(job)} of ${count(job.min_nodes, 'node')} here`);
  else if (job.nodes) facts.push(count(job.nodes, 'node'), count(job.world_size, 'worker'));
  return facts.join(' · ');
}

function jobView() {
  const badgeNode = badge();
  const title = el('h1', { id: 'h-job', tabindex: '-1' });
  const facts = el('p', { class: 'facts-line' });
  const step = stepPart();
  const head = el('div', { class: 'job-head' }, title, el('div', { class: 'state' }, badgeNode, facts, step.figure), step.track);
  const loss = chart('Loss', '', false);
  const speed = chart('Speed', ' samples/s', true);
  const parts = { verdict: verdictCard(), stall: stallCard(), slow: slowCard(), waiting: waitingCard(), nodes: nodesCard(), odd: oddCard(), time: timeCard(), rounds: roundsCard(), daemon: daemonCard(), drained: drainedCard() };
  const { verdict, stall, slow, waiting, nodes, odd, time, rounds, daemon, drained } = parts;
  const curves = el('div', { class: 'curves' }, loss.node, speed.node);
  const node = el('article', { class: 'job', 'aria-labelledby': 'h-job' }, head, verdict.node, stall.node, slow.node, waiting.node, nodes.node, odd.node, curves, time.node, rounds.node, el('div', { class: 'pair' }, daemon.node, drained.node));

  return {
    node,
    title,
    update(job, look) {
      const { now, later } = look;
      say(title, job.job);
      const note = job.moved_to === undefined ? noteOf(job) : '';
      setBadge(badgeNode, note ? { ...stateOf(job), tone: 'wait', sign: 'alert' } : stateOf(job));
      if (job.moved_to !== undefined) {
        say(facts, `to the daemon on ${job.moved_to}`);
        for (const n of [step.figure, step.track, curves, ...Object.values(parts).map((p) => p.node)]) show(n, false);
        return;
      }
      say(facts, jobHead(job, now, later));
      const points = (job.history || []).map(([at, s, l, v]) => ({ at, step: s, loss: l ?? NaN, speed: v ?? NaN }));
      const current = job.progress && job.progress.late && points.length ? [{ ...points[points.length - 1], at: now, value: job.progress.samples_per_second ?? NaN }] : [];
      const marks = roundsOf(job, now).slice(1).map((r) => ({ at: r.began, name: `round ${r.round}` }));
      verdict.update(job, now);
      waiting.update(job);
      stall.update(job);
      slow.update(job);
      step.update(job);
      nodes.update(job, isOver(job) ? 0 : later);
      odd.update(job, now);
      loss.update(points.map((p) => ({ ...p, value: p.loss })), marks, '');
      speed.update([...points.map((p) => ({ ...p, value: p.speed })), ...current], marks, '');
      show(curves, !loss.node.hidden || !speed.node.hidden);
      time.update(job);
      rounds.update(job, now);
      daemon.update(job, later);
      show(daemon.node, true);
      drained.update(look.drained, now);
    },
  };
}
