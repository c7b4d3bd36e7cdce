// Brings the page to life: the theme, buttons that copy, the timeline, the table.

function listenForTheme(recolour) {
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    recolour();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  // Paper is light, and a canvas prints as it was drawn last.
  let chosen = "";
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const fold of folded) fold.open = true;
    chosen = root.dataset.theme || "";
    root.dataset.theme = "light";
    recolour(true);
  });
  addEventListener("afterprint", () => {
    for (const fold of folded) fold.open = false;
    if (chosen) root.dataset.theme = chosen;
    else delete root.dataset.theme;
    recolour(true);
  });
}

function listenForCopies(labels) {
  for (const button of document.querySelectorAll("button[data-copy]"))
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = labels.copied;
        setTimeout(() => (button.textContent = labels.copy), 1500);
      } catch {
        // No clipboard for this page: what is selected can be copied by hand.
        getSelection().selectAllChildren(button.previousElementSibling);
      }
    });
}

// The selected operation in words, and what all other ranks did at its number.
function showDetails(scene, found, quietly) {
  const box = document.getElementById("details");
  if (!found) {
    box.replaceChildren(make("p", { class: "quiet" }, scene.labels.nothing_selected));
    return;
  }
  const labels = scene.labels;
  const row = scene.ranks.find((r) => r.rank === found.rank);
  const state = found.i >= 0 ? stateOf(scene, found) : isUnseen(scene, found.rank) || (row && row.unseen) ? "unseen" : "not_issued";
  const pairs = [[labels.state, make("span", { class: `state ${state}` }, labels[state])]];
  if (found.i >= 0) {
    const [name, says] = scene.operations[scene.ops[found.i]] || ["", ""];
    if (name) pairs.push([labels.operation, make("span", {}, make("code", {}, name), " ", make("span", { class: "quiet" }, says))]);
    if (scene.lines[found.i]) pairs.push([labels.line, make("code", {}, scene.sites[scene.lines[found.i]])]);
    const track = trackOf(scene, found.rank, found.group);
    if (track && track.timed && scene.shown[found.i] !== SHOWN.missing) {
      const start = scene.starts[found.i] * scene.unit_ms;
      pairs.push([labels.started_at, `${lasting(start, 1)} · ${new Date(scene.t0_ms + start).toISOString().replace("T", " ").slice(0, 23)} UTC`]);
      if (scene.until_told && isOpen(scene.states[found.i])) pairs.push([labels.since, lasting((scene.until - scene.starts[found.i]) * scene.unit_ms)]);
    }
  }
  if (row && row.says) pairs.push([labels.details, row.says]);
  if (row && row.where) pairs.push([labels.where, make("code", {}, row.where)]);
  if (row && row.host) pairs.push([labels.host, row.host]);
  const title = `${labels.rank} ${found.rank}${found.group >= 0 && found.number >= 0 ? ` · ${scene.groups[found.group].title} #${count(found.number)}` : ""}`;
  const list = make("dl", { class: "who" }, ...pairs.map(([k, v]) => [make("dt", {}, k), make("dd", {}, v)]));
  const parts = [make("div", { class: "one" }, make("h3", {}, title), list)];
  const others = found.group >= 0 && found.number >= 0 && !scene.groups[found.group].p2p ? tally(scene, found.group, found.number) : [];
  if (others.length) {
    const items = others.slice(0, 8).map(({ state: s, op, line, ranks }) =>
      make(
        "li",
        {},
        make("span", { class: `state ${s}` }, labels[s]),
        make(
          "span",
          {},
          ranks.length === 1 ? `${labels.rank} ${ranks[0]}` : `${word(scene, "members", { n: count(ranks.length) })}: ${ranges(ranks, 8)}`,
          make("br", {}),
          op ? make("code", {}, scene.operations[op].join(" ").trim()) : null,
          line ? make("span", { class: "quiet" }, ` ${scene.sites[line]}`) : null,
        ),
      ),
    );
    if (others.length > 8) items.push(make("li", { class: "quiet" }, word(scene, "and_more", { n: others.length - 8 })));
    parts.push(make("div", { class: "all" }, make("h3", {}, labels.at_number), make("ul", {}, ...items)));
  }
  box.replaceChildren(...parts);
  if (!quietly) say(sentence(scene, found));
}

function tally(scene, group, number) {
  const kinds = new Map();
  for (const lane of lanesOf(scene, group).rows) {
    const track = lane.tracks[0];
    const i = track ? columnOf(track, number) : -1;
    const lost = track && number < track.first;
    const state = i >= 0 ? stateOf(scene, { i }) : lane.unseen ? "unseen" : lost ? "lost" : "not_issued";
    const op = i >= 0 ? scene.ops[i] : 0, line = i >= 0 ? scene.lines[i] : 0;
    const key = `${state} ${op} ${line}`;
    if (!kinds.has(key)) kinds.set(key, { state, op, line, ranks: [] });
    kinds.get(key).ranks.push(lane.rank);
  }
  return [...kinds.values()].sort((a, b) => a.ranks.length - b.ranks.length);
}

let saying = 0;
function say(text) {
  clearTimeout(saying);
  // Whoever holds a key down hears only where it ends.
  saying = setTimeout(() => (document.getElementById("said").textContent = text), 150);
}

function showLegend(scene) {
  const { present } = scene;
  if (scene.ranks.some((r) => r.unseen)) present[SHOWN.unseen] = 1;
  const firsts = new Map();
  for (const t of scene.tracks) firsts.set(t.group, Math.min(firsts.get(t.group) ?? Infinity, t.first));
  if (scene.tracks.some((t) => t.first > firsts.get(t.group) && !scene.groups[t.group].p2p)) present[SHOWN.lost] = 1;
  const items = Object.entries(SHOWN)
    .reverse()
    .filter(([name, code]) => present[code] && name !== "none")
    .map(([name]) => make("li", {}, make("canvas", { width: 36, height: 24, "data-state": name, "aria-hidden": "true" }), scene.labels[name]));
  document.getElementById("legend").replaceChildren(...items);
}

// The legend is drawn by the same painter as the lanes.
function colourLegend(palette) {
  for (const canvas of document.querySelectorAll("#legend canvas")) {
    const picture = new ImageData(36, 24), line = new Uint8Array(36).fill(SHOWN[canvas.dataset.state]);
    paintRows(new Uint32Array(picture.data.buffer), 36, 0, 24, line, palette, false, 0);
    canvas.getContext("2d").putImageData(picture, 0, 0);
  }
}

function listenForTools(scene, timeline) {
  const get = (id) => document.getElementById(id);
  const group = get("group");
  const options = scene.groups.map((g, i) => [g.p2p ? `${g.title} · ${scene.labels.point_to_point}` : g.title, i]);
  if (scene.groups.length > 1 && timeline.canTime) options.unshift([scene.labels.all_groups, -1]);
  group.append(...options.map(([text, value]) => make("option", { value }, text)));
  group.closest("label").hidden = options.length < 2;
  const radios = [...document.querySelectorAll("input[name=axis]")];
  const settle = () => {
    group.value = timeline.group;
    for (const r of radios) r.checked = r.value === timeline.axis;
  };
  radios.find((r) => r.value === "time").disabled = !timeline.canTime;
  group.addEventListener("change", () => {
    timeline.choose(Number(group.value));
    timeline.resize();
    timeline.fit();
    if (get("search").value) look();
    settle();
  });
  timeline.onAxis = (axis) => {
    timeline.setAxis(axis);
    settle();
  };
  for (const r of radios) r.addEventListener("change", () => timeline.onAxis(r.value));
  const chosen = timeline.select.bind(timeline);
  timeline.select = (...given) => {
    chosen(...given);
    settle();
  };
  const on = (id, act) => get(id).addEventListener("click", act);
  on("zoom-in", () => timeline.zoom(1.5, timeline.middle()));
  on("zoom-out", () => timeline.zoom(1 / 1.5, timeline.middle()));
  on("taller", () => timeline.grow(1.5));
  on("flatter", () => timeline.grow(1 / 1.5));
  on("fit", () => timeline.fit());
  on("to-divergence", () => timeline.divergence(1));
  on("help", () => get("keys").showModal());
  get("to-divergence").hidden = !timeline.stops.length;
  const look = () => {
    const hits = search(timeline, get("search").value);
    get("hits").textContent = !timeline.searching ? "" : hits ? word(scene, "hits", { n: count(hits) }) : scene.labels.no_hits;
  };
  let later = 0;
  get("search").addEventListener("input", () => {
    clearTimeout(later);
    later = setTimeout(look, 120);
  });
  get("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      clearTimeout(later);
      look();
      nextHit(timeline, event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      event.target.value = "";
      look();
      get("lanes").focus();
    } else return;
    event.preventDefault();
  });
  settle();
}

async function start() {
  const scene = await readScene();
  let timeline = null;
  listenForTheme((atOnce) => {
    if (!timeline) return;
    timeline.recolour();
    if (atOnce === true) timeline.draw();
    colourLegend(timeline.palette);
  });
  listenForCopies(scene.labels);
  const loading = document.getElementById("loading");
  if (scene.tracks.length && typeof DecompressionStream === "undefined") {
    loading.textContent = scene.labels.too_old;
    scene.tracks = [];
    scene.tracksOf.clear();
  } else if (scene.tracks.length) {
    await readColumns(scene);
    loading.hidden = true;
    const stage = document.getElementById("stage");
    stage.hidden = false;
    const notes = [];
    if (scene.left_out) notes.push(word(scene, "left_out", { n: count(scene.left_out) }));
    if (scene.hosts_differ) notes.push(scene.labels.hosts_differ);
    const note = document.getElementById("notes");
    note.textContent = notes.join(" ");
    note.hidden = !notes.length;
    timeline = new Timeline(scene, { onSelect: (found, quietly) => showDetails(scene, found, quietly) });
    const ranks = new Set([...scene.tracksOf.keys(), ...scene.ranks.map((r) => r.rank)]).size;
    timeline.canvas.setAttribute("aria-label", word(scene, "canvas", { ranks: count(ranks), bars: count(scene.total) }));
    listenForTools(scene, timeline);
    steer(timeline);
    showLegend(scene);
    colourLegend(timeline.palette);
  }
  if (scene.ranks.length) {
    new RanksTable(scene, {
      onChoose: (rank) => {
        if (!timeline) return;
        const stop = timeline.stops.find((s) => s.rank === rank);
        if (stop) timeline.goTo(stop);
        else {
          const track = (scene.tracksOf.get(rank) || [])[0];
          if (track && timeline.group >= 0 && !timeline.lanes.index.has(rank)) timeline.choose(track.group);
          const own = (scene.tracksOf.get(rank) || []).find((t) => timeline.group < 0 || t.group === timeline.group);
          timeline.select(timeline.at(rank, own ? own.group : timeline.group, own ? own.first + own.count - 1 : -1));
        }
        document.getElementById("timeline").scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
        timeline.canvas.focus({ preventScroll: true });
      },
    });
  }
  document.documentElement.dataset.ready = "yes";
  // For tests and for whoever opens the console.
  window.unhang = { scene, timeline };
}

start().catch((error) => {
  console.error(error);
  const loading = document.getElementById("loading");
  if (loading) {
    const { labels } = JSON.parse(document.getElementById("scene").textContent);
    loading.textContent = labels.broken.replace("{why}", error.message);
    loading.hidden = false;
  }
});
