// The scene, out of the page's own blocks: see packing.py. Long work is cut, so that the page answers while it is done.

const NONE = 0, COMPLETED = 1, ENDED = 2, ISSUED = 3, STARTED = 4, MISSING = 5;
// What a pixel shows. Of several the highest wins.
const SHOWN = { none: 0, lost: 1, tail: 2, completed: 3, ended: 4, unseen: 5, waiting: 6, missing: 7, odd: 8 };
const OF_STATE = [SHOWN.none, SHOWN.completed, SHOWN.ended, SHOWN.waiting, SHOWN.waiting, SHOWN.missing];
const STATE_WORDS = ["lost", "completed", "ended", "issued", "started", "missing"];
const SLICE = 1 << 17;

let busySince = 0;
// Lets the page answer, where it has been kept from that for half a frame.
async function breathe() {
  if (performance.now() - busySince < 8) return;
  await (globalThis.scheduler && scheduler.yield ? scheduler.yield() : new Promise((resolve) => setTimeout(resolve)));
  busySince = performance.now();
}

async function bytesOf(id) {
  const text = document.getElementById(id).textContent;
  const packed = new Uint8Array(Math.ceil(text.length / 4) * 3);
  let at = 0;
  for (let i = 0; i < text.length; i += SLICE) {
    const part = atob(text.slice(i, i + SLICE));
    for (let j = 0; j < part.length; j++) packed[at++] = part.charCodeAt(j);
    await breathe();
  }
  const stream = new Blob([packed.subarray(0, at)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function numbersOf(id, Kind, count) {
  const planes = await bytesOf(id);
  const out = new Kind(count);
  for (let plane = 0; plane < Kind.BYTES_PER_ELEMENT; plane++) {
    const shift = 8 * plane, base = plane * count;
    for (let from = 0; from < count; from += SLICE) {
      const to = Math.min(count, from + SLICE);
      for (let i = from; i < to; i++) out[i] |= planes[base + i] << shift;
      await breathe();
    }
  }
  return out;
}

async function readScene() {
  const scene = JSON.parse(document.getElementById("scene").textContent);
  scene.ranks = scene.ranks.map(([rank, concern, host, says, where, step, exit, unseen]) => ({ rank, concern, host, says, where, step, exit, unseen }));
  scene.groups = scene.groups.map(([title, short, spans, p2p]) => ({ title, short, spans, p2p }));
  scene.divergences = scene.divergences.map(([group, number, odd, missing]) => ({ group, number, odd, missing }));
  scene.focus &&= { group: scene.focus[0], number: scene.focus[1], rank: scene.focus[2] };
  scene.tracksOf = new Map();
  const flat = scene.tracks;
  scene.tracks = [];
  let total = 0;
  for (let i = 0; i < flat.length; i += 5) {
    const track = { rank: flat[i], group: flat[i + 1], first: flat[i + 2], count: flat[i + 3], timed: flat[i + 4], at: total, ordered: true, open: [] };
    total += track.count;
    scene.tracks.push(track);
    if (!scene.tracksOf.has(track.rank)) scene.tracksOf.set(track.rank, []);
    scene.tracksOf.get(track.rank).push(track);
  }
  scene.total = total;
  return scene;
}

async function readColumns(scene) {
  const total = scene.total;
  scene.states = await bytesOf("column-states");
  scene.ops = await numbersOf("column-ops", Uint16Array, total);
  scene.lines = await numbersOf("column-sites", Uint16Array, total);
  scene.starts = await numbersOf("column-starts", Uint32Array, total);
  scene.shown = new Uint8Array(total);
  scene.matched = new Uint8Array(total);
  scene.present = new Uint8Array(9);
  for (const track of scene.tracks) {
    let now = 0;
    for (let i = track.at; i < track.at + track.count; i++) {
      const before = now;
      now = (now + scene.starts[i]) >>> 0;
      if (now < before) track.ordered = false;
      scene.starts[i] = now;
      const state = scene.states[i];
      scene.present[(scene.shown[i] = OF_STATE[state])] = 1;
      if (track.timed && !isOpen(state)) scene.present[SHOWN.tail] = 1;
      if (state === ISSUED || state === STARTED || state === MISSING) track.open.push(i);
    }
    await breathe();
  }
  for (const { group, number, odd } of scene.divergences)
    for (const rank of odd) {
      const track = trackOf(scene, rank, group);
      const i = track ? columnOf(track, number) : -1;
      if (i >= 0) scene.present[(scene.shown[i] = SHOWN.odd)] = 1;
    }
}

function trackOf(scene, rank, group) {
  return (scene.tracksOf.get(rank) || []).find((t) => t.group === group);
}

function columnOf(track, number) {
  return number >= track.first && number < track.first + track.count ? track.at + number - track.first : -1;
}

function isOpen(state) {
  return state === ISSUED || state === STARTED || state === MISSING;
}

// Where an operation ends on the time axis, in units: no recorder tells, so at the next start. What is not finished goes on to the end of the picture.
function endOf(scene, track, i) {
  if (isOpen(scene.states[i])) return scene.until;
  return i + 1 < track.at + track.count ? Math.max(scene.starts[i], scene.starts[i + 1]) : Math.min(scene.until, scene.starts[i] + 1);
}

function word(scene, key, values = {}) {
  return (scene.labels[key] || key).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

const digits = new Intl.NumberFormat("en-US");

function count(number) {
  return digits.format(number);
}

function ranges(numbers, most = Infinity) {
  const parts = [];
  for (let i = 0; i < numbers.length; ) {
    let j = i;
    while (j + 1 < numbers.length && numbers[j + 1] === numbers[j] + 1) j++;
    parts.push(j === i ? `${numbers[i]}` : j === i + 1 ? `${numbers[i]}, ${numbers[j]}` : `${numbers[i]}-${numbers[j]}`);
    i = j + 1;
  }
  return parts.length > most ? `${parts.slice(0, most).join(", ")}, …` : parts.join(", ");
}

// The only way in which this page makes elements: texts are texts.
function make(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "class") made.className = value;
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) made.append(typeof child === "object" ? child : document.createTextNode(child));
  return made;
}
