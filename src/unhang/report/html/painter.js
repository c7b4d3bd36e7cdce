// Lanes into pixels. A lane is first one line of states, of which the worst that falls on a pixel stays; then as many rows as it is high.
// All work is bounded by what is in view, and by the number of pixels.

class Lanes {
  constructor(scene, group) {
    this.scene = scene;
    this.group = group;
    const known = new Map(scene.ranks.map((r) => [r.rank, r]));
    const numbers = new Set();
    if (group < 0) {
      for (const r of scene.ranks) numbers.add(r.rank);
      for (const t of scene.tracks) numbers.add(t.rank);
    } else {
      const spans = scene.groups[group].spans;
      for (let i = 0; i < spans.length; i += 2) for (let r = spans[i]; r <= spans[i + 1]; r++) numbers.add(r);
      for (const t of scene.tracks) if (t.group === group) numbers.add(t.rank);
    }
    this.rows = [...numbers]
      .sort((a, b) => a - b)
      .map((rank) => {
        const row = known.get(rank);
        const tracks = (scene.tracksOf.get(rank) || []).filter((t) => group < 0 || t.group === group);
        // A rank that is in no record at all may have done anything.
        return { rank, row, tracks, unseen: !tracks.length && (!row || Boolean(row.unseen)), worst: "" };
      });
    this.index = new Map(this.rows.map((lane, i) => [lane.rank, i]));
    let low = Infinity, high = -Infinity;
    for (const lane of this.rows)
      for (const t of lane.tracks) {
        low = Math.min(low, t.first);
        high = Math.max(high, t.first + t.count);
      }
    this.low = low === Infinity ? 0 : low;
    this.high = high === -Infinity ? 1 : high;
    for (const { group: g, odd, missing } of scene.divergences) {
      if (group >= 0 && g !== group) continue;
      for (const [ranks, what] of [[missing, "missing"], [odd, "odd"]])
        for (const rank of ranks) if (this.index.has(rank)) this.rows[this.index.get(rank)].worst = what;
    }
  }
}

const lanesMade = new Map();

function lanesOf(scene, group) {
  if (!lanesMade.has(group)) lanesMade.set(group, new Lanes(scene, group));
  return lanesMade.get(group);
}

// One lane, over what it holds already: `out` has a state for each of `width` pixels from `x0` on, `scale` pixels to a number or unit.
function paintLane(scene, lanes, lane, out, width, { axis, x0, scale, merged = false }) {
  const byTime = axis === "time";
  const from = byTime ? 0 : lanes.low, to = byTime ? scene.until : lanes.high;
  // Where all lanes become one, a rank of which nothing is known must not hide what is known of the others.
  if (lane.unseen && !merged) fill(out, (from - x0) * scale, (to - x0) * scale, width, SHOWN.unseen);
  for (const track of lane.tracks) {
    if (byTime) paintTimes(scene, track, out, width, x0, scale);
    else {
      if (!merged && track.first > lanes.low && !scene.groups[track.group].p2p) fill(out, (lanes.low - x0) * scale, (track.first - x0) * scale - 1, width, SHOWN.lost);
      paintNumbers(scene, track, out, width, x0, scale, merged);
    }
  }
}

function paintNumbers({ shown, matched }, track, out, width, x0, scale, merged) {
  const first = Math.max(track.first, Math.floor(x0));
  const last = Math.min(track.first + track.count, Math.ceil(x0 + width / scale));
  const offset = track.at - track.first;
  if (scale <= 1) {
    for (let n = first; n < last; n++) {
      const at = ((n - x0) * scale) | 0, code = shown[n + offset] | (matched[n + offset] << 4);
      if (code > out[at] && at < width) out[at] = code;
    }
    return;
  }
  const gap = merged ? 0 : scale >= 24 ? 2 : scale >= 3 ? 1 : 0;
  for (let n = first; n < last; n++) {
    const code = shown[n + offset] | (matched[n + offset] << 4);
    const end = Math.min(width, Math.max(Math.floor((n + 1 - x0) * scale) - gap, 1 + Math.floor((n - x0) * scale)));
    for (let at = Math.max(0, Math.floor((n - x0) * scale)); at < end; at++) if (code > out[at]) out[at] = code;
  }
}

function paintTimes(scene, track, out, width, x0, scale) {
  if (!track.timed) return;
  const { starts, states, shown, matched } = scene;
  const stop = track.at + track.count;
  let i = track.at;
  if (track.ordered) {
    // Operations may overlap; those that go on for longest are in `open`.
    i = Math.max(track.at, lowerBound(starts, track.at, stop, x0) - 8);
    for (const o of track.open) fill(out, (starts[o] - x0) * scale, (scene.until - x0) * scale, width, shown[o] | (matched[o] << 4));
  }
  for (; i < stop; i++) {
    const from = (starts[i] - x0) * scale;
    if (from >= width) {
      if (track.ordered) break;
      continue;
    }
    const code = shown[i] | (matched[i] << 4);
    if (!code) continue;
    let to;
    if (isOpen(states[i])) to = (scene.until - x0) * scale;
    else {
      fill(out, from, (endOf(scene, track, i) - x0) * scale - 1, width, SHOWN.tail | (matched[i] << 4));
      to = from + 3;
    }
    let at = from < 0 ? 0 : from | 0;
    const end = to >= width ? width : to | 0;
    if (to >= 0 && code > out[at]) out[at] = code;
    for (at++; at < end; at++) if (code > out[at]) out[at] = code;
  }
}

function lowerBound(values, from, to, wanted) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] < wanted) from = middle + 1;
    else to = middle;
  }
  return from;
}

function fill(out, from, to, width, code) {
  const end = Math.min(width, Math.ceil(to));
  for (let at = Math.max(0, Math.floor(from)); at < end; at++) if (code > out[at]) out[at] = code;
}

// Three tones for each state: body, pattern, and that of lanes too flat for a pattern; `faint` are those of bars that a search has not found.
class Palette {
  constructor(style) {
    const read = (name) => style.getPropertyValue(name).trim();
    this.back = pixelOf(read("--canvas"));
    const names = ["none", "lost", "tail", "completed", "ended", "unseen", "waiting", "missing", "odd"];
    const tones = names.map((name) => (name === "none" ? [this.back, this.back] : [pixelOf(read(`--${name}`)), pixelOf(read(`--${name}-2`))]));
    // A line of one pixel has no room for a pattern: there the stronger tone stands for the whole.
    for (const pair of tones) pair.push(pair[0]);
    tones[SHOWN.missing][2] = tones[SHOWN.missing][1];
    this.plain = tones;
    this.faint = tones.map((triple) => triple.map((tone) => mixed(tone, this.back, 0.78)));
    this.names = names;
    this.css = Object.fromEntries(names.slice(1).map((name) => [name, [read(`--${name}`), read(`--${name}-2`)]]));
    this.text = read("--text");
    this.quiet = read("--quiet");
    this.line = read("--line");
    this.accent = read("--accent");
    this.canvas = read("--canvas");
    this.bar = read("--on-bar");
    this.odd = read("--on-odd");
  }
}

function pixelOf(hex) {
  const n = parseInt(hex.slice(1), 16);
  return (0xff000000 | ((n & 0xff) << 16) | (n & 0xff00) | (n >> 16)) >>> 0;
}

function mixed(a, b, share) {
  let out = 0xff000000;
  for (const shift of [0, 8, 16]) out |= Math.round(((a >>> shift) & 255) * (1 - share) + ((b >>> shift) & 255) * share) << shift;
  return out >>> 0;
}

// Whether a pixel of a bar, `y` rows down in a lane of `height`, has the second tone: states differ in more than colour.
function inPattern(code, x, y, height) {
  switch (code) {
    case SHOWN.lost: return ((x + y) & 7) === 0;
    case SHOWN.tail: return Math.abs(2 * y + 1 - height) > Math.max(2, height >> 2);
    case SHOWN.ended: return (x & 3) === 0 && (y & 3) === 1;
    case SHOWN.unseen: return ((x - y) & 7) === 0;
    case SHOWN.waiting: return ((x + y) & 7) < 3;
    case SHOWN.missing: return y < 1 || y >= height - 1 || ((x + y) & 7) < 1 || ((x - y) & 7) < 1;
    case SHOWN.odd: return y < 2 || y >= height - 2;
    default: return false;
  }
}

const PATTERN_FROM = 6;

// Rows `top` to `bottom` of a picture, from one line of states.
function paintRows(pixels, width, top, bottom, line, palette, searching, shift) {
  const height = bottom - top;
  const tones = searching ? [palette.faint, palette.plain] : [palette.plain, palette.plain];
  if (height < PATTERN_FROM) {
    const at = top * width;
    for (let x = 0; x < width; x++) {
      const code = line[x] & 15;
      pixels[at + x] = code ? tones[line[x] >> 4][code][code === SHOWN.unseen && ((x + shift + top) & 3) === 0 ? 1 : 2] : palette.back;
    }
    for (let y = top + 1; y < bottom; y++) pixels.copyWithin(y * width, at, at + width);
    return;
  }
  for (let y = 0; y < height; y++) {
    const at = (top + y) * width;
    for (let x = 0; x < width; x++) {
      const code = line[x] & 15;
      pixels[at + x] = code ? tones[line[x] >> 4][code][inPattern(code, x + shift, y, height) ? 1 : 0] : palette.back;
    }
  }
}
