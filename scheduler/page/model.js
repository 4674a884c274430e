// What the page shows, as values, without the document, the clock or requests.

const units = { memory: 'MiB', cores: '% of compute', seats: 'replicas' };

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

/** A colour for a text, the same in every session. */
export function colour(text, by) {
  if (by === 'mode' && fixed[text]) return fixed[text];
  if (by === 'health') return text === 'ok' ? fixed.ok : 'hsl(5 75% 68%)';
  let hash = 2166136261;
  for (const letter of text) {
    hash = Math.imul(hash ^ letter.codePointAt(0), 16777619) >>> 0;
  }
  return `hsl(${hash % 360} ${45 + (hash >>> 9) % 25}% ${62 + (hash >>> 17) % 14}%)`;
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
  const asks = pod.asks.map((ask) => `${ask.container}: ${ask.count} × (${ask.memory}, ${ask.cores} % of compute)`);
  return asks.join('; ') + (pod.annotated ? ' (in annotation aliquot.dev/request)' : '');
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
