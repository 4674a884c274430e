// What the page shows, as values, without the document, the clock or requests.

/** The state after an answer of the scheduler, which has only what changed; unchanged nodes stay the same objects. */
export function merge(state, answer) {
  const nodes = new Map(answer.all ? [] : state.nodes.map((node) => [node.node, node]));
  for (const name of answer.gone) nodes.delete(name);
  for (const node of answer.nodes) nodes.set(node.node, node);
  const sorted = [...nodes.values()].sort((a, b) => (a.node < b.node ? -1 : 1));
  return { ...state, ...answer.rest, edition: answer.edition, nodes: sorted };
}

const units = { memory: 'MiB', cores: '% of compute', replicas: 'replicas' };

/** The parts of a GPU's bar in percent of its width: shares, what else is allocated, what is free. */
export function parts(gpu, by) {
  const total = gpu.total[by];
  const percent = (amount) => (total > 0 ? (100 * amount) / total : 0);
  const made = gpu.shares.map((share) => ({ kind: 'share', share, width: percent(share[by]) }));
  const rest = gpu.used[by] - gpu.shares.reduce((sum, share) => sum + share[by], 0);
  if (rest > 0) {
    made.push({ kind: 'reserved', width: percent(rest) });
  }
  const used = made.reduce((sum, part) => sum + part.width, 0);
  // More than 100 % is allocated after the scaling was lowered: all of it must be visible.
  if (used > 100) {
    return made.map((part) => ({ ...part, width: (100 * part.width) / used }));
  }
  return used < 100 ? [...made, { kind: 'free', width: 100 - used }] : made;
}

/** A share as text, for screen readers. */
export function describe(node, gpu, share) {
  const amounts = Object.keys(units).map((by) => `${share[by]} of ${gpu.total[by]} ${units[by]}`);
  const on = `GPU ${gpu.index} of ${node.node}`;
  const state = share.confirmed ? '' : ', being bound';
  return `${share.namespace}/${share.pod}: ${amounts.join(', ')}, on ${on}${state}`;
}

/** A GPU as text: what it is, and why it takes no new pods. */
export function title(gpu) {
  return `GPU ${gpu.index}, ${gpu.model}, ${gpu.mode}${gpu.closed ? `, closed: ${gpu.closed}` : ''}`;
}

/** How wide a GPU's bar is, in percent: in proportion to the memory of the largest, but never too narrow to read. */
export function barWidth(gpu, largest) {
  return Math.max(20, (100 * gpu.total.memory) / largest);
}

/** The memory of the largest GPU. */
export function largestMemory(nodes) {
  return nodes.reduce((most, node) => node.gpus.reduce((m, gpu) => Math.max(m, gpu.total.memory), most), 1);
}

/** Short names of a GPU's shares that can be told apart: without the words that all of them begin with. */
export function labels(gpu) {
  const names = gpu.shares.map((share) => share.pod);
  const words = names.map((name) => name.split('-'));
  let same = 0;
  while (names.length > 1 && words.every((one) => one.length > same + 1 && one[same] === words[0][same])) same += 1;
  return words.map((one) => (same > 0 ? '…' : '') + one.slice(same).join('-'));
}

/** What a share uses, of all containers of its pod together; `null` where it is not measured. */
export function usedBy(usage, gpu, share) {
  const instance = gpu.instances?.find((one) => `${one.profile}@${one.start}` === share.instance);
  const own = (usage?.shares ?? []).filter((one) => one.gpu === gpu.gpu && one.namespace === share.namespace
    && one.pod === share.pod && (!instance?.uuid || one.device === instance.uuid));
  if (own.length === 0) return null;
  const sum = (of) => (own.some((one) => one[of] === null) ? null : own.reduce((all, one) => all + one[of], 0));
  const borrows = own.some((one) => one.request !== undefined);
  return { memory: sum('memory'), sm: sum('sm'), throttled: sum('throttled'), borrows };
}

/** What a GPU uses, as a line; empty where it is not measured. */
export function measured(usage, gpu) {
  const found = usage?.gpus?.find((one) => one.gpu === gpu.gpu);
  const figure = (value, unit) => (value === null || value === undefined ? [] : [`${value}${unit}`]);
  if (!found) return '';
  return [...figure(found.memory, ' MiB used'), ...figure(found.sm, ' % SM'), ...figure(found.temperature, ' °C'),
    ...figure(found.power, ' W')].join(' · ');
}

/** What a share uses, as a line. A share that may use more than it requested can be above its request. */
export function usedText(used, share) {
  if (!used) return 'not measured';
  const figure = (value, text) => (value === null ? 'unknown' : text(value));
  const waits = used.throttled ? `, throttled ${used.throttled} % of the time` : '';
  const requested = used.borrows ? ' requested' : '';
  return `${figure(used.memory, (mib) => `${mib} of ${share.memory} MiB${requested}`)}, ${figure(used.sm, (sm) => `${sm} % SM`)}${waits}`;
}

/** The points of a line through an hour's values in a picture of this size; the newest value is at the right. */
export function curve(values, most, width, height) {
  const x = (at) => width * (1 - (values.length - 1 - at) / 119);
  const y = (value) => height * (1 - Math.min(value / Math.max(most, 1), 1));
  const points = values.flatMap((value, at) => (value === null ? [] : [`${x(at).toFixed(1)},${y(value).toFixed(1)}`]));
  return points.join(' ');
}

/** What would let a pending pod run: the most memory that a GPU has free beside that much compute. */
export function help(pod, nodes) {
  const ask = pod.requests.find((one) => one.stage === 'app') ?? pod.requests[0];
  const wanted = Number(/^(\d+) MiB$/.exec(ask?.memory ?? '')?.[1]);
  if (!wanted) return '';
  let best = null;
  let largest = 0;
  for (const node of nodes) {
    for (const gpu of node.gpus.filter((one) => !one.closed && !node.closed && one.mode !== 'mig')) {
      largest = Math.max(largest, gpu.total.memory);
      const free = (of) => gpu.total[of] - gpu.used[of];
      if (free('replicas') < 1 || free('cores') < ask.cores) continue;
      if (free('memory') > (best?.free ?? 0)) best = { free: free('memory'), on: `GPU ${gpu.index} of ${node.node}` };
    }
  }
  if (wanted > largest) return `No open GPU has ${wanted} MiB; the largest has ${largest} MiB.`;
  if (!best) return `No GPU has ${ask.cores} % of compute and a replica free: request less compute, or end a pod.`;
  if (best.free < wanted) return `A request of at most ${best.free} MiB fits now (${best.on}).`;
  return `Memory is free on ${best.on}: something else is missing, see the reason.`;
}

/** The value by which a share is coloured. */
export function key(colour, gpu, share) {
  if (colour === 'mode') return gpu.mode;
  if (colour === 'health') return gpu.closed ?? 'ok';
  return share.namespace;
}

const fixed = {
  ok: 'hsl(130 45% 65%)',
  vgpu: 'hsl(210 60% 70%)',
  exclusive: 'hsl(280 45% 72%)',
  timeslice: 'hsl(40 75% 65%)',
  mps: 'hsl(165 45% 62%)',
  mig: 'hsl(330 55% 74%)',
};

const HUES = 12;

/** A colour for each text. The same text has the same one in every session, unless another one took it: as long
 * as there are colours, no two texts share one. */
export function colours(texts, by) {
  const slots = new Map();
  const all = 2 * HUES;
  const made = new Map();
  for (const text of [...new Set(texts)].sort()) {
    if (by === 'mode' && fixed[text]) made.set(text, fixed[text]);
    else if (by === 'health') made.set(text, text === 'ok' ? fixed.ok : 'hsl(5 75% 68%)');
    else {
      let hash = 2166136261;
      for (const letter of text) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619) >>> 0;
      let slot = hash % all;
      for (let tries = 0; slots.has(slot) && tries < all; tries += 1) slot = (slot + 1) % all;
      slots.set(slot, text);
      // Light and dark ones of each hue, all readable under black text.
      made.set(text, `hsl(${(slot % HUES) * (360 / HUES)} ${slot < HUES ? '60% 78%' : '55% 58%'})`);
    }
  }
  return made;
}

/** The nodes that match the text; GPUs that do not match are left out. */
export function filter(nodes, pattern) {
  const text = pattern.trim().toLowerCase();
  if (text === '') return nodes;
  const has = (...texts) => texts.some((one) => one.toLowerCase().includes(text));
  const matching = (node) => (has(node.node) ? node.gpus : node.gpus.filter((gpu) => has(gpu.model, gpu.gpu)
    || gpu.shares.some((share) => has(share.namespace, `${share.namespace}/${share.pod}`))));
  return nodes.map((node) => ({ ...node, gpus: matching(node) })).filter((node) => node.gpus.length > 0);
}

/** A count with its noun: `1 node`, `2 nodes`. */
export function counted(number, one, several) {
  return `${number} ${number === 1 ? one : several}`;
}

/** The cluster in one line. */
export function sums(state) {
  const gpus = state.nodes.flatMap((node) => node.gpus);
  const sum = (of) => gpus.reduce((all, gpu) => all + of(gpu), 0);
  const [used, total] = [sum((gpu) => gpu.used.memory), sum((gpu) => gpu.total.memory)];
  const percent = total > 0 ? Math.round((100 * used) / total) : 0;
  const closed = gpus.filter((gpu) => gpu.closed).length;
  const waits = state.waiting.length + state.more_waiting;
  const leads = state.leads ? '' : ' (from a replica that is not the leader: reasons may be missing)';
  const [nodes, all] = [counted(state.nodes.length, 'node', 'nodes'), counted(gpus.length, 'GPU', 'GPUs')];
  return `${nodes}, ${all}, ${closed} closed, ${percent} % of memory allocated, ${counted(waits, 'pod', 'pods')} pending${leads}`;
}

/** The values behind the colours with their counts, most frequent first. */
export function legend(nodes, by) {
  const counts = new Map();
  for (const node of nodes) {
    for (const gpu of node.gpus) {
      for (const share of gpu.shares) {
        const name = key(by, gpu, share);
        counts.set(name, (counts.get(name) ?? 0) + 1);
      }
    }
  }
  return [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

/** What the containers of a pending pod request. */
export function requests(pod) {
  const requests = pod.requests.map((ask) => `${ask.container}: ${ask.count} × (${ask.memory}, ${ask.cores} % of compute)`);
  return requests.join('; ') + (pod.annotated ? ' (in annotation aliquot.dev/request)' : '');
}

/** Where an arrow key leads in a grid of rows; `[row, cell]`. */
export function step(rows, [row, cell], pressed) {
  const last = (at) => Math.max(0, rows[at] - 1);
  switch (pressed) {
    case 'ArrowRight': return cell < last(row) ? [row, cell + 1] : next(rows, row, 1, () => 0) ?? [row, cell];
    case 'ArrowLeft': return cell > 0 ? [row, cell - 1] : next(rows, row, -1, last) ?? [row, cell];
    case 'ArrowDown': return next(rows, row, 1, (at) => Math.min(cell, last(at))) ?? [row, cell];
    case 'ArrowUp': return next(rows, row, -1, (at) => Math.min(cell, last(at))) ?? [row, cell];
    case 'Home': return [row, 0];
    case 'End': return [row, last(row)];
    default: return null;
  }
}

/** The next row with a share. */
function next(rows, row, by, cell) {
  for (let at = row + by; at >= 0 && at < rows.length; at += by) {
    if (rows[at] > 0) return [at, cell(at)];
  }
  return null;
}
