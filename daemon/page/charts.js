// SPDX-License-Identifier: Apache-2.0

/* A curve over time as inline SVG, with the ends of rounds as lines, and the values under the pointer in its caption. */

const CHART_HEIGHT = 148;
const LOG_FROM = 10; /* the largest value by the smallest: the axis is logarithmic from here on */
const GUTTER = 44; /* left of the curve, for its scale */

/* Round numbers between lo and hi. */
function ticks(lo, hi, wanted) {
  const raw = (hi - lo) / wanted || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * unit).find((s) => s >= raw * 0.999);
  const list = [];
  for (let v = Math.ceil(lo / step) * step; v <= hi + step * 1e-6; v += step) list.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return list;
}

/* 1, 2 and 5 of each power of ten between lo and hi; only the powers, if these are many. */
function logTicks(lo, hi) {
  const list = [];
  const few = Math.log10(hi / lo) > 2.5;
  for (let k = Math.floor(Math.log10(lo)); k <= Math.log10(hi); k++) for (const m of few ? [1] : [1, 2, 5]) list.push(m * 10 ** k);
  return list.filter((v) => v >= lo && v <= hi);
}

/* Runs of points that a line may join: one round after another, without what is unknown. */
function runsOf(points, marks) {
  const runs = [];
  let run = null;
  for (const p of points) {
    const broken = !run || marks.some((m) => m.at > run[run.length - 1].at && m.at <= p.at);
    if (!Number.isFinite(p.value)) {
      run = null;
      continue;
    }
    if (broken) runs.push((run = []));
    run.push(p);
  }
  return runs;
}

function path(run, x, y) {
  return run.map((p, i) => `${i ? 'L' : 'M'}${x(p.at).toFixed(1)} ${y(p.value).toFixed(1)}`).join('');
}

function range(points, fromZero) {
  const values = points.map((p) => p.value).filter(Number.isFinite);
  let lo = fromZero ? 0 : Math.min(...values);
  let hi = Math.max(...values);
  if (hi === lo) [lo, hi] = [lo - Math.abs(lo || 1) * 0.1, hi + Math.abs(hi || 1) * 0.1];
  return fromZero ? [lo, hi * 1.08] : [lo - (hi - lo) * 0.06, hi + (hi - lo) * 0.06];
}

function chart(title, unit, fromZero) {
  const value = el('strong');
  const detail = el('span', { class: 'detail' });
  const plot = el('div', { class: 'plot' });
  const node = el('figure', { class: 'card chart' }, el('figcaption', {}, el('h3', { text: title }), value, detail), plot);
  const state = { points: [], marks: [], hover: null };

  function caption() {
    const p = state.hover || state.points[state.points.length - 1];
    say(value, p ? `${decimals(p.value, 4)}${unit}` : '–');
    say(detail, p && state.hover ? `step ${whole.format(p.step)}, ${clock(p.at)}` : state.note || '');
  }

  function draw() {
    const width = Math.max(200, plot.clientWidth);
    const known = state.points.filter((p) => Number.isFinite(p.value));
    const from = state.points[0].at;
    const to = Math.max(state.points[state.points.length - 1].at, from + 1000);
    const least = Math.min(...known.map((p) => p.value));
    const most = Math.max(...known.map((p) => p.value));
    const log = !fromZero && least > 0 && most / least >= LOG_FROM; /* else the first fall leaves a flat line */
    const [lo, hi] = log ? [least / 1.1, most * 1.1] : range(state.points, fromZero);
    const part = log ? (v) => Math.log(v / lo) / Math.log(hi / lo) : (v) => (v - lo) / (hi - lo);
    const x = (at) => GUTTER + ((at - from) / (to - from)) * (width - GUTTER - 6);
    const y = (v) => CHART_HEIGHT - 20 - part(v) * (CHART_HEIGHT - 40);
    const parts = [];
    for (const v of log ? logTicks(lo, hi) : ticks(lo, hi, 4)) {
      parts.push(svg('line', { class: 'grid', x1: GUTTER, x2: width, y1: y(v), y2: y(v) }));
      parts.push(svg('text', { class: 'tick', x: GUTTER - 8, y: y(v) + 4, 'text-anchor': 'end', text: compact.format(v) }));
    }
    attribute(plot, 'data-scale', log ? 'logarithmic' : 'linear');
    for (const [i, m] of state.marks.entries()) {
      if (m.at <= from || m.at >= to) continue;
      const next = state.marks[i + 1];
      parts.push(svg('line', { class: 'mark', x1: x(m.at), x2: x(m.at), y1: 4, y2: CHART_HEIGHT - 18 }));
      if (x(next ? Math.min(next.at, to) : to) - x(m.at) > 60) parts.push(svg('text', { class: 'tick', x: x(m.at) + 5, y: 12, text: m.name }));
    }
    for (const run of runsOf(state.points, state.marks)) {
      if (run.length > 1) parts.push(svg('path', { class: 'curve', d: path(run, x, y) }));
    }
    const last = state.hover || known[known.length - 1];
    if (state.hover) parts.push(svg('line', { class: 'cursor', x1: x(last.at), x2: x(last.at), y1: 8, y2: CHART_HEIGHT - 18 }));
    if (last) parts.push(svg('circle', { class: 'end', cx: x(last.at), cy: y(last.value), r: 3 }));
    const days = to - from > 20 * 3600000;
    parts.push(svg('text', { class: 'tick', x: GUTTER, y: CHART_HEIGHT - 4, text: clock(from, to - from < 600000) }));
    parts.push(svg('text', { class: 'tick', x: width, y: CHART_HEIGHT - 4, 'text-anchor': 'end', text: clock(to, !days && to - from < 600000) }));
    const label = `${title}${log ? ' on a logarithmic scale' : ''}: ${decimals(known.length ? known[0].value : NaN, 4)} at first, ${decimals(known.length ? known[known.length - 1].value : NaN, 4)} now, between ${decimals(Math.min(...known.map((p) => p.value)), 4)} and ${decimals(Math.max(...known.map((p) => p.value)), 4)}`;
    plot.replaceChildren(svg('svg', { width, height: CHART_HEIGHT, viewBox: `0 0 ${width} ${CHART_HEIGHT}`, role: 'img', 'aria-label': label }, ...parts));
    state.x = x;
    caption();
  }

  plot.addEventListener('pointermove', (e) => {
    if (!state.x) return;
    const at = e.clientX - plot.getBoundingClientRect().left;
    let best = null;
    for (const p of state.points) if (Number.isFinite(p.value) && (!best || Math.abs(state.x(p.at) - at) < Math.abs(state.x(best.at) - at))) best = p;
    state.hover = best;
    draw();
  });
  plot.addEventListener('pointerleave', () => {
    state.hover = null;
    if (state.x) draw();
  });
  new ResizeObserver(() => state.x && draw()).observe(plot);

  return {
    node,
    /* points: {at, step, value}, oldest first */
    update(points, marks, note) {
      const known = points.some((p) => Number.isFinite(p.value));
      show(node, known && points.length > 1);
      if (node.hidden) return;
      const last = points[points.length - 1];
      const seal = `${points.length} ${points[0].at} ${last.at} ${last.value} ${marks.length} ${note}`;
      if (seal === state.seal) return;
      Object.assign(state, { points, marks, note, seal });
      if (state.hover) state.hover = points.find((p) => p.at === state.hover.at) || null;
      draw();
    },
  };
}

/* A curve without axes, for a row of a list. Hidden from readers: the number beside it says what is now. */
function spark(points, width, height) {
  const known = points.filter((p) => Number.isFinite(p.value));
  if (known.length < 3) return null;
  const [lo, hi] = range(known, false);
  const from = known[0].at;
  const to = known[known.length - 1].at;
  const x = (at) => 1 + ((at - from) / (to - from || 1)) * (width - 2);
  const y = (v) => height - 2 - ((v - lo) / (hi - lo)) * (height - 4);
  return svg('svg', { class: 'spark', width, height, viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' }, svg('path', { class: 'curve', d: path(known, x, y) }));
}
