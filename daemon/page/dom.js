// SPDX-License-Identifier: Apache-2.0

/* Elements. Everything from the daemon becomes text by textContent or an attribute's value, never markup. Elements are kept and
 * changed in place, so that the focus, a selection and the scroll position survive each look at the jobs. */

const SVG = 'http://www.w3.org/2000/svg';

/* Characters that are invisible, or that turn the direction of the text around them, are shown by their number. */
function printable(text) {
  return String(text ?? '').replace(/\s*\n\s*/g, ' ').replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, '0')}`);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'text') node.textContent = printable(value);
    else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children);
  return node;
}

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function say(node, text) {
  const shown = printable(text);
  if (node.textContent !== shown) node.textContent = shown;
}

function attribute(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

function style(node, name, value) {
  if (node.style.getPropertyValue(name) !== String(value)) node.style.setProperty(name, value);
}

function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/* One child of `parent` for each item, in their order. `make(item)` creates a child and `update(child, item)` changes it. */
function sync(parent, items, keyOf, make, update) {
  const before = parent.kept || new Map();
  const kept = new Map();
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (kept.has(key)) continue;
    const child = before.get(key) || make(item);
    kept.set(key, child);
    before.delete(key);
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
    if (update) update(child, item);
  }
  for (const child of before.values()) child.remove();
  parent.kept = kept;
  if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/* Signs beside the colours. 16 units wide; s: a line, f: an area. */
const ICONS = {
  dot: { f: 'M8 3.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9Z' },
  ring: { s: 'M8 3.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9Z' },
  dots: { f: 'M3 6.7a1.4 1.4 0 1 0 0 2.8 1.4 1.4 0 0 0 0-2.8Zm5 0a1.4 1.4 0 1 0 0 2.8 1.4 1.4 0 0 0 0-2.8Zm5 0a1.4 1.4 0 1 0 0 2.8 1.4 1.4 0 0 0 0-2.8Z' },
  play: { f: 'M5 3.2v9.6L13 8Z' },
  save: { s: 'M8 2.5v7M5 7l3 3 3-3M3 13h10' },
  stop: { f: 'M4 4h8v8H4Z' },
  again: { s: 'M12.7 6.2A5 5 0 1 0 13 8.6M13 3v3.4H9.6' },
  check: { s: 'm3.5 8.4 3 3 6-6.6' },
  cross: { s: 'm4 4 8 8m0-8-8 8' },
  alert: { s: 'M8 4v5M8 11.4v.9' },
  plus: { s: 'M8 3v10M3 8h10' },
  left: { s: 'M12 8H3.5M7 4 3 8l4 4' },
};

function icon(name) {
  const { s, f } = ICONS[name];
  const path = svg('path', { d: s || f });
  return svg('svg', { viewBox: '0 0 16 16', class: s ? 'icon line' : 'icon', 'aria-hidden': 'true', 'data-icon': name }, path);
}

function setIcon(holder, name) {
  const now = holder.querySelector('.icon');
  if (now && now.getAttribute('data-icon') === name) return;
  if (now) now.replaceWith(icon(name));
  else holder.prepend(icon(name));
}
