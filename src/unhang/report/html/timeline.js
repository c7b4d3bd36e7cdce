// The timeline drawn: only when something has changed, once for each frame of the screen, and in no more than a part of it.

// Of the 16 that a frame lasts.
const PAINT_MS = 8;

class Timeline extends View {
  // Something else is in view: `overview` where the whole is another one as well.
  changed(overview = false) {
    this.stale = true;
    if (overview) this.overviewLine = null;
    this.soon();
  }

  soon() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  recolour() {
    this.palette = new Palette(getComputedStyle(document.documentElement));
    this.changed();
  }

  draw() {
    if (this.stale) this.plan();
    this.stale = false;
    this.paint();
    const context = this.canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.imageSmoothingEnabled = false;
    context.fillStyle = this.palette.canvas;
    context.fillRect(0, 0, this.width + this.gutter, this.height + AXIS_HEIGHT + 8);
    context.drawImage(this.surface, this.gutter, AXIS_HEIGHT);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.drawNames(context);
    this.drawAxis(context);
    this.drawLabels(context);
    this.drawMarks(context);
    this.drawPosition(context);
    this.drawOverview();
    if (this.left > 0) this.soon();
  }

  // What is in view changed: every strip of the picture is to be painted again.
  plan() {
    const { lanes, height, laneHeight } = this;
    const rows = lanes.rows.length;
    this.strips = [];
    if (laneHeight >= 2) {
      const gap = laneHeight >= 12 ? 3 : laneHeight >= 4 ? 1 : 0;
      for (let l = Math.max(0, Math.floor(this.y0)); l < rows; l++) {
        const top = Math.round((l - this.y0) * laneHeight), bottom = Math.round((l + 1 - this.y0) * laneHeight);
        if (top >= height) break;
        this.strips.push({ top, bottom, gap, from: l, to: l + 1 });
      }
    } else {
      let from = Math.floor(this.y0);
      for (let y = 0; y < height && from < rows; y++) {
        const to = Math.min(rows, Math.max(from + (laneHeight > 1 ? 0 : 1), Math.floor(this.y0 + (y + 1) / laneHeight)));
        this.strips.push({ top: y, bottom: y + 1, gap: 0, from, to: Math.max(to, from + 1) });
        from = to;
      }
    }
    const filled = this.strips.length ? Math.min(height, this.strips.at(-1).bottom) : 0;
    this.pixels.fill(this.palette.back, filled * this.width);
    this.left = this.strips.length;
    this.next = this.next < this.strips.length ? this.next : 0;
  }

  // As many strips as a part of a frame has time for, going on where the last frame stopped: however much there is, the page answers.
  paint() {
    const { scene, lanes, width, height, line, pixels, strips } = this;
    const view = { axis: this.axis, x0: this.x0, scale: this.scale };
    const shift = Math.floor(this.x0 * this.scale) & 7;
    const since = performance.now();
    while (this.left > 0) {
      const { top, bottom, gap, from, to } = strips[this.next];
      line.fill(0);
      for (let l = from; l < to; l++) paintLane(scene, lanes, lanes.rows[l], line, width, view);
      paintClipped(pixels, width, height, top, bottom, gap, line, this.palette, this.searching, shift);
      this.next = (this.next + 1) % strips.length;
      this.left--;
      if ((this.left & 7) === 0 && performance.now() - since > PAINT_MS) break;
    }
    this.surface.getContext("2d").putImageData(this.picture, 0, 0);
  }

  drawNames(context) {
    if (this.laneHeight < 15 || (this.axis === "number" && this.scale < 44)) return;
    const { scene, lanes } = this;
    for (let l = Math.floor(this.y0); l < Math.min(lanes.rows.length, this.y0 + this.height / this.laneHeight); l++) {
      const y = AXIS_HEIGHT + (l + 0.5 - this.y0) * this.laneHeight - 1;
      if (y > this.height + AXIS_HEIGHT - 4) break;
      for (const track of lanes.rows[l].tracks) {
        const byTime = this.axis === "time";
        if (byTime && !track.timed) continue;
        let i = byTime
          ? Math.max(track.at, lowerBound(scene.starts, track.at, track.at + track.count, this.x0) - 1)
          : track.at + Math.max(0, Math.floor(this.x0) - track.first);
        let drawn = 0;
        for (; i < track.at + track.count && drawn < 60; i++) {
          const start = byTime ? scene.starts[i] : track.first + i - track.at;
          const from = Math.max(0, (start - this.x0) * this.scale);
          if (from > this.width) break;
          if (!scene.ops[i] || (byTime && !isOpen(scene.states[i]))) continue;
          const to = Math.min(this.width, ((byTime ? endOf(scene, track, i) : start + 1) - this.x0) * this.scale);
          if (to - from < 44 || scene.shown[i] === SHOWN.missing) continue;
          const text = clipped(context, scene.operations[scene.ops[i]][0], to - from - 12);
          if (text) {
            if (scene.shown[i] === SHOWN.waiting) {
              context.fillStyle = this.palette.css.waiting[0];
              context.fillRect(this.gutter + from + 4, y - 7, context.measureText(text).width + 5, 14);
            }
            context.fillStyle = scene.shown[i] === SHOWN.odd ? this.palette.odd : this.palette.bar;
            context.fillText(text, this.gutter + from + 6, y);
          }
          drawn++;
        }
      }
    }
  }

  drawAxis(context) {
    const { palette } = this;
    context.fillStyle = palette.quiet;
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    context.textAlign = "left";
    const unit = this.axis === "time" ? this.scene.unit_ms : 1;
    const least = 76 / this.scale * unit;
    const step = this.axis === "time" ? roundStep(least) : Math.max(1, roundStep(least));
    const first = Math.ceil((this.x0 * unit) / step) * step;
    context.beginPath();
    let free = -Infinity;
    for (let v = first; (v / unit - this.x0) * this.scale < this.width; v += step) {
      const x = Math.round(this.gutter + (v / unit - this.x0) * this.scale) + 0.5;
      context.moveTo(x, AXIS_HEIGHT - 6);
      context.lineTo(x, AXIS_HEIGHT - 1);
      const text = this.axis === "time" ? lasting(v, step) : `#${count(Math.round(v))}`;
      const width = context.measureText(text).width;
      if (x + 3 > free && x + 3 + width < this.gutter + this.width) {
        context.fillText(text, x + 3, AXIS_HEIGHT / 2 - 2);
        free = x + 14 + width;
      }
    }
    context.moveTo(this.gutter, AXIS_HEIGHT - 0.5);
    context.lineTo(this.gutter + this.width, AXIS_HEIGHT - 0.5);
    context.stroke();
  }

  drawLabels(context) {
    const { palette, lanes } = this;
    context.fillStyle = palette.quiet;
    context.textAlign = "left";
    context.fillText(this.scene.labels.rank, 2, AXIS_HEIGHT / 2 - 2);
    context.textAlign = "right";
    const step = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384].find((s) => s * this.laneHeight >= 14) || 65536;
    const last = Math.min(lanes.rows.length, Math.ceil(this.y0 + this.height / this.laneHeight));
    const taken = [];
    const put = (l, colour, bold) => {
      const y = AXIS_HEIGHT + (l + 0.5 - this.y0) * this.laneHeight;
      if (y < AXIS_HEIGHT + 3 || y > AXIS_HEIGHT + this.height - 3 || taken.some((t) => Math.abs(t - y) < 12)) return;
      taken.push(y);
      context.font = `${bold ? "bold " : ""}11px system-ui, sans-serif`;
      context.fillStyle = colour;
      context.fillText(`${lanes.rows[l].rank}`, this.gutter - 12, y);
    };
    const first = Math.max(0, Math.floor(this.y0));
    for (let l = first; l < last; l++) {
      const { worst } = lanes.rows[l];
      if (!worst) continue;
      const y = AXIS_HEIGHT + (l - this.y0) * this.laneHeight, height = Math.max(3, this.laneHeight - (this.laneHeight >= 12 ? 3 : 0));
      context.fillStyle = palette.css[worst][1];
      if (y + height > AXIS_HEIGHT && y < AXIS_HEIGHT + this.height) context.fillRect(this.gutter - 6, Math.max(AXIS_HEIGHT, y), 4, height);
      if (taken.length < 200) put(l, palette.css[worst][1], true);
    }
    if (this.selected && this.selected.lane >= first && this.selected.lane < last) put(this.selected.lane, palette.text, true);
    for (let l = Math.ceil(first / step) * step; l < last; l += step) put(l, palette.quiet, false);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "left";
  }

  drawMarks(context) {
    const { palette } = this;
    context.save();
    context.beginPath();
    context.rect(this.gutter, 0, this.width, this.height + AXIS_HEIGHT + 8);
    context.clip();
    for (const mark of this.scene.divergences) {
      if (this.group >= 0 && mark.group !== this.group) continue;
      const x = this.markAt(mark);
      if (x === null || x < -20 || x > this.width + 20) continue;
      const left = this.gutter + x;
      context.strokeStyle = context.fillStyle = palette.css.odd[1];
      context.setLineDash([4, 3]);
      context.beginPath();
      context.moveTo(Math.round(left) - 1.5, AXIS_HEIGHT);
      context.lineTo(Math.round(left) - 1.5, AXIS_HEIGHT + this.height);
      context.stroke();
      context.setLineDash([]);
      context.beginPath();
      context.moveTo(left - 7, AXIS_HEIGHT - 9);
      context.lineTo(left + 4, AXIS_HEIGHT - 9);
      context.lineTo(left - 1.5, AXIS_HEIGHT - 1);
      context.fill();
    }
    if (this.laneHeight < 4) this.drawWorst(context);
    for (const [found, colour, wide] of [[this.hovered, palette.text, 1], [this.selected, palette.accent, 2]]) {
      if (!found) continue;
      const y = AXIS_HEIGHT + (found.lane - this.y0) * this.laneHeight;
      if (y < AXIS_HEIGHT - this.laneHeight || y > AXIS_HEIGHT + this.height) continue;
      const [from, to] = this.span(found.i, found.number);
      const gap = this.laneHeight >= 12 ? 3 : 0;
      const left = this.gutter + (from - this.x0) * this.scale, width = Math.max(5, (to - from) * this.scale);
      const height = Math.max(5, this.laneHeight - gap);
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.strokeRect(left - 1, y - 1 - (this.laneHeight < 5 ? 2 : 0), width + 1, height + 2);
    }
    context.restore();
  }

  // Where lanes are flatter than a line that can be seen, those that are to be seen are not.
  drawWorst(context) {
    for (const { rank, group, number } of this.stops) {
      const found = (this.group < 0 || this.group === group) && this.at(rank, group, number);
      if (!found) continue;
      const [from, to] = this.span(found.i, number);
      const y = AXIS_HEIGHT + (found.lane + 0.5 - this.y0) * this.laneHeight;
      if (y < AXIS_HEIGHT || y > AXIS_HEIGHT + this.height) continue;
      context.fillStyle = this.palette.css[this.lanes.rows[found.lane].worst][1];
      context.fillRect(this.gutter + (from - this.x0) * this.scale, Math.min(y, AXIS_HEIGHT + this.height - 2) - 2, Math.max(4, (to - from) * this.scale), 4);
    }
  }

  markAt(mark) {
    if (this.axis === "number") return (mark.number - this.x0) * this.scale;
    if (mark.at === undefined) {
      mark.at = null;
      for (const t of this.scene.tracks) {
        if (t.group !== mark.group || !t.timed) continue;
        const i = columnOf(t, mark.number);
        if (i >= 0 && this.scene.shown[i] && (mark.at === null || this.scene.starts[i] < mark.at)) mark.at = this.scene.starts[i];
      }
    }
    return mark.at === null ? null : (mark.at - this.x0) * this.scale;
  }

  // Thin bars that say which part of the whole is in view.
  drawPosition(context) {
    const { palette } = this;
    const rows = this.lanes.rows.length, seen = this.height / this.laneHeight;
    if (seen < rows - 0.01) {
      context.fillStyle = palette.line;
      context.fillRect(this.gutter + this.width - 5, AXIS_HEIGHT, 5, this.height);
      context.fillStyle = palette.quiet;
      context.fillRect(this.gutter + this.width - 4, AXIS_HEIGHT + (this.y0 / rows) * this.height, 3, Math.max(12, (seen / rows) * this.height));
    }
  }

  drawOverview() {
    const { palette, width, scene, lanes } = this;
    if (!this.overviewLine) {
      this.overviewLine = new Uint8Array(width);
      this.overviewDone = 0;
    }
    const [low, high] = this.extent;
    const scale = width / (high - low);
    const since = performance.now();
    while (this.overviewDone < lanes.rows.length && performance.now() - since < PAINT_MS / 2)
      paintLane(scene, lanes, lanes.rows[this.overviewDone++], this.overviewLine, width, { axis: this.axis, x0: low, scale, merged: true });
    if (this.overviewDone < lanes.rows.length) this.soon();
    const context = this.overview.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = palette.canvas;
    context.fillRect(0, 0, width + this.gutter, 34);
    const from = this.gutter + (this.x0 - low) * scale, wide = Math.max(6, (width / this.scale) * scale);
    context.globalAlpha = 0.1;
    context.fillStyle = palette.accent;
    context.fillRect(from, 1, Math.min(wide, width), 28);
    context.globalAlpha = 1;
    context.strokeStyle = palette.accent;
    context.lineWidth = 1.5;
    context.strokeRect(from + 0.75, 1.5, Math.min(wide, width) - 1.5, 28);
    for (let x = 0; x < width; ) {
      const code = this.overviewLine[x] & 15;
      let end = x + 1;
      while (end < width && (this.overviewLine[end] & 15) === code) end++;
      if (code) {
        const grave = code >= SHOWN.missing;
        context.fillStyle = palette.css[palette.names[code]][code === SHOWN.missing ? 1 : 0];
        // The worse, the taller: colour is not all that tells them apart.
        const tall = grave ? 22 : code === SHOWN.waiting ? 16 : 8, wide = Math.max(end - x, grave ? 4 : 1);
        context.fillRect(this.gutter + Math.min(x, width - wide), 26 - tall, wide, tall);
      }
      x = end;
    }
  }
}

function paintClipped(pixels, width, height, top, bottom, gap, line, palette, searching, shift) {
  if (top >= 0 && bottom <= height) {
    paintRows(pixels, width, top, bottom - gap, line, palette, searching, shift);
    pixels.fill(palette.back, (bottom - gap) * width, bottom * width);
    return;
  }
  const whole = new Uint32Array(width * (bottom - top)).fill(palette.back);
  paintRows(whole, width, 0, bottom - top - gap, line, palette, searching, shift);
  const from = Math.max(0, -top), to = Math.min(bottom, height) - top;
  if (to > from) pixels.set(whole.subarray(from * width, to * width), (top + from) * width);
}

function stateOf(scene, found) {
  if (found.i < 0) return "unseen";
  return scene.shown[found.i] === SHOWN.odd ? "odd" : STATE_WORDS[scene.states[found.i]];
}

function sentence(scene, found) {
  const parts = [`${scene.labels.rank} ${found.rank}`];
  if (found.number >= 0 && found.group >= 0) parts.push(`${scene.groups[found.group].title} #${count(found.number)}`);
  if (found.i >= 0 && scene.ops[found.i]) parts.push(`${scene.operations[scene.ops[found.i]].join(" ").trim()}`);
  parts.push(scene.labels[found.i < 0 && found.track === null && !isUnseen(scene, found.rank) ? "not_issued" : stateOf(scene, found)]);
  if (found.i >= 0 && scene.lines[found.i]) parts.push(scene.sites[scene.lines[found.i]]);
  return parts.join(" · ");
}

function isUnseen(scene, rank) {
  return !scene.tracksOf.has(rank);
}

function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((f) => f * power >= least * 0.999) * power;
}

function lasting(ms, step = ms) {
  const places = (unit) => Math.max(0, Math.min(3, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  if (step < 1 && ms < 1) return `${(ms * 1000).toFixed(places(0.001))} µs`;
  if (step < 1000 && ms < 1000) return `${ms.toFixed(places(1))} ms`;
  return `${(ms / 1000).toFixed(places(1000))} s`;
}

function clipped(context, text, width) {
  if (width < 16) return "";
  if (context.measureText(text).width <= width) return text;
  let end = Math.floor(text.length * (width / context.measureText(text).width));
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end--;
  return end > 2 ? `${text.slice(0, end)}…` : "";
}
