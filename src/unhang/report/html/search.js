// Search: `rank 12`, `#840`, `state:missing`, or a part of an operation's name or of a line. What is found stays bright, the rest fades.

function search(timeline, text) {
  const { scene, lanes } = timeline;
  const { shown, matched } = scene;
  const wanted = text.trim().toLowerCase();
  timeline.searching = wanted !== "";
  matched.fill(0);
  let hits = 0;
  if (timeline.searching) {
    const [kind, value] = meant(wanted);
    const ops = mask(scene.operations, ([name, says]) => kind === "text" && `${name} ${says}`.toLowerCase().includes(wanted));
    const lines = mask(scene.sites, (site) => kind === "text" && site.toLowerCase().includes(wanted));
    const states = mask(Object.keys(SHOWN), (name) => kind === "state" && name !== "none" && name.startsWith(value));
    for (const lane of lanes.rows)
      for (const track of lane.tracks) {
        let from = track.at, to = track.at + track.count;
        const whole = kind === "rank" ? track.rank === value : kind === "number";
        if (kind === "number") {
          from = columnOf(track, value);
          to = from + 1;
          if (from < 0) continue;
        }
        for (let i = from; i < to; i++)
          if (shown[i] && (whole || ops[scene.ops[i]] || lines[scene.lines[i]] || states[shown[i]])) {
            matched[i] = 1;
            hits++;
          }
      }
  }
  timeline.hits = hits;
  timeline.changed(true);
  return hits;
}

function meant(wanted) {
  const rank = /^rank[ :]\s*(\d+)$/.exec(wanted);
  if (rank) return ["rank", Number(rank[1])];
  const number = /^#\s*([\d,]+)$/.exec(wanted);
  if (number) return ["number", Number(number[1].replaceAll(",", ""))];
  const state = /^state:\s*(\w+)$/.exec(wanted);
  return state ? ["state", state[1]] : ["text", wanted];
}

function mask(values, test) {
  return Uint8Array.from(values, (value) => (test(value) ? 1 : 0));
}

// Select the hit behind the selected operation, or the one before it, rank by rank.
function nextHit(timeline, step) {
  const { scene, selected, lanes } = timeline;
  if (!timeline.hits) return;
  const tracks = lanes.rows.flatMap((lane) => lane.tracks);
  if (step < 0) tracks.reverse();
  const now = selected && selected.i >= 0 ? tracks.findIndex((t) => selected.i >= t.at && selected.i < t.at + t.count) : -1;
  for (let k = 0; k <= tracks.length; k++) {
    const track = tracks[(Math.max(0, now) + k) % tracks.length];
    const begin = step > 0 ? track.at : track.at + track.count - 1;
    for (let i = k === 0 && now >= 0 ? selected.i + step : begin; i >= track.at && i < track.at + track.count; i += step)
      if (scene.matched[i]) {
        timeline.select(timeline.at(track.rank, track.group, track.first + i - track.at));
        return;
      }
  }
}
