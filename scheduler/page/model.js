// What the page shows, as values, without the document, the clock or requests.

const sum = (all, of) => all.reduce((total, one) => total + of(one), 0);

/** The state after an answer of the scheduler, which has only what changed; unchanged nodes stay the same objects. */
export function merge(state, answer) {
  const nodes = new Map(answer.all ? [] : state.nodes.map((node) => [node.node, node]));
  for (const name of answer.gone) nodes.delete(name);
  for (const node of answer.nodes) nodes.set(node.node, node);
  const sorted = [...nodes.values()].sort((a, b) => (a.node < b.node ? -1 : 1));
  return { ...state, ...answer.rest, edition: answer.edition, nodes: sorted };
}

/** A count with its noun: `1 node`, `2 nodes`. */
export function counted(number, noun) {
  return `${number.toLocaleString('en')} ${noun}${number === 1 ? '' : 's'}`;
}

/** Memory, rounded down: what is said to fit must fit. */
export function memory(mib) {
  const gib = mib / 1024;
  if (gib < 1) return `${mib} MiB`;
  return gib < 1024 ? `${gib < 100 ? Math.floor(gib * 10) / 10 : Math.floor(gib)} GiB` : `${(gib / 1024).toFixed(2)} TiB`;
}

const AGES = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];

/** How long it has been, in the largest unit. */
export function age(since, now) {
  const seconds = Math.max(1, Math.round((now - since) / 1000));
  const [unit, length] = AGES.find(([, least]) => seconds >= least);
  return `${Math.floor(seconds / length)} ${unit}`;
}

const FREE = { memory: (amount) => `${memory(amount)} free`, cores: (amount) => `${amount} % free`, replicas: (amount) => `${amount} free` };

/** The parts of a GPU's bar, with their widths in percent: shares, what no pod holds, idle MIG instances, what is free. */
export function parts(gpu, by) {
  const made = gpu.shares.map((share) => ({ kind: 'share', share, amount: share[by] }));
  const held = gpu.used[by] - sum(made, (one) => one.amount);
  if (held > 0) made.push({ kind: 'held', amount: held });
  for (const one of by === 'memory' && gpu.mode === 'mig' ? gpu.instances ?? [] : []) {
    const amount = 1024 * (/(\d+)gb/.exec(one.profile)?.[1] ?? 0);
    if (!one.allocated) made.push({ kind: 'idle', text: one.profile, amount });
  }
  const all = sum(made, (one) => one.amount);
  const free = gpu.total[by] - all;
  if (free > 0) made.push({ kind: 'free', text: gpu.closed ? '' : FREE[by](free), amount: free });
  // More than there is may be allocated after the scaling was lowered: all of it must be visible.
  return made.map((one) => ({ ...one, width: (100 * one.amount) / Math.max(gpu.total[by], all, 1) }));
}

const UNITS = { memory: 'MiB', cores: '% of compute', replicas: 'replicas' };

/** A share as text, for screen readers. */
export function describe(node, gpu, share, used) {
  const amounts = Object.keys(UNITS).map((by) => `${share[by]} of ${gpu.total[by]} ${UNITS[by]}`);
  const state = share.confirmed ? '' : ', being bound';
  return `${share.namespace}/${share.pod}: ${amounts.join(', ')}; used: ${usedText(used, share)}; on GPU ${gpu.index} of ${node.node}${state}`;
}

/** A GPU as text: what it is, and why it takes no new pods. */
export function title(gpu) {
  const why = [gpu.closed, gpu.why].filter(Boolean).join(', ');
  return `GPU ${gpu.index}, ${gpu.model}, ${gpu.mode}${gpu.closed ? `, closed: ${why}` : ''}`;
}

/** Whether a GPU takes new pods. */
export function health(gpu) {
  return { CardNotHealth: 'sick', CardCordoned: 'cordoned' }[gpu.closed] ?? (gpu.closed ? 'closed' : 'ok');
}

/** Why it takes none, as a line. */
export function why(gpu) {
  const still = gpu.shares.length > 0 ? `, ${gpu.shares.length} still on it` : '';
  return `${health(gpu)} · ${gpu.why ?? gpu.closed} · no new pods${still}`;
}

/** The memory of the largest GPU. */
export function largestMemory(nodes) {
  return nodes.reduce((most, node) => node.gpus.reduce((m, gpu) => Math.max(m, gpu.total.memory), most), 1);
}

// The letters of generated suffixes: no vowels, and no digits that look like one.
const SUFFIX = /(-[bcdfghjklmnpqrstvwxz2456789]{6,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$/;

/** Names of a GPU's shares that can be told apart, without what a controller generated: `web` of `web-7d4b9c6f5d-x2x9q`. */
export function labels(gpu) {
  const names = gpu.shares.map((share) => share.pod.replace(SUFFIX, ''));
  const twin = (name) => names.indexOf(name) !== names.lastIndexOf(name);
  return gpu.shares.map((share, at) => names[at] + (twin(names[at]) && names[at] !== share.pod ? ` ${share.pod.slice(-5)}` : ''));
}

/** What a share uses, of all containers of its pod together; `null` where it is not measured. */
export function usedBy(usage, gpu, share) {
  const instance = gpu.instances?.find((one) => `${one.profile}@${one.start}` === share.instance);
  const own = (usage?.shares ?? []).filter((one) => one.gpu === gpu.gpu && one.namespace === share.namespace
    && one.pod === share.pod && (!instance?.uuid || one.device === instance.uuid));
  if (own.length === 0) return null;
  const total = (of) => (own.some((one) => one[of] === null) ? null : sum(own, (one) => one[of]));
  const borrows = own.some((one) => one.request !== undefined);
  return { memory: total('memory'), sm: total('sm'), throttled: total('throttled'), borrows };
}

/** What all processes use of a GPU; `undefined` where it is not measured. */
export function usedOf(usage, gpu) {
  return usage?.gpus?.find((one) => one.gpu === gpu.gpu);
}

/** What a share uses, as a line. A share that may use more than it requested can be above its request. */
export function usedText(used, share) {
  if (!used) return 'not measured';
  const figure = (value, text) => (value === null ? 'unknown' : text(value));
  const waits = used.throttled ? `, throttled ${used.throttled} % of the time` : '';
  const requested = used.borrows ? ' requested' : '';
  return `${figure(used.memory, (mib) => `${mib} of ${share.memory} MiB${requested}`)}, ${figure(used.sm, (sm) => `${sm} % SM`)}${waits}`;
}

/** The path through an hour's values in a picture of this size, with gaps where one is missing; the newest is at the right. */
export function curve(values, most, width, height) {
  const x = (at) => (width * (1 - (values.length - 1 - at) / 119)).toFixed(1);
  const y = (value) => (height * (1 - Math.min(value / Math.max(most, 1), 1))).toFixed(1);
  return values.map((value, at) => (value == null ? '' : `${values[at - 1] == null ? 'M' : 'L'}${x(at)},${y(value)}`)).join('');
}

/** The open GPU with the most memory free beside this compute: `amount` is that in the unit, `MiB` or `%` of the GPU's own. */
export function roomiest(nodes, cores, unit = 'MiB') {
  let best = null;
  for (const node of nodes) {
    for (const gpu of node.gpus.filter((one) => !one.closed && !node.closed && one.mode !== 'mig')) {
      const free = (of) => gpu.total[of] - gpu.used[of];
      // The most percent that fit: a percentage of the memory is rounded down.
      const amount = unit === 'MiB' ? free('memory') : Math.min(100, Math.ceil((100 * (free('memory') + 1)) / gpu.total.memory) - 1);
      if (free('replicas') < 1 || free('cores') < cores || amount <= (best?.amount ?? 0)) continue;
      best = { amount, memory: free('memory'), cores: free('cores'), on: `GPU ${gpu.index} of ${node.node}` };
    }
  }
  return best;
}

/** What would let a pending pod run. */
export function help(pod, nodes) {
  const ask = pod.requests.find((one) => one.stage === 'app') ?? pod.requests[0];
  const [, wanted, unit] = /^(\d+) (MiB|%)$/.exec(ask?.memory ?? '') ?? [];
  if (!wanted) return '';
  const best = roomiest(nodes, ask.cores, unit);
  if (!best) return `No GPU has ${ask.cores} % of compute and a replica free: ask for less compute, or end a pod.`;
  const fits = best.amount >= Number(wanted);
  if (fits && pod.text === null) return 'Nothing to do: the scheduler tries it next.';
  if (fits) return `Memory is free on ${best.on}: something else is missing, see why.`;
  if (unit === '%') return `Ask for at most ${best.amount} % of a GPU's memory (gpumem-percentage: ${best.amount}) now, on ${best.on}.`;
  const open = nodes.map((node) => ({ gpus: node.gpus.filter((gpu) => !gpu.closed) }));
  const largest = largestMemory(open);
  const later = largest > best.memory ? `, or ${memory(largest)} when a GPU is empty` : '';
  return `Ask for at most ${memory(best.memory)} (gpumem: ${best.memory}) now, on ${best.on}${wanted > largest ? later : ''}.`;
}

const REASONS = {
  CardNotHealth: 'sick', CardCordoned: 'cordoned', CardTypeMismatch: 'of another model or mode', CardTimeSlicingExhausted: 'without a free replica',
  CardInsufficientMemory: 'with too little memory free', CardInsufficientCore: 'with too little compute free',
  CardComputeUnitsExhausted: 'without compute left', ExclusiveDeviceAllocateConflict: 'shared or exclusively used',
  NodeNotRegistered: 'without GPUs of Aliquot', NodeInsufficientDevice: 'with too few GPUs',
};

/** The scheduler's reason with words in place of names that have some. */
export function reason(text) {
  return text === null ? 'not tried yet' : text.replace(/\b(?:Card|Node|Exclusive)\w+/g, (name) => REASONS[name] ?? name);
}

/** Pending pods, the longest waiting first; those that differ only in their number are one line. */
export function groups(waiting) {
  const made = new Map();
  for (const pod of waiting) {
    const base = pod.pod.replace(SUFFIX, '').replace(/-\d+$/, '');
    const same = JSON.stringify([pod.namespace, base, pod.requests, pod.annotated, pod.text]);
    const group = made.get(same) ?? { ...pod, count: 0 };
    made.set(same, { ...group, last: pod.pod, count: group.count + 1, since: [group.since, pod.since].filter(Boolean).sort()[0] });
  }
  return [...made.values()].sort((a, b) => ((a.since ?? '~') < (b.since ?? '~') ? -1 : 1));
}

/** What the containers of a pending pod request. */
export function requests(pod) {
  const asks = pod.requests.map((ask) => {
    const mib = /^(\d+) MiB$/.exec(ask.memory)?.[1];
    const amounts = `${mib ? memory(Number(mib)) : ask.memory}, ${ask.cores > 0 ? `${ask.cores} %` : 'any compute'}`;
    return `${pod.requests.length > 1 ? `${ask.container}: ` : ''}${ask.count > 1 ? `${ask.count} × ` : ''}${amounts}`;
  });
  return asks.join('; ') + (pod.annotated ? ' (in annotation aliquot.dev/request)' : '');
}

/** The value by which a share is coloured. */
export function key(colour, gpu, share) {
  if (colour === 'mode') return gpu.mode;
  return colour === 'health' ? health(gpu) : share.namespace;
}

const HUES = 7;
const FIXED = { vgpu: 'c0', exclusive: 'c1', mps: 'c2', mig: 'c3', timeslice: 'c4', ok: 'c2', sick: 'sick', cordoned: 'c1' };

/** A colour's class for each text, of those with most first; the text has the same one in every session, unless another
 * took it. Beyond seven texts, all are grey. */
export function colours(texts, by) {
  const made = new Map();
  const taken = new Set();
  for (const text of texts.slice(0, HUES).sort()) {
    let slot = 2166136261;
    for (const letter of text) slot = Math.imul(slot ^ letter.codePointAt(0), 16777619) >>> 0;
    do slot = (slot + 1) % HUES; while (taken.has(slot));
    taken.add(slot);
    made.set(text, by === 'namespace' ? `c${slot}` : FIXED[text] ?? 'other');
  }
  return made;
}

/** The values behind the colours with their memory, the most first. */
export function legend(nodes, by) {
  const amounts = new Map();
  for (const gpu of nodes.flatMap((node) => node.gpus)) {
    for (const share of gpu.shares) {
      const name = key(by, gpu, share);
      amounts.set(name, (amounts.get(name) ?? 0) + share.memory);
    }
  }
  return [...amounts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

/** The nodes that match the text, of which `not measured` means those without usage; GPUs that do not match are left out. */
export function filter(nodes, pattern, usage) {
  const text = pattern.trim().toLowerCase();
  if (text === '') return nodes;
  const has = (...texts) => texts.some((one) => one.toLowerCase().includes(text));
  const matching = (node) => (has(node.node, usage.get(node.node)?.error ? 'not measured' : '') ? node.gpus : node.gpus.filter((gpu) =>
    has(gpu.model, gpu.gpu, health(gpu)) || gpu.shares.some((share) => has(`${share.namespace}/${share.pod}`))));
  return nodes.map((node) => ({ ...node, gpus: matching(node) })).filter((node) => node.gpus.length > 0);
}

const part = (node, by) => sum(node.gpus, (gpu) => gpu.used[by]) / Math.max(1, sum(node.gpus, (gpu) => gpu.total[by]));

/** The nodes in this order: by name, or those with the most or least allocated first. */
export function sorted(nodes, order) {
  if (order === 'name') return nodes;
  return [...nodes].sort((a, b) => (part(b, 'memory') - part(a, 'memory')) * (order === 'free' ? -1 : 1));
}

/** What is allocated, requested and used of the cluster; used is `null` where nothing is measured. */
export function totals(state, usage) {
  const all = state.nodes.flatMap((node) => node.gpus.map((gpu) => [gpu, usedOf(usage.get(node.node), gpu)]));
  const of = (by, measured) => {
    const known = all.filter(([, used]) => used?.[measured] != null);
    const allocated = sum(all, ([gpu]) => gpu.used[by]);
    return {
      total: sum(all, ([gpu]) => gpu.total[by]), allocated, requested: allocated + state.asked[by],
      used: known.length > 0 ? sum(known, ([, used]) => used[measured]) : null,
    };
  };
  return { memory: of('memory', 'memory'), cores: of('cores', 'sm') };
}

/** The cluster in words: the first part is visible, all of it is announced when it changes. */
export function sums(state) {
  const gpus = state.nodes.flatMap((node) => node.gpus);
  const closed = gpus.filter((gpu) => gpu.closed).length;
  const waits = state.waiting.length + state.more_waiting;
  return [`${counted(state.nodes.length, 'node')}, ${counted(gpus.length, 'GPU')}`, `, ${closed} closed, ${counted(waits, 'pod')} pending`];
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
