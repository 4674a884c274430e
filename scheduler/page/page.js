// The document: fetches the state, draws what changed, handles mouse and keyboard.

import {
  age, colours, counted, curve, describe, filter, groups, health, help, key, labels, largestMemory, legend, memory, merge, parts, reason,
  requests, roomiest, sorted, step, sums, title, totals, usedBy, usedOf, usedText, why,
} from './model.js';

const INTERVAL = 5000;
// How long the pointer or the focus rests on a share before it is shown.
const REST = 150;
// With more nodes than this, each is a line.
const CARDS = 24;
// As many nodes as one request may name, and of those out of view.
const MOST = 64;
const OTHERS = 32;
const HOT = 85;
// The header: the API server's proxy does not pass Authorization on.
const TOKEN = 'aliquot-token';
const find = (selector) => document.querySelector(selector);
const grid = find('#nodes');
const form = find('#choices');
const access = find('#access');
const dialog = find('#share');
const SVG = find('#logo').namespaceURI;
let state = null;
let updated = null;
// What the monitors of the nodes answered last, by node.
const usage = new Map();
const inView = new Set();
// The first of the nodes out of view that are asked next.
let turn = 0;
// The value whose shares stand out, and the node whose line is open.
let lit = null;
let expanded = null;
// The cell whose share is shown, whether it stays, and the timer until it is.
let shown = null;
let isPinned = false;
let resting = 0;
// What was drawn last for each node, so that unchanged nodes are not drawn again.
let drawn = new Map();

function element(name, attributes = {}, ...inside) {
  const made = name === 'svg' || name === 'path' ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    made.setAttribute(attribute, value);
  }
  made.append(...inside);
  return made;
}

/** Puts these elements there unless the same ones are, so that the focus stays. */
function put(selector, made) {
  const old = find(selector);
  const wanted = old.cloneNode(false);
  wanted.append(...made);
  if (old.innerHTML !== wanted.innerHTML) old.replaceChildren(...wanted.childNodes);
}

/** Bars on top of each other, of these widths in percent. */
function stack(widths) {
  return element('div', { class: 'sum', 'aria-hidden': 'true' }, ...Object.entries(widths).map(([name, percent]) => {
    const made = element('i', { class: name });
    made.style.width = `${Math.min(100, percent)}%`;
    return made;
  }));
}

function chart(lines, most, label) {
  const paths = Object.entries(lines).map(([name, values]) => element('path', { class: name, d: curve(values, most, 360, 60) }));
  return element('svg', { viewBox: '0 0 360 60', preserveAspectRatio: 'none', role: 'img', 'aria-label': label }, ...paths);
}

function copy(text) {
  return element('button', { type: 'button', class: 'copy', 'data-copy': text, 'aria-label': `Copy: ${text}` }, 'Copy');
}

function shareCell(node, gpu, share, name, look) {
  const value = key(look.colour, gpu, share);
  const classes = ['share', look.shades.get(value) ?? 'other', share.confirmed ? '' : 'binding', lit !== null && lit !== value ? 'dim' : ''];
  const profile = share.instance ? [element('span', { class: 'label' }, share.instance.split('@')[0])] : [];
  const cell = element('button', {
    type: 'button', role: 'gridcell', tabindex: '-1', class: classes.join(' ').trim(),
    'data-key': [gpu.gpu, share.namespace, share.pod, share.instance].join('/'),
  }, ...profile, element('span', { class: 'label' }, name));
  cell.shows = { node, gpu, share };
  return cell;
}

function gpuRow(node, gpu, look) {
  const names = labels(gpu);
  const cells = parts(gpu, look.by).map((part, at) => {
    const cell = part.kind === 'share' ? shareCell(node, gpu, part.share, names[at], look)
      : element('span', { class: part.kind }, element('span', { class: 'label' }, part.text ?? ''));
    if (part.kind === 'held') cell.title = 'allocated to processes whose pod has ended, to another device plugin, or reserved for a pending pod';
    cell.style.width = `${part.width}%`;
    return cell;
  });
  const lent = element('span', { class: 'lent', hidden: '' });
  const bar = element('div', { class: 'bar' }, ...cells, lent);
  if (look.common) bar.style.width = `${(100 * gpu.total.memory) / look.largest}%`;
  const icon = { ok: '●', sick: '▲', cordoned: '‖', closed: '‖' }[health(gpu)];
  const name = element('span', { class: 'name', role: 'rowheader' },
    element('span', { class: 'dot', 'aria-hidden': 'true' }, icon), element('b', {}, `${gpu.index}`), ` ${gpu.model} `, element('span', { class: 'mode' }, gpu.mode));
  name.title = gpu.gpu;
  name.shows = { node, gpu };
  const row = element('div', { class: `gpu ${health(gpu)}`, role: 'row', 'aria-label': title(gpu) }, name, bar,
    ...['mem', 'cores', 'replicas', 'heat'].map((one) => element('span', { class: one })));
  if (gpu.closed && gpu.closed !== node.closed) row.append(element('span', { class: 'why' }, why(gpu)));
  const full = gpu.used.replicas >= gpu.total.replicas;
  row.querySelector('.replicas').textContent = `${gpu.used.replicas}/${gpu.total.replicas}`;
  row.querySelector('.replicas').classList.toggle('hot', full && gpu.mode !== 'exclusive');
  Object.assign(row, { gpu, look, lent });
  return row;
}

function card(node, look) {
  const heading = element('h3', {}, node.node, ' ', element('small', {}, counted(node.gpus.length, 'GPU')));
  if (node.closed) heading.append(' ', element('small', { class: 'sick' }, node.closed));
  const made = element('section', { class: 'node card', role: 'rowgroup', 'aria-label': `node ${node.node}` },
    element('header', {}, heading, element('p', { class: 'allocated' })), element('p', { class: 'unknown' }),
    element('div', { class: 'head', 'aria-hidden': 'true' }, element('span', { class: 'name' }, 'GPU'), element('span', { class: 'mem' }, 'used/alloc./total'),
      element('span', { class: 'cores' }, 'compute'), element('span', { class: 'replicas' }, 'shares'), element('span', { class: 'heat' }, '°C, W')),
    ...node.gpus.map((gpu) => gpuRow(node, gpu, look)));
  made.node = node;
  drawUsage(made);
  return made;
}

/** A node as a line of cells, of which a click opens the card. */
function line(node, look) {
  const { by } = look;
  const percent = (used, total) => Math.round((100 * used) / Math.max(total, 1));
  const sum = (of) => node.gpus.reduce((all, gpu) => all + of(gpu), 0);
  const cells = node.gpus.map((gpu) => {
    const part = percent(gpu.used[by], gpu.total[by]);
    const is = health(gpu);
    const isDim = lit !== null && !gpu.shares.some((share) => key(look.colour, gpu, share) === lit);
    return element('span', { role: 'gridcell', class: `cell ${is} l${Math.min(5, Math.floor(part / 17))}${isDim ? ' dim' : ''}` },
      { ok: `${part}`, sick: '▲' }[is] ?? '‖');
  });
  const free = roomiest([node], 0);
  const made = element('div', { class: 'line', role: 'row', 'aria-label': `node ${node.node}` },
    element('button', { type: 'button', role: 'gridcell', tabindex: '-1', 'aria-expanded': expanded === node.node, 'data-key': node.node }, node.node),
    element('span', { class: 'cells' }, ...cells),
    element('span', {}, `${percent(sum((gpu) => gpu.used[by]), sum((gpu) => gpu.total[by]))} %`),
    element('small', {}, free ? `${memory(free.memory)} free` : 'full'));
  Object.assign(made, { node, look, cells });
  drawUsage(made);
  return made;
}

/** Writes what is used of a node into its card or line. */
function drawUsage(made) {
  const { node } = made;
  const now = usage.get(node.node);
  if (made.cells) {
    made.cells.forEach((cell, at) => {
      const gpu = node.gpus[at];
      const used = usedOf(now, gpu);
      const part = made.look.by === 'cores' ? used?.sm : used?.memory && (100 * used.memory) / gpu.total.memory;
      cell.style.setProperty('--part', Math.round(part ?? 0));
      const text = `${title(gpu)}: ${memory(gpu.used.memory)} of ${memory(gpu.total.memory)} allocated, ${used?.memory == null ? 'use not measured' : `${memory(used.memory)} used`}, ${gpu.used.replicas} of ${gpu.total.replicas} shares`;
      cell.setAttribute('aria-label', text);
      cell.title = text;
    });
    return;
  }
  const sum = (of) => node.gpus.reduce((all, gpu) => all + of(gpu), 0);
  const known = node.gpus.map((gpu) => usedOf(now, gpu)?.memory).filter((one) => one != null);
  const used = known.length > 0 ? memory(known.reduce((all, one) => all + one)) : '?';
  made.querySelector('.allocated').replaceChildren(element('b', {}, memory(sum((gpu) => gpu.used.memory))),
    element('span', { class: 'muted' }, ` of ${memory(sum((gpu) => gpu.total.memory))} allocated, `), element('b', {}, used), element('span', { class: 'muted' }, ' used'));
  made.querySelector('.unknown').textContent = now?.error ? `Use unknown: ${now.error}` : '';
  for (const row of made.querySelectorAll('.gpu')) drawRow(row, now);
}

function drawRow(row, now) {
  const { gpu, look, lent } = row;
  const used = usedOf(now, gpu);
  const gib = (mib) => (mib == null ? '–' : `${Math.round(mib / 102.4) / 10}`);
  const put = (name, text) => { row.querySelector(`.${name}`).textContent = text; };
  put('mem', `${gib(used?.memory)}/${gib(gpu.used.memory)}/${memory(gpu.total.memory)}`);
  put('cores', `${used?.sm ?? '–'}/${gpu.used.cores} %`);
  put('heat', [used?.temperature == null ? '' : `${used.temperature}°`, used?.power == null ? '' : `${used.power} W`].join(' ').trim());
  row.querySelector('.heat').classList.toggle('hot', used?.temperature >= HOT);
  let borrowed = 0;
  for (const cell of row.querySelectorAll('.share')) {
    const { node, share } = cell.shows;
    const own = usedBy(now, gpu, share);
    const part = look.by === 'cores' ? [own?.sm, share.cores] : [own?.memory, share.memory];
    cell.style.setProperty('--part', Math.min(100, (100 * (part[0] ?? 0)) / Math.max(part[1], 1)).toFixed(0));
    cell.setAttribute('aria-label', describe(node, gpu, share, own));
    if (own?.borrows && own.memory > share.memory) {
      borrowed += own.memory - share.memory;
      lent.className = `lent ${look.shades.get(key(look.colour, gpu, share)) ?? 'other'}`;
    }
  }
  lent.hidden = borrowed === 0 || look.by !== 'memory';
  lent.style.width = `${Math.min(100, (100 * borrowed) / Math.max(gpu.total.memory, 1))}%`;
}

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) inView.add(entry.target);
    else inView.delete(entry.target);
  }
});

/** Draws the nodes that changed, in order, and what is around them. */
function draw() {
  const chosen = Object.fromEntries(new FormData(form));
  const visible = sorted(filter(state.nodes, chosen.only, usage), chosen.order);
  const isDense = state.nodes.length > CARDS;
  const counts = legend(visible, chosen.colour);
  const shades = colours(counts.map(([name]) => name), chosen.colour);
  const look = { ...chosen, shades, largest: largestMemory(state.nodes) };
  const focused = grid.contains(document.activeElement) && document.activeElement.dataset.key;
  // What the drawing of every node depends on.
  const common = JSON.stringify([chosen.by, chosen.colour, chosen.common, look.largest, isDense, lit, [...shades]]);
  const now = new Map();
  for (const node of visible) {
    const isOpen = expanded === node.node;
    const text = common + isOpen + JSON.stringify(node);
    const old = drawn.get(node.node);
    const made = () => [...(isDense ? [line(node, look)] : []), ...(isDense && !isOpen ? [] : [card(node, look)])];
    now.set(node.node, old?.text === text ? old : { text, made: made() });
  }
  const all = [...now.values()].flatMap((one) => one.made);
  if (all.length !== grid.children.length || all.some((one, at) => grid.children[at] !== one)) {
    grid.replaceChildren(...all);
    watcher.disconnect();
    inView.clear();
    for (const one of all) watcher.observe(one);
  }
  drawn = now;
  grid.classList.toggle('dense', isDense);
  layout();
  const again = focused && [...grid.querySelectorAll('button')].find((button) => button.dataset.key === focused);
  if (again) quietly(() => again.focus());
  if (!grid.querySelector('button[tabindex="0"]')) grid.querySelector('button')?.setAttribute('tabindex', '0');
  put('#legend', counts.slice(0, 40).map(([name, amount]) => element('li', {},
    element('button', { type: 'button', class: 'chip', 'data-lit': name, 'aria-pressed': lit === name },
      element('i', { class: shades.get(name) ?? 'other' }), name, ' ', element('small', {}, memory(amount))))));
  const [size, more] = sums(state);
  put('#sums', [size, element('span', { class: 'unseen' }, more)]);
  trouble('leads', state.leads ? '' : 'From a replica that is not the leader: reasons may be missing.');
  drawWaiting();
  drawTotals();
}

/** As many columns as fit, at most four, and as many cards in each row. */
function layout() {
  const [least, gap] = grid.classList.contains('dense') ? [440, 24] : [430, 16];
  const fit = Math.max(1, Math.min(4, Math.floor((grid.clientWidth + gap) / (least + gap))));
  const rows = Math.max(1, Math.ceil(drawn.size / fit));
  grid.style.setProperty('--columns', gap === 24 ? fit : Math.max(1, Math.ceil(drawn.size / rows)));
}

function drawTotals() {
  const amounts = totals(state, usage);
  const hour = state.hour;
  const panel = (by, name, all, say) => {
    const { total, ...own } = amounts[by];
    const percent = (one) => (100 * own[one]) / Math.max(total, 1);
    const figures = ['used', 'allocated', 'requested'].map((one) => element('div', {}, element('span', {}, element('i', { class: one }), one),
      element('b', {}, own[one] === null ? '–' : `${Math.round(percent(one))} %`), element('small', {}, own[one] === null ? 'not measured' : say(own[one]))));
    const lines = Object.fromEntries(['requested', 'allocated', 'used'].map((one) => [one, hour.map((point) => point[one]?.[by] ?? null)]));
    const ends = [lines.allocated[0], lines.allocated.at(-1)].map((one) => say(one ?? 0));
    const last = element('div', { class: 'hour' }, chart(lines, Math.max(total, ...lines.requested), `${name} allocated: from ${ends.join(' to ')}`), 'last hour');
    const widths = { requested: percent('requested'), allocated: percent('allocated'), used: percent('used') };
    return element('div', {}, element('h2', {}, `${name} `, element('small', {}, `of ${all}`)),
      element('div', {}, element('div', { class: 'figures' }, ...figures), stack(widths)), last);
  };
  const waits = state.waiting.length + state.more_waiting;
  const since = state.waiting.map((pod) => pod.since).filter(Boolean).sort()[0];
  const waiting = hour.map((point) => point.waiting);
  const fits = roomiest(state.nodes, 0);
  put('#totals', [
    panel('memory', 'Memory', memory(amounts.memory.total), memory),
    panel('cores', 'Compute', counted(Math.round(amounts.cores.total / 100), 'GPU'), (percent) => `${(percent / 100).toFixed(1)} GPUs`),
    element('div', {}, element('h2', {}, 'Pods waiting'),
      element('div', {}, element('p', { class: waits > 0 ? 'big waits' : 'big' }, `${waits}`), element('small', {}, since ? `longest ${age(Date.parse(since), Date.now())}` : '')),
      element('div', { class: 'hour' }, chart({ used: waiting }, Math.max(...waiting, 1), `Pods waiting: from ${waiting[0] ?? waits} to ${waits}`), 'last hour')),
    element('div', {}, element('h2', {}, 'Largest share that fits now'), element('div', {}, element('p', { class: 'big' }, fits ? memory(fits.memory) : 'none'),
      element('small', {}, fits ? `and ${fits.cores} % of compute on ${fits.on}` : ''))),
  ]);
  const gpus = state.nodes.flatMap((node) => node.gpus);
  const count = (is) => gpus.filter((gpu) => health(gpu) === is).length;
  const silent = state.nodes.filter((node) => usage.get(node.node)?.error).length;
  const tags = [['sick', count('sick'), `${count('sick')} sick`], ['cordoned', count('cordoned'), `${count('cordoned')} cordoned`],
    ['not measured', silent, `${counted(silent, 'node')} not measured`]];
  put('#tags', tags.filter(([, many]) => many > 0).map(([only, , text]) => element('button', {
    type: 'button', class: `tag ${only}`, 'data-only': only, 'aria-pressed': form.elements.only.value === only }, text)));
}

function drawWaiting() {
  const waits = state.waiting.length + state.more_waiting;
  find('#waiting').hidden = waits === 0;
  find('#waiting-title').textContent = `${counted(waits, 'pod')} wait${waits === 1 ? 's' : ''} for a GPU`;
  const rows = groups(state.waiting).map((pod) => {
    const name = element('td', {}, `${pod.namespace}/`, element('b', {}, pod.count > 1 ? `${pod.pod} … ${pod.last}` : pod.pod), pod.count > 1 ? ` · ${counted(pod.count, 'pod')}` : '');
    const because = element('td', {}, reason(pod.text));
    because.title = pod.text === null ? '' : `${pod.text} (refused ${counted(pod.times, 'time')})`;
    return element('tr', {}, name, element('td', {}, requests(pod)), element('td', {}, pod.since ? age(Date.parse(pod.since), Date.now()) : ''), because,
      element('td', {}, help(pod, state.nodes)), element('td', {}, copy(`kubectl aliquot explain ${pod.pod} -n ${pod.namespace}`)));
  });
  if (state.more_waiting > 0) {
    rows.push(element('tr', {}, element('td', { colspan: '6' }, `and ${state.more_waiting} more`)));
  }
  put('#waiting tbody', rows);
  find('#quotas').hidden = state.quotas.length === 0;
  const say = { memory, cores: (percent) => `${percent} % of compute` };
  put('#quotas ul', state.quotas.map((one) => element('li', {}, element('span', {}, `${one.namespace} `, element('small', {}, one.quota)),
    element('span', {}, `${one.used === null ? 'unknown' : say[one.resource](one.used)} of ${say[one.resource](one.limit)}`),
    stack({ used: (100 * (one.used ?? 0)) / Math.max(one.limit, 1) }))));
}

/** What is said about the page's data itself. */
const troubles = {};
function trouble(of, text) {
  troubles[of] = text;
  const words = Object.values(troubles).filter(Boolean).join(' ');
  if (find('#trouble').textContent !== words) find('#trouble').textContent = words;
  find('#trouble').hidden = words === '';
}

/** Shows the share of a cell, or the shares of a GPU; a pinned one stays, with its last hour. */
function show(cell, pin) {
  const { node, gpu, share } = cell.shows;
  shown = cell;
  isPinned = pin;
  find('#share-title').textContent = share ? `${share.namespace}/${share.pod}` : title(gpu);
  const on = element('p', { class: 'muted' }, `GPU ${gpu.index} of ${node.node} · ${gpu.model} · ${gpu.mode}`);
  dialog.querySelector('div').replaceChildren(on, ...(share ? facts(node, gpu, share) : [list(node, gpu)]));
  dialog.querySelector('figure').hidden = true;
  dialog.hidden = false;
  place();
  if (!pin) return;
  if (share) drawHour().catch(() => {});
  dialog.querySelector('button').focus();
}

function facts(node, gpu, share) {
  const now = usedBy(usage.get(node.node), gpu, share);
  const lines = {
    Memory: `${memory(share.memory)} of ${memory(gpu.total.memory)}`, Compute: `${share.cores} % of the GPU`, Replicas: `${share.replicas} of ${gpu.total.replicas}`,
    Used: usedText(now, share), Device: share.instance ?? gpu.gpu, State: share.confirmed ? 'bound' : 'being bound', Health: gpu.closed ? why(gpu) : 'ok',
  };
  const commands = [`kubectl get pod ${share.pod} -n ${share.namespace} -o yaml`, `kubectl aliquot explain ${share.pod} -n ${share.namespace}`];
  return [element('dl', {}, ...Object.entries(lines).flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)])),
    ...commands.map((command) => element('div', { class: 'command' }, element('code', {}, command), copy(command)))];
}

function list(node, gpu) {
  const names = gpu.shares.map((share) => {
    const made = element('button', { type: 'button' }, `${share.namespace}/${share.pod} `, element('small', {}, memory(share.memory)));
    made.shows = { node, gpu, share };
    return made;
  });
  return element('div', { class: 'list' }, ...(names.length > 0 ? names : ['no share']));
}

/** Beside the cell that it shows, inside the window. */
function place() {
  const at = shown.getBoundingClientRect();
  const { width, height } = dialog.getBoundingClientRect();
  const top = at.bottom + height + 6 < innerHeight ? at.bottom + 6 : at.top - height - 6;
  dialog.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
  dialog.style.top = `${Math.max(8, top)}px`;
}

/** Draws the last hour of the opened share. */
async function drawHour() {
  const cell = shown;
  const { node, gpu, share } = cell.shows;
  const answer = await ask(`history?nodes=${encodeURIComponent(node.node)}`);
  const hour = (await answer.json())[node.node];
  const found = hour?.shares?.find((one) => one.gpu === gpu.gpu && one.namespace === share.namespace && one.pod === share.pod);
  if (shown !== cell || !isPinned || !found?.memory.length) return;
  const figure = dialog.querySelector('figure');
  const most = Math.max(share.memory, ...found.memory);
  const now = usedText({ memory: found.memory.at(-1), sm: found.sm.at(-1) }, share);
  figure.replaceChildren(chart({ memory: found.memory.map((one) => one && (100 * one) / most), sm: found.sm }, 100, `memory and SM in the last hour, now ${now}`),
    `Last hour: memory (line) of ${memory(most)}, SM (dashed) of the GPU`);
  figure.hidden = false;
  place();
}

function close() {
  const opener = shown;
  if (!isPinned) {
    dialog.hidden = true;
    return;
  }
  shown = null;
  isPinned = false;
  dialog.hidden = true;
  const again = opener.isConnected ? opener : [...grid.querySelectorAll('button')].find((one) => one.dataset.key === opener.dataset.key);
  quietly(() => again?.focus());
}

/** Moves the focus without showing what gets it. */
let isQuiet = false;
function quietly(act) {
  isQuiet = true;
  act();
  isQuiet = false;
}

/** Shows what the pointer or the focus rests on, or hides it. */
function rest(event) {
  if (isPinned || isQuiet) return;
  clearTimeout(resting);
  const cell = event.target.closest('.share');
  if (cell) resting = setTimeout(() => cell.isConnected && !isPinned && show(cell, false), REST);
  else dialog.hidden = true;
}

function leave() {
  clearTimeout(resting);
  if (!isPinned) dialog.hidden = true;
}

/** Arrow keys: only one cell of the grid is in the tab order. */
function move(event) {
  const at = event.target.closest('button');
  if (!at) return;
  const rows = [...grid.querySelectorAll('[role="row"]')].map((one) => [...one.querySelectorAll('button')]);
  const row = rows.findIndex((cells) => cells.includes(at));
  const to = step(rows.map((cells) => cells.length), [row, rows[row].indexOf(at)], event.key);
  if (!to) return;
  event.preventDefault();
  rows[to[0]][to[1]].focus();
}

function clicked(event) {
  const { target } = event;
  const cell = [target.closest('.share'), target.closest('.name'), target.closest('.list button')].find((one) => one?.shows);
  if (cell) {
    clearTimeout(resting);
    show(cell, true);
    return;
  }
  const at = target.closest('[data-only], [data-lit], [data-copy], .line');
  if (!at) return;
  const { only, lit: value, copy: text } = at.dataset;
  if (text !== undefined) {
    navigator.clipboard?.writeText(text);
    return;
  }
  if (only !== undefined) form.elements.only.value = form.elements.only.value === only ? '' : only;
  else if (value !== undefined) lit = lit === value ? null : value;
  else expanded = expanded === at.node.node ? null : at.node.node;
  draw();
}

function pressed(event) {
  if (event.key === 'Escape' && !dialog.hidden) close();
  else if (event.key === '/' && !event.target.matches('input')) {
    event.preventDefault();
    form.elements.only.focus();
  }
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

/** Asks what is used on the nodes in view, and on some others in turn for the totals. */
async function refreshUsage() {
  const wanted = new Set([...inView].map((one) => one.node.node));
  const others = state.nodes.map((node) => node.node).filter((name) => !wanted.has(name));
  turn = turn < others.length ? turn : 0;
  others.slice(turn, turn + OTHERS).forEach((name) => wanted.add(name));
  turn += OTHERS;
  const names = [...wanted];
  for (let at = 0; at < names.length; at += MOST) {
    const answer = await ask(`usage?nodes=${names.slice(at, at + MOST).map(encodeURIComponent).join(',')}`);
    trouble('usage', answer.ok ? '' : `What is used cannot be shown: ${await answer.text()}`);
    if (!answer.ok) return;
    for (const [node, found] of Object.entries(await answer.json())) usage.set(node, found);
  }
  [...grid.children].filter((one) => wanted.has(one.node.node)).forEach(drawUsage);
  drawTotals();
}

async function refresh() {
  try {
    const answer = await ask(state ? `state?since=${state.edition}` : 'state');
    access.hidden = ![401, 403].includes(answer.status);
    if (!answer.ok) throw new Error(await answer.text());
    state = merge(state, await answer.json());
    const known = new Set(state.nodes.map((node) => node.node));
    [...usage.keys()].filter((name) => !known.has(name)).forEach((name) => usage.delete(name));
    updated = Date.now();
    trouble('state', '');
    draw();
  } catch (error) {
    trouble('state', `Cannot reach the scheduler: ${error.message}; the page shows older data.`);
  }
  document.body.dataset.ready = state !== null || !access.hidden;
}

form.addEventListener('input', (event) => {
  if (event.target.name === 'colour') lit = null;
  if (state) draw();
});
form.addEventListener('submit', (event) => event.preventDefault());
access.addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, new FormData(access).get('token').trim());
  access.reset();
  refresh();
});
grid.addEventListener('keydown', move);
grid.addEventListener('focusin', (event) => {
  grid.querySelector('button[tabindex="0"]')?.setAttribute('tabindex', '-1');
  event.target.setAttribute('tabindex', '0');
});
grid.addEventListener('focusin', rest);
grid.addEventListener('focusout', leave);
grid.addEventListener('pointerover', rest);
grid.addEventListener('pointerleave', leave);
dialog.querySelector('button').addEventListener('click', close);
document.addEventListener('click', clicked);
document.addEventListener('keydown', pressed);
new ResizeObserver(layout).observe(grid);
takeToken();
await refresh();
const again = () => state && refreshUsage().catch((error) => trouble('usage', `What is used cannot be shown: ${error.message}`));
// Once the browser knows what is in view.
setTimeout(again, 300);
// A hidden page sends no requests.
setInterval(() => document.hidden || refresh().then(again), INTERVAL);
setInterval(() => {
  if (updated === null) return;
  find('#fresh').textContent = `updated ${age(updated, Date.now())} ago`;
  find('#fresh').classList.toggle('late', Date.now() - updated > 3 * INTERVAL);
}, 1000);
