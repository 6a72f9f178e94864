// SPDX-License-Identifier: Apache-2.0

/* Numbers, ages and times as people read them. */

const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });
const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

function count(n, noun) {
  return `${whole.format(n)} ${noun}${n === 1 ? '' : 's'}`;
}

function decimals(v, digits) {
  if (!Number.isFinite(v)) return '–';
  if (v !== 0 && (Math.abs(v) >= 1e7 || Math.abs(v) < 1e-4)) return v.toExponential(2);
  const size = v === 0 ? 1 : Math.floor(Math.log10(Math.abs(v))) + 1;
  return v.toLocaleString('en', { minimumFractionDigits: 0, maximumFractionDigits: Math.max(0, Math.min(6, digits - size)) });
}

/* "0.4 s", "34 s", "2 min 5 s", "4 h 12 min", "3 d 4 h" */
function duration(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 119.5) return `${Math.round(s)} s`;
  const min = Math.floor(s / 60);
  if (min < 10) return `${min} min${Math.floor(s % 60) ? ` ${Math.floor(s % 60)} s` : ''}`;
  if (min < 120) return `${min} min`;
  const h = Math.floor(min / 60);
  if (h < 48) return `${h} h${min % 60 ? ` ${min % 60} min` : ''}`;
  return `${Math.floor(h / 24)} d${h % 24 ? ` ${h % 24} h` : ''}`;
}

/* Without the part that would change at each look. */
function roughly(ms) {
  const s = Math.max(0, ms) / 1000;
  return s < 1 ? 'less than 1 s' : s < 9.95 ? `${Math.floor(s)} s` : duration(ms);
}

function clock(wallMs, seconds = true) {
  const at = new Date(wallMs);
  const today = new Date();
  const time = at.toLocaleTimeString('en-GB', seconds ? { hour: '2-digit', minute: '2-digit', second: '2-digit' } : { hour: '2-digit', minute: '2-digit' });
  if (at.toDateString() === today.toDateString()) return time;
  return `${at.toLocaleDateString('en', { month: 'short', day: 'numeric' })}, ${time}`;
}

function percent(part) {
  const p = 100 * part;
  return p > 0 && p < 1 ? '< 1 %' : p > 99 && p < 100 ? `${Math.floor(10 * p) / 10} %` : `${Math.round(p)} %`;
}

function ranks(member) {
  const { first_rank: first, workers: n } = member;
  if (first < 0) return count(n, 'worker');
  return n === 1 ? `rank ${first}` : `ranks ${first}–${first + n - 1}`;
}
