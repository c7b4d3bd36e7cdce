// Mouse, touch and keys.

function steer(timeline) {
  const { canvas } = timeline;
  let drag = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { x: event.clientX, y: event.clientY, moved: false, id: event.pointerId };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && (drag.moved || Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > 4)) {
      if (!drag.moved) canvas.setPointerCapture(drag.id);
      drag.moved = true;
      canvas.classList.add("dragging");
      timeline.pan(drag.x - event.clientX, drag.y - event.clientY);
      drag.x = event.clientX;
      drag.y = event.clientY;
      hover(timeline, null);
      return;
    }
    const [x, y] = place(event);
    hover(timeline, timeline.hit(x, y), x, y);
  });
  const drop = (event) => {
    const was = drag;
    drag = null;
    canvas.classList.remove("dragging");
    if (!was || was.moved || event.type === "pointercancel") return;
    const found = timeline.hit(...place(event));
    timeline.select(found && (found.i >= 0 || found.number >= 0) ? found : null);
  };
  canvas.addEventListener("pointerup", drop);
  canvas.addEventListener("pointercancel", drop);
  canvas.addEventListener("pointerleave", () => hover(timeline, null));
  canvas.addEventListener("dblclick", (event) => timeline.zoom(2, place(event)[0] - timeline.gutter));
  canvas.addEventListener(
    "wheel",
    (event) => {
      const [x, y] = place(event);
      const turned = event.deltaMode ? event.deltaY * 16 : event.deltaY;
      if (event.ctrlKey || event.metaKey) timeline.zoom(Math.exp(-turned / 240), Math.max(0, x - timeline.gutter));
      else if (event.altKey) timeline.grow(Math.exp(-turned / 240), y - AXIS_HEIGHT);
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) timeline.pan(event.deltaX || turned, 0);
      else if (document.activeElement === canvas && timeline.height / timeline.laneHeight < timeline.lanes.rows.length - 0.01) timeline.pan(0, turned);
      else return;
      event.preventDefault();
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && press(timeline, event)) event.preventDefault();
  });
  const jump = (event) => {
    const box = timeline.overview.getBoundingClientRect(), [low, high] = timeline.extent;
    timeline.x0 = low + ((event.clientX - box.left - timeline.gutter) / timeline.width) * (high - low) - timeline.width / timeline.scale / 2;
    timeline.clamp();
  };
  timeline.overview.addEventListener("pointerdown", (event) => {
    timeline.overview.setPointerCapture(event.pointerId);
    jump(event);
  });
  timeline.overview.addEventListener("pointermove", (event) => event.buttons && jump(event));
  new ResizeObserver(() => {
    const width = Math.max(120, canvas.parentElement.clientWidth);
    if (width !== timeline.width + timeline.gutter) timeline.resize();
  }).observe(canvas.parentElement);
}

function press(timeline, event) {
  const far = Math.max(60, timeline.width / 4);
  switch (event.key) {
    case "ArrowLeft": event.shiftKey ? timeline.pan(-far, 0) : timeline.move(-1); return true;
    case "ArrowRight": event.shiftKey ? timeline.pan(far, 0) : timeline.move(1); return true;
    case "ArrowUp": event.shiftKey ? timeline.pan(0, -far) : timeline.moveLane(-1); return true;
    case "ArrowDown": event.shiftKey ? timeline.pan(0, far) : timeline.moveLane(1); return true;
    case "+": case "=": timeline.zoom(1.5, timeline.middle()); return true;
    case "-": case "_": timeline.zoom(1 / 1.5, timeline.middle()); return true;
    case "[": timeline.grow(1 / 1.5); return true;
    case "]": timeline.grow(1.5); return true;
    case "Home": timeline.end(false); return true;
    case "End": timeline.end(true); return true;
    case "PageUp": timeline.pan(0, -timeline.height); return true;
    case "PageDown": timeline.pan(0, timeline.height); return true;
    case "0": timeline.fit(); return true;
    case "n": timeline.divergence(1); return true;
    case "p": timeline.divergence(-1); return true;
    case "t": timeline.onAxis(timeline.axis === "time" ? "number" : "time"); return true;
    case "/": document.getElementById("search").focus(); return true;
    case "?": document.getElementById("keys").showModal(); return true;
    case "Escape": timeline.select(null); return true;
    default: return false;
  }
}

function hover(timeline, found, x, y) {
  timeline.hovered = found && found.i >= 0 ? found : null;
  timeline.soon();
  timeline.tip.hidden = !found || (found.i < 0 && !timeline.lanes.rows[found.lane].unseen);
  if (timeline.tip.hidden) return;
  timeline.tip.textContent = sentence(timeline.scene, found);
  const left = Math.min(x + 14, timeline.width + timeline.gutter - timeline.tip.offsetWidth - 4);
  timeline.tip.style.left = `${Math.max(0, left)}px`;
  timeline.tip.style.top = `${y + 50}px`;
}
