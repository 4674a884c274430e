// The document: fetches the state, draws what changed, handles mouse and keyboard.

import { colour, counted, describe, filter, key, legend, parts, requests, step, sums, title } from './model.js';

const INTERVAL = 5000;
// The header: the API server's proxy does not pass Authorization on.
const TOKEN = 'aliquot-token';
const find = (selector) => document.querySelector(selector);
const grid = find('#nodes');
const form = find('#choices');
const access = find('#access');
const dialog = find('#share');
let state = null;
let opener = null;
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

function bar(node, gpu, chosen) {
  const cells = parts(gpu, chosen.by).map((part) => {
    if (part.kind !== 'share') {
      const cell = element('span', { class: part.kind });
      cell.title = part.kind === 'free' ? 'free' : 'allocated to processes whose pod has ended, to another device plugin, or reserved for a pending pod';
      cell.style.width = `${part.width}%`;
      return cell;
    }
    const text = describe(node, gpu, part.share);
    const cell = element('button', { type: 'button', role: 'gridcell', tabindex: '-1', 'aria-label': text }, part.share.pod);
    cell.title = text;
    cell.style.width = `${part.width}%`;
    cell.style.background = colour(key(chosen.colour, gpu, part.share), chosen.colour);
    cell.addEventListener('click', () => open(cell, node, gpu, part.share));
    return cell;
  });
  const name = element('span', { class: 'name', role: 'rowheader' }, `${gpu.index} ${gpu.model}`);
  name.title = `${title(gpu)}, ${gpu.gpu}`;
  const why = gpu.closed ? [element('span', { class: 'why' }, gpu.closed)] : [];
  const row = element('div', { class: gpu.closed ? 'gpu closed' : 'gpu', role: 'row', 'aria-label': title(gpu) });
  row.append(name, element('div', { class: 'bar' }, ...cells), ...why);
  return row;
}

function section(node, chosen) {
  const made = element('section', { class: 'node', role: 'rowgroup', 'aria-label': `node ${node.node}` });
  const heading = element('h3', {}, node.node);
  if (node.closed) heading.append(' ', element('span', { class: 'why' }, node.closed));
  made.append(heading, ...node.gpus.map((gpu) => bar(node, gpu, chosen)));
  return made;
}

/** Draws the nodes that changed, in order. */
function draw() {
  const chosen = choices();
  const shown = filter(state.nodes, chosen.only);
  const focused = document.activeElement?.getAttribute('aria-label');
  const inside = grid.contains(document.activeElement);
  const now = new Map();
  for (const node of shown) {
    const text = JSON.stringify([node, chosen.by, chosen.colour]);
    const old = drawn.get(node.node);
    now.set(node.node, old?.text === text ? old : { text, section: section(node, chosen) });
  }
  const sections = [...now.values()].map((one) => one.section);
  if (sections.length !== grid.children.length || sections.some((one, at) => grid.children[at] !== one)) {
    grid.replaceChildren(...sections);
  }
  drawn = now;
  const buttons = [...grid.querySelectorAll('button')];
  const again = inside && buttons.find((button) => button.getAttribute('aria-label') === focused);
  if (again) again.focus();
  if (!grid.querySelector('button[tabindex="0"]')) buttons[0]?.setAttribute('tabindex', '0');
  find('#legend').replaceChildren(...legend(shown, chosen.colour).slice(0, 40).map(([name, count]) => {
    const square = element('i');
    square.style.background = colour(name, chosen.colour);
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
    element('td', {}, pod.times > 0 ? counted(pod.times, 'time', 'times') : '')));
  if (state.more_waiting > 0) {
    rows.push(element('tr', {}, element('td', { colspan: '4' }, `and ${state.more_waiting} more`)));
  }
  if (rows.length === 0) rows.push(element('tr', {}, element('td', { colspan: '4' }, 'none')));
  find('#waiting tbody').replaceChildren(...rows);
}

/** Shows a share's pod. */
function open(from, node, gpu, share) {
  opener = from;
  const facts = {
    Node: node.node, GPU: `${gpu.index} ${gpu.model}`, Device: share.instance ?? gpu.gpu, Mode: gpu.mode,
    Memory: `${share.memory} MiB`, Compute: `${share.cores} %`, Replicas: `${share.seats}`,
    State: share.confirmed ? 'bound' : 'being bound', Health: gpu.closed ?? 'ok',
  };
  find('#share-title').textContent = `${share.namespace}/${share.pod}`;
  dialog.querySelector('dl').replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [
    element('dt', {}, name), element('dd', {}, value)]));
  dialog.querySelector('pre').textContent = `kubectl get pod ${share.pod} -n ${share.namespace} -o yaml\nkubectl aliquot explain ${share.pod} -n ${share.namespace}`;
  dialog.hidden = false;
  dialog.querySelector('button').focus();
}

function close() {
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

async function refresh() {
  try {
    const token = sessionStorage.getItem(TOKEN);
    const headers = { accept: 'application/json', ...(token && { [TOKEN]: token }) };
    const answer = await fetch('state', { headers, signal: AbortSignal.timeout(2 * INTERVAL) });
    access.hidden = ![401, 403].includes(answer.status);
    if (!answer.ok) throw new Error(await answer.text());
    state = await answer.json();
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
// A hidden page sends no requests.
setInterval(() => document.hidden || refresh(), INTERVAL);
