// The document: fetches the state, draws what changed, handles mouse and keyboard.

import {
  barWidth, colours, counted, curve, describe, filter, help, key, labels, largestMemory, legend, measured, merge, parts, requests, step, sums,
  title, usedBy, usedText,
} from './model.js';

const INTERVAL = 5000;
// The header: the API server's proxy does not pass Authorization on.
const TOKEN = 'aliquot-token';
const find = (selector) => document.querySelector(selector);
const grid = find('#nodes');
const form = find('#choices');
const access = find('#access');
const dialog = find('#share');
let state = null;
// What the monitors of the nodes in view answered last, by node.
const usage = new Map();
const inView = new Set();
// As many nodes as one request may name.
const MOST = 64;
let opener = null;
let opened = null;
// What was drawn last for each node, so that unchanged nodes are not drawn again.
let drawn = new Map();

function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    made.setAttribute(attribute, value);
  }
  made.append(...inside);
  return made;
}

function choices() {
  const data = new FormData(form);
  return { by: data.get('by'), colour: data.get('colour'), only: data.get('only') };
}

function bar(node, gpu, chosen, shades, width) {
  const names = labels(gpu);
  const short = new Map(gpu.shares.map((share, at) => [share, names[at]]));
  const cells = parts(gpu, chosen.by).map((part) => {
    if (part.kind !== 'share') {
      const cell = element('span', { class: part.kind });
      cell.title = part.kind === 'free' ? 'free' : 'allocated to processes whose pod has ended, to another device plugin, or reserved for a pending pod';
      cell.style.width = `${part.width}%`;
      return cell;
    }
    const text = describe(node, gpu, part.share);
    const cell = element('button', { type: 'button', role: 'gridcell', tabindex: '-1', 'aria-label': text }, short.get(part.share));
    cell.title = text;
    cell.style.width = `${part.width}%`;
    cell.style.setProperty('--colour', shades.get(key(chosen.colour, gpu, part.share)));
    cell.share = part.share;
    cell.addEventListener('click', () => open(cell, node, gpu, part.share));
    return cell;
  });
  const name = element('span', { class: 'name', role: 'rowheader' }, `${gpu.index} ${gpu.model}`);
  name.title = `${title(gpu)}, ${gpu.gpu}`;
  const why = gpu.closed ? [element('span', { class: 'why' }, gpu.closed)] : [];
  const row = element('div', { class: gpu.closed ? 'gpu closed' : 'gpu', role: 'row', 'aria-label': title(gpu) });
  const line = element('div', { class: 'bar' }, ...cells);
  line.style.width = `${width}%`;
  row.append(name, line, element('span', { class: 'now' }), ...why);
  row.gpu = gpu;
  return row;
}

function section(node, chosen, shades, largest) {
  const made = element('section', { class: 'node', role: 'rowgroup', 'aria-label': `node ${node.node}` });
  const heading = element('h3', {}, node.node);
  if (node.closed) heading.append(' ', element('span', { class: 'why' }, node.closed));
  made.append(heading, element('p', { class: 'why missing' }), ...node.gpus.map((gpu) => bar(node, gpu, chosen, shades, barWidth(gpu, largest))));
  made.node = node;
  drawUsage(made);
  return made;
}

/** Writes what is used of a node into its section. */
function drawUsage(made) {
  const now = usage.get(made.node.node);
  made.querySelector('.missing').textContent = now?.error ? `What is used is unknown: ${now.error}` : '';
  for (const row of made.querySelectorAll('.gpu')) {
    row.querySelector('.now').textContent = measured(now, row.gpu);
    for (const cell of row.querySelectorAll('button')) {
      const used = usedBy(now, row.gpu, cell.share);
      const part = used?.memory == null ? 0 : Math.min(100, (100 * used.memory) / Math.max(cell.share.memory, 1));
      cell.style.setProperty('--used', part.toFixed(0));
      cell.title = `${cell.getAttribute('aria-label')}; used: ${usedText(used, cell.share)}`;
    }
  }
}

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) inView.add(entry.target);
    else inView.delete(entry.target);
  }
});

/** Draws the nodes that changed, in order. */
function draw() {
  const chosen = choices();
  const shown = filter(state.nodes, chosen.only);
  const focused = document.activeElement?.getAttribute('aria-label');
  const inside = grid.contains(document.activeElement);
  const now = new Map();
  const counts = legend(shown, chosen.colour);
  const shades = colours(counts.map(([name]) => name), chosen.colour);
  const largest = largestMemory(state.nodes);
  // What the drawing of every node depends on.
  const common = JSON.stringify([chosen.by, chosen.colour, largest, [...shades]]);
  for (const node of shown) {
    const text = common + JSON.stringify(node);
    const old = drawn.get(node.node);
    now.set(node.node, old?.text === text ? old : { text, section: section(node, chosen, shades, largest) });
  }
  const sections = [...now.values()].map((one) => one.section);
  if (sections.length !== grid.children.length || sections.some((one, at) => grid.children[at] !== one)) {
    grid.replaceChildren(...sections);
    watcher.disconnect();
    inView.clear();
    for (const one of sections) watcher.observe(one);
  }
  drawn = now;
  const buttons = [...grid.querySelectorAll('button')];
  const again = inside && buttons.find((button) => button.getAttribute('aria-label') === focused);
  if (again) again.focus();
  if (!grid.querySelector('button[tabindex="0"]')) buttons[0]?.setAttribute('tabindex', '0');
  find('#legend').replaceChildren(...counts.slice(0, 40).map(([name, count]) => {
    const square = element('i');
    square.style.background = shades.get(name);
    return element('li', {}, square, `${name} (${count})`);
  }));
  const line = sums(state);
  if (find('#sums').textContent !== line) find('#sums').textContent = line;
  drawWaiting();
}

function drawWaiting() {
  const rows = state.waiting.map((pod) => element('tr', {},
    element('td', {}, `${pod.namespace}/${pod.pod}`),
    element('td', {}, requests(pod)),
    element('td', {}, pod.text ?? 'not refused yet'),
    element('td', {}, help(pod, state.nodes)),
    element('td', {}, pod.times > 0 ? counted(pod.times, 'time', 'times') : '')));
  if (state.more_waiting > 0) {
    rows.push(element('tr', {}, element('td', { colspan: '5' }, `and ${state.more_waiting} more`)));
  }
  if (rows.length === 0) rows.push(element('tr', {}, element('td', { colspan: '5' }, 'none')));
  find('#waiting tbody').replaceChildren(...rows);
  find('#quotas').hidden = state.quotas.length === 0;
  const units = { memory: 'MiB of memory', cores: '% of compute' };
  find('#quotas tbody').replaceChildren(...state.quotas.map((one) => element('tr', {},
    element('td', {}, one.namespace), element('td', {}, one.quota), element('td', {}, units[one.resource]),
    element('td', {}, element('meter', { max: one.limit, value: one.used ?? 0 }), ` ${one.used ?? 'unknown'} of ${one.limit}`))));
}

/** Shows a share's pod. */
function open(from, node, gpu, share) {
  opener = from;
  const facts = {
    Node: node.node, GPU: `${gpu.index} ${gpu.model}`, Device: share.instance ?? gpu.gpu, Mode: gpu.mode,
    Memory: `${share.memory} MiB`, Compute: `${share.cores} %`, Replicas: `${share.replicas}`,
    Used: usedText(usedBy(usage.get(node.node), gpu, share), share),
    State: share.confirmed ? 'bound' : 'being bound', Health: gpu.closed ?? 'ok',
  };
  opened = { node, gpu, share };
  drawHour().catch(() => {});
  find('#share-title').textContent = `${share.namespace}/${share.pod}`;
  dialog.querySelector('dl').replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [
    element('dt', {}, name), element('dd', {}, value)]));
  dialog.querySelector('pre').textContent = `kubectl get pod ${share.pod} -n ${share.namespace} -o yaml\nkubectl aliquot explain ${share.pod} -n ${share.namespace}`;
  dialog.hidden = false;
  dialog.querySelector('button').focus();
}

/** Draws the last hour of the opened share. */
async function drawHour() {
  const { node, gpu, share } = opened;
  const figure = dialog.querySelector('figure');
  figure.hidden = true;
  const answer = await ask(`history?nodes=${encodeURIComponent(node.node)}`);
  const hour = (await answer.json())[node.node];
  if (opened?.share !== share) return;
  const found = hour?.shares?.find((one) => one.gpu === gpu.gpu && one.namespace === share.namespace && one.pod === share.pod);
  if (!found) return;
  figure.querySelector('polyline.memory').setAttribute('points', curve(found.memory, share.memory, 360, 60));
  figure.querySelector('polyline.sm').setAttribute('points', curve(found.sm, 100, 360, 60));
  figure.hidden = false;
}

function close() {
  opened = null;
  dialog.hidden = true;
  opener?.focus();
}

/** Arrow keys: only one cell of the grid is in the tab order. */
function move(event) {
  const at = event.target.closest('button');
  if (!at) return;
  const rows = [...grid.querySelectorAll('.bar')].map((one) => [...one.querySelectorAll('button')]);
  const row = rows.findIndex((cells) => cells.includes(at));
  const to = step(rows.map((cells) => cells.length), [row, rows[row].indexOf(at)], event.key);
  if (!to) return;
  event.preventDefault();
  const next = rows[to[0]][to[1]];
  focus(next);
  next.focus();
}

function focus(cell) {
  grid.querySelector('button[tabindex="0"]')?.setAttribute('tabindex', '-1');
  cell.setAttribute('tabindex', '0');
}

/** Takes the token from the address, where it would stay visible, and keeps it for this tab. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  if (!given) return;
  sessionStorage.setItem(TOKEN, given);
  history.replaceState(null, '', location.pathname);
}

function ask(path) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = { accept: 'application/json', ...(token && { [TOKEN]: token }) };
  return fetch(path, { headers, signal: AbortSignal.timeout(2 * INTERVAL) });
}

/** Asks what is used on the nodes in view, some at a time. */
async function refreshUsage() {
  const sections = [...inView];
  for (let at = 0; at < sections.length; at += MOST) {
    const some = sections.slice(at, at + MOST);
    const answer = await ask(`usage?nodes=${some.map((one) => encodeURIComponent(one.node.node)).join(',')}`);
    const words = answer.ok ? '' : `What is used cannot be shown: ${await answer.text()}`;
    find('#unmeasured').textContent = words;
    if (!answer.ok) return;
    for (const [node, found] of Object.entries(await answer.json())) usage.set(node, found);
    some.forEach(drawUsage);
  }
}

async function refresh() {
  try {
    const answer = await ask(state ? `state?since=${state.edition}` : 'state');
    access.hidden = ![401, 403].includes(answer.status);
    if (!answer.ok) throw new Error(await answer.text());
    state = merge(state, await answer.json());
    draw();
  } catch (error) {
    find('#sums').textContent = `Cannot reach the scheduler: ${error.message}; the page shows older data`;
  }
  document.body.dataset.ready = state !== null || !access.hidden;
}

form.addEventListener('input', () => state && draw());
form.addEventListener('submit', (event) => event.preventDefault());
access.addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, new FormData(access).get('token').trim());
  access.reset();
  refresh();
});
grid.addEventListener('keydown', move);
grid.addEventListener('focusin', (event) => event.target.closest('button') && focus(event.target));
dialog.querySelector('button').addEventListener('click', close);
document.addEventListener('keydown', (event) => event.key === 'Escape' && !dialog.hidden && close());
takeToken();
await refresh();
const again = () => refreshUsage().catch((error) => {
  find('#unmeasured').textContent = `What is used cannot be shown: ${error.message}`;
});
// Once the browser knows what is in view.
setTimeout(again, 300);
// A hidden page sends no requests.
setInterval(() => document.hidden || refresh().then(again), INTERVAL);
