// What of the timeline is in view, how it is moved, and what is selected. `Timeline` draws it.

const AXIS_HEIGHT = 26, MOST_LANES = 520, WIDEST = 180, USUAL_LANE = 22;

class View {
  constructor(scene, { onSelect }) {
    this.scene = scene;
    this.onSelect = onSelect;
    this.canvas = document.getElementById("lanes");
    this.overview = document.getElementById("overview");
    this.tip = document.getElementById("tip");
    this.surface = document.createElement("canvas");
    this.gutter = 56;
    this.selected = null;
    this.hovered = null;
    this.searching = false;
    this.stops = [];
    this.left = this.next = 0;
    this.palette = new Palette(getComputedStyle(document.documentElement));
    const timed = scene.tracks.some((t) => t.timed);
    this.axis = timed && !scene.hosts_differ && scene.groups.length > 1 ? "time" : "number";
    this.canTime = timed;
    for (const [d, mark] of scene.divergences.entries())
      for (const rank of [...mark.odd, ...mark.missing].slice(0, 256)) this.stops.push({ ...mark, d, rank });
    this.choose(this.firstGroup());
    this.resize();
    this.focusOnDivergence();
  }

  firstGroup() {
    const { scene } = this;
    const mark = scene.divergences[0] || scene.focus;
    if (mark) return mark.group;
    const sizes = new Map();
    for (const t of scene.tracks) if (!scene.groups[t.group].p2p) sizes.set(t.group, (sizes.get(t.group) || 0) + t.count);
    return [...sizes].sort((a, b) => b[1] - a[1])[0]?.[0] ?? scene.tracks[0].group;
  }

  choose(group) {
    if (group < 0) this.axis = "time";
    this.group = group;
    this.lanes = lanesOf(this.scene, group);
    this.selected = null;
    this.fit();
  }

  setAxis(axis) {
    if (axis === this.axis || (axis === "time" && !this.canTime)) return;
    this.axis = axis;
    if (axis === "number" && this.group < 0) this.choose(this.firstGroup());
    this.fit();
    if (this.selected) this.show(this.selected);
  }

  get extent() {
    return this.axis === "time" ? [0, this.scene.until * 1.01 + 1] : [this.lanes.low, this.lanes.high];
  }

  get most() {
    return this.axis === "time" ? 24 : WIDEST;
  }

  fit() {
    if (!this.width) return;
    const [low, high] = this.extent;
    this.x0 = low;
    this.scale = Math.min(this.most, this.width / (high - low));
    this.laneHeight = Math.min(USUAL_LANE, this.height / this.lanes.rows.length);
    this.y0 = 0;
    this.changed(true);
  }

  focusOnDivergence() {
    const mark = this.scene.divergences[0] || this.scene.focus;
    if (!mark) return;
    const rank = this.stops[0]?.rank ?? mark.rank ?? this.lanes.rows[0].rank;
    this.select(this.at(rank, mark.group, mark.number), { quietly: true });
    if (this.axis === "number") {
      const numbers = Math.min(this.lanes.high - this.lanes.low, Math.max(48, this.width / 14));
      this.scale = Math.min(this.most, this.width / numbers);
      this.x0 = mark.number + 1 - numbers * 0.9;
    }
    this.clamp();
  }

  resize() {
    const width = Math.max(120, this.canvas.parentElement.clientWidth);
    this.ratio = Math.min(3, window.devicePixelRatio || 1);
    this.gutter = width < 520 ? 44 : 64;
    const before = this.width;
    this.width = Math.max(60, width - this.gutter);
    this.height = Math.min(MOST_LANES, this.lanes.rows.length * USUAL_LANE);
    for (const [canvas, height] of [[this.canvas, this.height + AXIS_HEIGHT + 8], [this.overview, 34]]) {
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
      canvas.style.height = `${height}px`;
    }
    this.surface.width = this.width;
    this.surface.height = this.height;
    this.picture = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.picture.data.buffer);
    this.line = new Uint8Array(this.width);
    if (before && this.scale) this.scale *= this.width / before;
    else this.fit();
    this.clamp();
    this.changed(true);
  }

  clamp() {
    const [low, high] = this.extent;
    this.scale = Math.max(this.width / (high - low), Math.min(this.most, this.scale));
    if (high - low < 1) this.scale = this.most;
    this.scale = Math.min(this.most, this.scale);
    this.x0 = Math.max(low, Math.min(high - this.width / this.scale, this.x0));
    if (this.width / this.scale >= high - low) this.x0 = low;
    const rows = this.lanes.rows.length;
    this.laneHeight = Math.max(Math.min(USUAL_LANE, this.height / rows), Math.min(40, this.laneHeight));
    this.y0 = Math.max(0, Math.min(rows - this.height / this.laneHeight, this.y0));
    this.changed();
  }

  zoom(factor, around = this.width / 2) {
    const at = this.x0 + around / this.scale;
    const [low, high] = this.extent;
    this.scale = Math.max(this.width / (high - low), Math.min(this.most, this.scale * factor));
    this.x0 = at - around / this.scale;
    this.clamp();
  }

  grow(factor, around = this.height / 2) {
    const at = this.y0 + around / this.laneHeight;
    this.laneHeight *= factor;
    this.clamp();
    this.y0 = at - around / this.laneHeight;
    this.clamp();
  }

  pan(dx, dy) {
    this.x0 += dx / this.scale;
    this.y0 += dy / this.laneHeight;
    this.clamp();
  }

  // Zooming by key keeps what is selected where it is.
  middle() {
    if (!this.selected) return this.width / 2;
    const [from, to] = this.span(this.selected.i, this.selected.number);
    const x = ((from + to) / 2 - this.x0) * this.scale;
    return x >= 0 && x <= this.width ? x : this.width / 2;
  }

  // --- selection ---

  at(rank, group, number) {
    const track = trackOf(this.scene, rank, group);
    const lane = this.lanes.index.get(rank);
    if (lane === undefined) return null;
    const i = track ? columnOf(track, number) : -1;
    return { lane, rank, track: i >= 0 ? track : null, group, number, i };
  }

  select(found, { quietly = false } = {}) {
    this.selected = found;
    if (found) this.show(found);
    this.changed();
    this.onSelect(found, quietly);
  }

  show({ lane, i, number }) {
    const [from, to] = this.span(i, number);
    const pixels = this.width / this.scale;
    if (to > this.x0 + pixels || from < this.x0) this.x0 = Math.min(from, Math.max(from + (to - from) / 2 - pixels / 2, 0));
    if (lane < this.y0) this.y0 = lane;
    if (lane + 1 > this.y0 + this.height / this.laneHeight) this.y0 = lane + 1 - this.height / this.laneHeight;
    this.clamp();
  }

  span(i, number) {
    if (this.axis === "number") return [number, number + 1];
    if (i < 0) return [this.scene.until, this.scene.until];
    const track = this.scene.tracks.find((t) => i >= t.at && i < t.at + t.count);
    return [this.scene.starts[i], endOf(this.scene, track, i)];
  }

  goTo(stop) {
    if (this.group >= 0 && this.group !== stop.group) this.choose(stop.group);
    this.select(this.at(stop.rank, stop.group, stop.number));
  }

  divergence(step) {
    if (!this.stops.length) return;
    const { selected } = this;
    const now = selected ? this.stops.findIndex((s) => s.rank === selected.rank && s.number === selected.number && s.group === selected.group) : -1;
    this.goTo(this.stops[(now < 0 ? (step > 0 ? 0 : this.stops.length - 1) : now + step + this.stops.length) % this.stops.length]);
  }

  move(step) {
    const { selected, lanes, scene } = this;
    if (!selected || !selected.track) {
      const lane = lanes.rows[selected ? selected.lane : Math.max(0, Math.floor(this.y0))];
      const track = lane && lane.tracks[0];
      if (track) this.select(this.at(lane.rank, track.group, track.first + track.count - 1));
      return;
    }
    if (this.axis === "number") {
      let i = selected.i + step;
      while (i >= selected.track.at && i < selected.track.at + selected.track.count && !scene.shown[i]) i += step;
      if (i >= selected.track.at && i < selected.track.at + selected.track.count) this.select(this.at(selected.rank, selected.group, selected.number + i - selected.i));
      return;
    }
    let best = null;
    for (const track of lanes.rows[selected.lane].tracks)
      for (let i = track.at; i < track.at + track.count; i++) {
        const before = scene.starts[i] < scene.starts[selected.i] || (scene.starts[i] === scene.starts[selected.i] && i < selected.i);
        if (!scene.shown[i] || i === selected.i || before !== step < 0) continue;
        if (!best || (step > 0 ? scene.starts[i] < scene.starts[best.i] : scene.starts[i] >= scene.starts[best.i])) best = { track, i };
      }
    if (best) this.select(this.at(selected.rank, best.track.group, best.track.first + best.i - best.track.at));
  }

  moveLane(step) {
    const { selected, lanes } = this;
    if (!selected) return this.move(1);
    const lane = lanes.rows[selected.lane + step];
    if (lane) this.select(this.at(lane.rank, selected.group, selected.number));
  }

  end(last) {
    const lane = this.lanes.rows[this.selected ? this.selected.lane : 0];
    const track = lane && (this.selected && lane.tracks.find((t) => t.group === this.selected.group)) || lane?.tracks[0];
    if (track) this.select(this.at(lane.rank, track.group, last ? track.first + track.count - 1 : track.first));
  }

  // What is under a point of the canvas; null beside the lanes.
  hit(x, y) {
    const px = x - this.gutter, py = y - AXIS_HEIGHT;
    if (py < 0 || py >= this.height) return null;
    const lane = Math.floor(this.y0 + py / this.laneHeight), row = this.lanes.rows[lane];
    if (!row) return null;
    // Of several lanes on one pixel, the one whose state is drawn.
    const last = Math.min(this.lanes.rows.length, Math.max(lane + 1, Math.ceil(this.y0 + (py + 1) / this.laneHeight)));
    let best = null;
    for (let l = lane; l < last; l++) {
      const found = this.inLane(l, px);
      if (found && (!best || found.code > best.code)) best = found;
    }
    return best || { lane, rank: row.rank, track: null, i: -1, code: 0, group: this.group, number: this.axis === "number" ? Math.floor(this.x0 + px / this.scale) : -1 };
  }

  inLane(l, px) {
    const { scene } = this, row = this.lanes.rows[l];
    const from = this.x0 + px / this.scale, to = this.x0 + (px + 1) / this.scale;
    let best = null;
    if (px < 0) return null;
    for (const track of row.tracks) {
      if (this.axis === "number") {
        for (let n = Math.max(track.first, Math.floor(from)); n < Math.min(track.first + track.count, Math.max(Math.floor(from) + 1, to)); n++) {
          const i = track.at + n - track.first;
          if (scene.shown[i] && (!best || scene.shown[i] > best.code)) best = { track, i, code: scene.shown[i] };
        }
        continue;
      }
      if (!track.timed) continue;
      const stop = track.at + track.count;
      const look = (i) => {
        const end = Math.max(endOf(scene, track, i), scene.starts[i] + 3 / this.scale);
        if (scene.starts[i] < to && end >= from && (!best || scene.shown[i] > best.code)) best = { track, i, code: scene.shown[i] };
      };
      for (const o of track.open) look(o);
      const begin = track.ordered ? Math.max(track.at, lowerBound(scene.starts, track.at, stop, from) - 8) : track.at;
      for (let i = begin; i < stop && (!track.ordered || scene.starts[i] < to); i++) look(i);
    }
    return best && { ...best, lane: l, rank: row.rank, group: best.track.group, number: best.track.first + best.i - best.track.at };
  }
}
