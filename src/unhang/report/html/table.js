// The table of ranks: of thousands of rows only those in view are elements, between two that keep the height.

const ROW_HEIGHT = 30, SPARE_ROWS = 8;
const CONCERNS = ["odd", "missing", "failed", "stopped", "unknown", "outside", "waiting", "ended"];
const PRINTED = 200;

class RanksTable {
  constructor(scene, { onChoose }) {
    this.scene = scene;
    this.onChoose = onChoose;
    this.box = document.getElementById("ranks-rows");
    this.table = document.getElementById("ranks-table");
    this.body = this.table.tBodies[0];
    this.sorted = { column: "state", down: false };
    this.rows = scene.ranks.map((r) => ({ ...r, worry: CONCERNS.indexOf(r.concern), last: lastOf(scene, r.rank) }));
    this.all = false;
    for (const head of this.table.tHead.rows[0].cells)
      head.firstElementChild.addEventListener("click", () => {
        const column = head.dataset.column;
        this.sort(column, this.sorted.column === column && !this.sorted.down);
      });
    // What nobody has told is no column.
    const told = { host: "host", says: "details", where: "where", step: "step", exit: "exit" };
    for (const [key, column] of Object.entries(told))
      if (!this.rows.some((r) => r[key] !== "" && r[key] !== null)) this.table.classList.add(`no-${column}`);
    if (!this.rows.some((r) => r.last)) this.table.classList.add("no-last");
    this.columns = 8 - this.table.classList.length;
    this.box.addEventListener("scroll", () => this.later(), { passive: true });
    new ResizeObserver(() => this.later()).observe(this.box);
    window.addEventListener("beforeprint", () => this.print(true));
    window.addEventListener("afterprint", () => this.print(false));
    this.sort("state", false);
  }

  sort(column, down) {
    this.sorted = { column, down };
    const key = { rank: (r) => r.rank, state: (r) => r.worry, details: (r) => r.says, last: (r) => r.last?.number ?? -1, where: (r) => r.where, host: (r) => r.host, step: (r) => r.step ?? -1, exit: (r) => r.exit ?? -1e9 }[column];
    const turn = down ? -1 : 1;
    this.rows.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return (x < y ? -turn : x > y ? turn : 0) || a.rank - b.rank;
    });
    for (const head of this.table.tHead.rows[0].cells) {
      if (head.dataset.column === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    this.box.scrollTop = 0;
    this.from = this.to = -1;
    this.draw();
  }

  later() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    const first = this.all ? 0 : Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
    const last = this.all ? Math.min(PRINTED, this.rows.length) : Math.min(this.rows.length, first + Math.ceil(this.box.clientHeight / ROW_HEIGHT) + 2 * SPARE_ROWS);
    if (first === this.from && last === this.to) return;
    this.from = first;
    this.to = last;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.rank : null;
    const made = [];
    if (first > 0) made.push(spacer(first, this.columns));
    for (let i = first; i < last; i++) made.push(this.row(this.rows[i], i));
    if (last < this.rows.length && !this.all) made.push(spacer(this.rows.length - last, this.columns));
    this.body.replaceChildren(...made);
    if (focused !== null) this.body.querySelector(`button[data-rank="${focused}"]`)?.focus({ preventScroll: true });
  }

  row(r, i) {
    const { scene } = this;
    const show = make("button", { type: "button", "data-rank": r.rank, "aria-label": word(scene, "show", { n: r.rank }) }, `${r.rank}`);
    show.addEventListener("click", () => this.onChoose(r.rank));
    const label = scene.labels[r.concern === "ended" ? "over" : r.concern];
    return make(
      "tr",
      { "aria-rowindex": i + 2 },
      make("th", { scope: "row", class: "c-rank" }, scene.tracks.length ? show : `${r.rank}`),
      make("td", { class: "c-state" }, make("span", { class: `state ${r.concern}` }, label)),
      make("td", { class: "c-details", title: r.says || null }, r.says),
      make("td", { class: "c-last" }, r.last ? r.last.text() : r.unseen ? make("span", { class: "quiet" }, scene.labels.unseen) : ""),
      make("td", { class: "c-where", title: r.where || null }, r.where ? make("code", {}, r.where) : ""),
      make("td", { class: "c-host", title: r.host || null }, r.host),
      make("td", { class: "c-step number" }, r.step === null ? "" : count(r.step)),
      make("td", { class: "c-exit number" }, r.exit === null ? "" : `${r.exit}`),
    );
  }

  print(all) {
    this.all = all;
    this.from = this.to = -1;
    this.draw();
    const more = document.getElementById("ranks-more"), left = this.rows.length - PRINTED;
    more.hidden = !all || left <= 0;
    more.textContent = word(this.scene, "and_more", { n: count(left) });
  }
}

function spacer(rows, columns) {
  const cell = make("td", { colspan: columns });
  cell.style.height = `${rows * ROW_HEIGHT}px`;
  return make("tr", { class: "spacer", "aria-hidden": "true" }, cell);
}

// The newest operation of a rank: by time where that is known, else the first that is not finished.
function lastOf(scene, rank) {
  let best = null;
  for (const track of scene.tracksOf.get(rank) || []) {
    if (scene.groups[track.group].p2p && best) continue;
    for (let i = track.at + track.count - 1; i >= track.at; i--) {
      if (!scene.ops[i]) continue;
      if (!best || (track.timed && scene.starts[i] > scene.starts[best.i])) best = { track, i };
      break;
    }
  }
  if (!best) return null;
  const { track, i } = best, number = track.first + i - track.at;
  const group = scene.groups[track.group];
  return { number, text: () => `${scene.operations[scene.ops[i]][0]} #${count(number)}${scene.groups.length > 1 ? ` · ${group.short}` : ""}` };
}
