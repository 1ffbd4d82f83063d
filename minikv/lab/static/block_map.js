// The block map in the browser: plays recorded patches, draws the state they make, listens to keys.
// What an event means was decided in Python (minikv/lab/replay.py); here nothing is computed that
// the state does not say.

const INKS = 6; // request colours and patterns, as in palette.css and block_map.css
const PATTERNS = 7;
const BIG = 64; // above this many blocks, cells are drawn small and without words
const MARGIN = 60; // cells of a big pool that are drawn at once on either side of those in sight
const REST_MS = 50; // after which those out of sight are drawn, too
const QUEUE_SHOWN = 18;
const TAGS_SHOWN = 3;
const VIOLATIONS_SHOWN = 4;
const PROMPT_SHOWN = 160; // characters
const SPEEDS = [1, 2, 4, 16];
const STEP_MS = 900; // per step when playing at speed 1
const INVARIANTS = {
  I1: "conservation",
  I2: "ref-count",
  I3: "no-repeat",
  I4: "no-shared-write",
  I5: "capacity",
  I6: "written-first",
};
const ICONS = {
  first: "M5 5v14M19 5.5v13L9 12z",
  back: "M16.5 5.5v13L7 12z",
  play: "M8 5.2v13.6L19 12z",
  pause: "M8.5 5.5v13M15.5 5.5v13",
  forward: "M7.5 5.5v13L17 12z",
  last: "M19 5v14M5 5.5v13L15 12z",
};
const KEYS = [
  ["← →", "one step back or forward; when a block has the focus, to the block before or after"],
  ["↓ ↑", "one step back or forward; when a block has the focus, to the block below or above"],
  [", .", "one step back or forward, wherever the focus is"],
  ["Space", "play or pause; on a button, press it"],
  ["Home End", "first or last step; first or last block when a block has the focus"],
  ["PgUp PgDn", "previous or next mark on the timeline; after the last of them, the first or last step"],
  ["Tab", "on to the buttons, timeline, request blocks, pool, footer, next cell; with Shift: back"],
  ["Enter", "on a block: follow the arrow to its other side; on a button: press it"],
  ["Shift+Enter", "run the cell and go on to the next, as everywhere in the notebook"],
  ["?", "show or hide these keys"],
  ["Esc", "back to the cell"],
];

// ---- patches ------------------------------------------------------------------------------------

const copied = (value) => (Array.isArray(value) ? value.map(copied) : isObject(value) ? copiedObject(value) : value);
const isObject = (value) => value !== null && typeof value === "object";
const copiedObject = (value) => Object.fromEntries(Object.entries(value).map(([key, each]) => [key, copied(each)]));

class Player {
  // Holds the state at one step; `undone` is what takes a step back: [container, key, old value, old length].
  constructor(frames) {
    this.frames = frames;
    this.state = {};
    this.step = -1;
    this.undo = [];
  }

  seek(step) {
    while (this.step < step) this.forward();
    while (this.step > step) this.backward();
  }

  forward() {
    const undo = [];
    for (const [path, value] of this.frames[this.step + 1].patch) {
      let at = this.state;
      for (let i = 0; i < path.length - 1; i++) at = at[path[i]];
      const key = path[path.length - 1];
      undo.push([at, key, at[key], at.length]);
      at[key] = copied(value);
    }
    this.undo.push(undo);
    this.step += 1;
  }

  backward() {
    const undo = this.undo.pop();
    for (let i = undo.length - 1; i >= 0; i--) {
      const [at, key, value, length] = undo[i];
      at[key] = value;
      if (Array.isArray(at)) at.length = length;
    }
    this.step -= 1;
  }
}

// ---- small helpers ------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function vector(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function icon(name) {
  return vector("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, vector("path", { d: ICONS[name] }));
}

function setText(at, text) {
  if (at.textContent !== text) at.textContent = text;
}

function setLabel(at, text) {
  if (at.getAttribute("aria-label") !== text) at.setAttribute("aria-label", text);
}

const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const shown = (word) => word.replace(/^ +| +$/g, "").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "␣";
const storedIn = (request) => Math.max(0, request.end - request.offset);
const slotColumns = (size) => (size === 1 ? 1 : size <= 4 ? 2 : 4);

// ---- the view -----------------------------------------------------------------------------------

class View {
  constructor(model, host) {
    this.model = model;
    this.player = new Player(model.get("_chunks").flatMap((chunk) => JSON.parse(chunk)));
    this.rows = []; // per request: {node, name, facts, list, boxes: [{node, signature, block}]}
    this.aside = []; // rows of requests that have yet to come at this step; the next one's is the last
    this.cells = []; // per block: {node, signature}
    this.linked = [];
    this.hovered = null; // what the pointer or the focus is on: {block, request, index}
    this.focused = null;
    this.news = { step: -1, text: "" }; // what was broken on the way to this step
    this.entered = new Set(); // the lists in which the reader has been: Tab comes back to the same block
    this.speed = 0;
    this.build(host);
    this.listen();
    this.render();
  }

  get last() {
    return this.player.frames.length - 1;
  }

  get step() {
    return Math.min(this.model.get("step"), this.last);
  }

  // ---- building, once -----------------------------------------------------------------------------

  build(host) {
    this.root = element("div", { class: "minikv-block-map", role: "group", "aria-label": "Block map", tabindex: "-1" });
    this.title = element("div", { class: "mk-step" });
    this.sentence = element("p", { class: "mk-sentence", "aria-live": "polite", "aria-atomic": "true" });
    this.spoken = element("p", { class: "mk-spoken", "aria-live": "polite", "aria-atomic": "true" });
    this.stage = element("div", { class: "mk-stage" }, this.buildLogical(), this.buildPhysical());
    this.links = vector("svg", { class: "mk-links", "aria-hidden": "true" });
    this.ends = vector("svg", { class: "mk-link-ends", "aria-hidden": "true" });
    this.stage.prepend(this.links);
    this.stage.append(this.ends);
    this.detail = element("p", { class: "mk-detail" });
    this.help = this.buildHelp();
    this.root.append(
      element("header", { class: "mk-head" }, this.title, this.sentence, this.spoken),
      this.buildControls(),
      this.help,
      this.stage,
      this.detail,
      this.buildFooter(),
    );
    host.append(this.root);
  }

  buildControls() {
    const button = (name, label, action) => {
      const made = element("button", { type: "button", class: "mk-button", "aria-label": label, title: label });
      made.append(icon(name));
      made.addEventListener("click", action);
      return made;
    };
    this.playButton = button("play", "Play", () => this.togglePlay());
    this.buttons = {
      first: button("first", "First step", () => this.go(0)),
      back: button("back", "Step back", () => this.go(this.step - 1)),
      play: this.playButton,
      forward: button("forward", "Step forward", () => this.go(this.step + 1)),
      last: button("last", "Last step", () => this.go(this.last)),
    };
    this.speedButton = element("button", { type: "button", class: "mk-button mk-text-button", title: "Playing speed" });
    this.speedButton.addEventListener("click", () => this.nextSpeed());
    this.helpButton = element("button", { type: "button", class: "mk-button mk-text-button", title: "Keys" }, "?");
    this.helpButton.setAttribute("aria-label", "Keys");
    this.helpButton.addEventListener("click", () => this.toggleHelp());
    this.helpButton.setAttribute("aria-expanded", "false");
    this.helpButton.setAttribute("aria-controls", this.help.id);
    const transport = element("div", { class: "mk-transport", role: "group", "aria-label": "Steps" });
    transport.append(...Object.values(this.buttons), this.speedButton);
    return element("div", { class: "mk-controls" }, transport, this.buildTimeline(), this.helpButton);
  }

  buildTimeline() {
    this.fill = element("div", { class: "mk-fill" });
    this.thumb = element("div", { class: "mk-thumb" });
    this.marks = element("div", { class: "mk-marks", "aria-hidden": "true" });
    this.timeline = element("div", { class: "mk-timeline", role: "slider", tabindex: "0", "aria-label": "Step" });
    this.timeline.append(element("div", { class: "mk-track" }, this.fill), this.marks, this.thumb);
    this.timeline.dataset.testid = "timeline";
    return this.timeline;
  }

  buildLogical() {
    this.logical = element("div", { class: "mk-requests", role: "listbox", "aria-label": "Blocks of the requests" });
    this.logicalHint = element("p", { class: "mk-hint" });
    this.gone = element("p", { class: "mk-hint mk-gone" });
    const title = element("h3", {}, "Logical ", element("span", {}, "what each request sees"));
    return element("section", { class: "mk-logical" }, title, this.logicalHint, this.logical, this.gone);
  }

  buildPhysical() {
    this.pool = element("div", { class: "mk-pool", role: "listbox", "aria-label": "Blocks of the pool" });
    const title = element("h3", {}, "Physical ", element("span", {}, "the pool"));
    this.poolHint = element("p", { class: "mk-hint" });
    return element("section", { class: "mk-physical" }, title, this.poolHint, this.pool);
  }

  buildFooter() {
    this.queue = element("div", { class: "mk-queue" });
    this.bar = element("div", { class: "mk-bar", role: "img" });
    this.barText = element("div", { class: "mk-bar-text" });
    this.invariants = element("div", { class: "mk-invariants" });
    this.violations = element("div", { class: "mk-violations" });
    const row = (label, ...parts) =>
      element("div", { class: "mk-row" }, element("div", { class: "mk-label" }, label), element("div", {}, ...parts));
    // Can have the focus, so that Tab brings it into sight where the window is low.
    return element(
      "footer",
      { class: "mk-foot", role: "group", tabindex: "0", "aria-label": "Free queue, memory, invariants" },
      row("Free queue", this.queue),
      row("Memory", this.bar, this.barText),
      row("Invariants", this.invariants, this.violations),
    );
  }

  buildHelp() {
    const rows = KEYS.flatMap(([keys, meaning]) => [
      element("dt", {}, ...keys.split(" ").map((key) => element("kbd", {}, key))),
      element("dd", {}, meaning),
    ]);
    const help = element("div", { class: "mk-help", role: "region", "aria-label": "Keys" }, element("dl", {}, ...rows));
    help.hidden = true;
    help.id = `mk-help-${Math.random().toString(36).slice(2)}`; // a page may have several maps
    return help;
  }

  // ---- listening ----------------------------------------------------------------------------------

  listen() {
    this.onStep = () => this.schedule();
    this.onMark = () => this.schedule();
    this.onDelta = () => this.append(this.model.get("_delta"));
    this.model.on("change:step", this.onStep);
    this.model.on("change:highlight", this.onMark);
    this.model.on("change:caption", this.onMark);
    this.model.on("change:_delta", this.onDelta);
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    this.root.addEventListener("focusin", (event) => this.onFocus(event));
    this.root.addEventListener("focusout", () => this.setFocused(null));
    // Moves only: a block that is drawn or scrolled under a parked pointer is not pointed at.
    this.root.addEventListener("pointermove", (event) => this.setHovered(this.placeOf(event.target)));
    this.root.addEventListener("pointerleave", () => this.setHovered(null));
    this.stage.addEventListener("click", (event) => event.target.closest(".mk-option")?.focus());
    const onScroll = () => {
      if (this.resting) this.drawNear(this.near(this.cells.length));
      this.drawLinks();
    };
    this.stage.addEventListener("scroll", onScroll, { capture: true, passive: true });
    this.listenToTimeline();
    this.sizes = new ResizeObserver(() => {
      const width = this.root.clientWidth;
      if (width !== this.width && this.frame) this.showMain(); // at first the map is not on the page yet
      this.width = width;
      this.drawMarks();
      this.drawLinks();
    });
    this.sizes.observe(this.root);
  }

  listenToTimeline() {
    const seek = (event) => this.go(this.stepAt(event.clientX));
    this.timeline.addEventListener("pointerdown", (event) => {
      this.timeline.setPointerCapture(event.pointerId);
      this.timeline.focus();
      seek(event);
    });
    this.timeline.addEventListener("pointermove", (event) => {
      if (this.timeline.hasPointerCapture(event.pointerId)) seek(event);
    });
  }

  destroy() {
    this.stop();
    this.sizes.disconnect();
    clearTimeout(this.resting);
    cancelAnimationFrame(this.scheduled);
    this.model.off("change:step", this.onStep);
    this.model.off("change:highlight", this.onMark);
    this.model.off("change:caption", this.onMark);
    this.model.off("change:_delta", this.onDelta);
    this.root.remove();
  }

  append({ start, chunk }) {
    if (start !== this.player.frames.length) {
      throw new Error(`block map: frames from ${start} on arrived, but ${this.player.frames.length} are here`);
    }
    // A view at the end follows the log; one that was moved stays where it is. What is asked is where the reader
    // went, not what was drawn last: several deliveries, or a key, may fall into one frame.
    const follows = this.model.get("step") === this.last;
    this.player.frames.push(...JSON.parse(chunk));
    this.drawMarks();
    if (follows) {
      this.model.set("step", this.last);
      if (this.moved) this.model.save_changes(); // outdates the echo of a step that the kernel has yet to confirm
    }
    this.schedule();
  }

  // ---- moving -------------------------------------------------------------------------------------

  go(step) {
    const to = Math.max(0, Math.min(this.last, step));
    if (this.last < 0 || to === this.step) return;
    this.moved = true;
    this.model.set("step", to);
    // At once: the kernel's echo of a step sent before is dropped only if a newer one is known to be on its way.
    this.model.save_changes();
  }

  togglePlay() {
    if (this.playing) return this.stop();
    if (this.step >= this.last) this.go(0);
    this.play();
  }

  play() {
    this.playing = setTimeout(() => {
      this.go(this.step + 1);
      if (this.step < this.last) this.play();
      else this.stop();
    }, STEP_MS / SPEEDS[this.speed]);
    this.showPlaying(true);
  }

  stop() {
    clearTimeout(this.playing);
    this.playing = undefined;
    this.showPlaying(false);
  }

  showPlaying(playing) {
    const label = playing ? "Pause" : "Play";
    if (this.playButton.title === label) return;
    this.playButton.replaceChildren(icon(playing ? "pause" : "play"));
    this.playButton.title = label;
    this.playButton.setAttribute("aria-label", label);
  }

  nextSpeed() {
    this.speed = (this.speed + 1) % SPEEDS.length;
    this.drawControls();
  }

  toggleHelp() {
    this.help.hidden = !this.help.hidden;
    this.helpButton.setAttribute("aria-expanded", String(!this.help.hidden));
  }

  goToMark(direction) {
    const frames = this.player.frames;
    let step = this.step + direction;
    while (frames[step] && !frames[step].mark) step += direction;
    this.go(frames[step] ? step : direction < 0 ? 0 : this.last);
  }

  // ---- keys ---------------------------------------------------------------------------------------

  onKey(event) {
    this.hovered = null; // whoever presses keys no longer points
    if (event.shiftKey && event.key === "Enter") return; // the notebook's: run the cell and go on
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const ownPress = event.target.closest("button") && (event.key === " " || event.key === "Enter");
    if (!ownPress) {
      const option = event.target.closest(".mk-option");
      const used = (option && this.onBlockKey(option, event.key)) || this.onStepKey(event.key) || this.onLeaveKey(event);
      if (used) event.preventDefault();
      else if (!isCommand(event.key)) return;
    }
    event.stopPropagation(); // a key that was used here is not the notebook's as well
  }

  onStepKey(key) {
    const actions = {
      ArrowLeft: () => this.go(this.step - 1),
      ArrowRight: () => this.go(this.step + 1),
      ArrowDown: () => this.go(this.step - 1),
      ArrowUp: () => this.go(this.step + 1),
      ",": () => this.go(this.step - 1),
      ".": () => this.go(this.step + 1),
      Home: () => this.go(0),
      End: () => this.go(this.last),
      PageUp: () => this.goToMark(-1),
      PageDown: () => this.goToMark(1),
      " ": () => this.togglePlay(),
      "?": () => this.toggleHelp(),
    };
    if (key === "Escape" && !this.help.hidden) actions.Escape = () => this.toggleHelp();
    actions[key]?.();
    return key in actions;
  }

  onLeaveKey({ key, shiftKey, target }) {
    const own = this.root.closest(".jp-Cell");
    if (!own) return false;
    if (key === "Escape") own.focus();
    // By itself, Tab would go on to whatever can have the focus next, several cells below.
    else if (key === "Tab" && !shiftKey && this.isLastStop(target)) nextCell(own).focus();
    else return false;
    return true;
  }

  isLastStop(target) {
    // Of the whole output: the cell may show more than this map.
    const output = this.root.closest(".jp-Cell-outputArea") ?? this.root;
    const stops = [...output.querySelectorAll(STOPS)].filter((node) => node.checkVisibility());
    return stops[stops.length - 1] === target;
  }

  onBlockKey(option, key) {
    const options = [...option.closest("[role=listbox]").querySelectorAll(".mk-option")];
    const here = options.indexOf(option);
    const targets = {
      ArrowLeft: () => options[here - 1],
      ArrowRight: () => options[here + 1],
      ArrowUp: () => neighbour(option, options, -1),
      ArrowDown: () => neighbour(option, options, 1),
      Home: () => options[0],
      End: () => options[options.length - 1],
      Enter: () => this.otherSide(option),
    };
    if (!(key in targets)) return false;
    targets[key]()?.focus();
    return true;
  }

  otherSide(option) {
    const { block, request } = this.placeOf(option);
    if (request !== undefined) return this.cells[block].node;
    return this.boxesOf(block)[0]?.node;
  }

  // ---- hover and focus ----------------------------------------------------------------------------

  placeOf(target) {
    const node = target.closest?.("[data-block]");
    if (!node) return null;
    const { block, request, index } = node.dataset;
    if (request === undefined) return { block: Number(block) };
    return { block: Number(block), request: Number(request), index: Number(index) };
  }

  onFocus(event) {
    this.hovered = null;
    const option = event.target.closest(".mk-option");
    if (option) this.makeTabStop(option);
    this.setFocused(option ? this.placeOf(option) : null);
    this.labelFocused();
  }

  labelFocused() {
    // Small blocks get their full label when it is needed, a thousand labels a step would cost too much.
    if (!this.big || !this.focused) return;
    const { block, request, index } = this.focused;
    const label = this.describe(this.player.state, block);
    setLabel(document.activeElement, request === undefined ? label : `L${index}. ${label}`);
  }

  makeTabStop(option) {
    const list = option.closest("[role=listbox]");
    this.entered.add(list);
    moveTabStop(list, option);
  }

  setHovered(place) {
    const { hovered } = this;
    if (["block", "request", "index"].every((key) => place?.[key] === hovered?.[key])) return;
    this.hovered = place;
    this.drawLinks();
  }

  setFocused(place) {
    this.focused = place;
    if (place) this.showOtherSide(place);
    this.drawLinks();
  }

  showOtherSide({ block, request }) {
    const other = request === undefined ? this.boxesOf(block)[0] : this.cells[block];
    if (other) reveal(other.node);
  }

  boxesOf(block) {
    return this.rows.flatMap((row) => row.boxes.filter((box) => box.block === block));
  }

  // ---- drawing ------------------------------------------------------------------------------------

  schedule() {
    cancelAnimationFrame(this.scheduled);
    this.scheduled = requestAnimationFrame(() => this.render());
  }

  render() {
    if (this.last < 0) return this.renderEmpty();
    this.player.seek(this.step);
    const state = this.player.state;
    this.frame = this.player.frames[this.player.step];
    this.fresh = new Set(this.frame.slots);
    this.standing = state.violations.filter((found) => found.until === null);
    this.broken = new Set(this.standing.map((found) => found.block));
    this.marked = new Set(this.model.get("highlight"));
    const { blocks } = this.frame;
    this.main = blocks.find((block) => this.marked.has(block)) ?? blocks[0]; // of several, one that is marked
    const focused = document.activeElement;
    this.useSize(state.num_blocks > BIG);
    const near = this.near(state.num_blocks);
    this.root.classList.remove("is-empty");
    this.drawHead();
    this.drawControls();
    this.drawRequests(state);
    this.drawPool(state, near);
    this.drawFooter(state);
    this.keepTabStops(focused);
    this.showMain();
    this.drawLinks();
  }

  useSize(big) {
    if (big === this.big) return;
    this.big = big;
    this.root.classList.toggle("is-big", big);
    for (const row of this.rows) row.node.remove(); // what was drawn in the other size is of no use
    this.rows = [];
    this.aside = [];
    this.cells = [];
  }

  renderEmpty() {
    this.root.classList.add("is-empty");
    setText(this.title, "No events yet");
    setText(this.sentence, "The map fills as the log does.");
  }

  drawHead() {
    setText(this.title, `Step ${this.player.step} of ${this.last}`);
    this.findNews();
    // With the focus on it, the slider says all this when its value changes: once is enough.
    const bySlider = document.activeElement === this.timeline;
    this.sentence.setAttribute("aria-live", bySlider ? "off" : "polite");
    setText(this.sentence, this.frame.sentence);
    setText(this.spoken, bySlider ? "" : this.news.text);
  }

  findNews() {
    // The invariants that this step, or one of those that were passed on the way here, has broken.
    const { step } = this.player;
    if (step === this.news.step) return;
    const found = this.standing.filter((each) => each.step === step || each.step > this.news.step);
    const lines = found.slice(0, VIOLATIONS_SHOWN).map(({ invariant, sentence }) => {
      return `Broken: ${invariant} ${INVARIANTS[invariant]}. ${sentence}`;
    });
    if (found.length > lines.length) lines.push(`And ${counted(found.length - lines.length, "more violation")}.`);
    this.news = { step, text: lines.join(" ") };
  }

  drawControls() {
    const step = this.player.step;
    const part = this.last > 0 ? step / this.last : 1;
    this.fill.style.transform = `scaleX(${part})`;
    this.thumb.style.left = `${part * 100}%`;
    this.timeline.setAttribute("aria-valuemin", "0");
    this.timeline.setAttribute("aria-valuemax", String(this.last));
    this.timeline.setAttribute("aria-valuenow", String(step));
    const said = `Step ${step} of ${this.last}: ${this.frame.sentence} ${this.news.text}`.trimEnd();
    this.timeline.setAttribute("aria-valuetext", said);
    for (const name of ["first", "back"]) this.buttons[name].setAttribute("aria-disabled", String(step === 0));
    for (const name of ["forward", "last"]) this.buttons[name].setAttribute("aria-disabled", String(step === this.last));
    setText(this.speedButton, `${SPEEDS[this.speed]}×`);
    this.speedButton.setAttribute("aria-label", `Playing speed ${SPEEDS[this.speed]} times`);
  }

  stepAt(x) {
    const { left, width } = this.timeline.querySelector(".mk-track").getBoundingClientRect();
    const exact = ((x - left) / width) * this.last;
    const reach = (5 / width) * this.last; // a mark within five pixels is meant
    const near = (this.marked_steps ?? []).find((step) => Math.abs(step - exact) <= reach);
    return near ?? Math.round(exact);
  }

  // ---- marks on the timeline ----------------------------------------------------------------------

  drawMarks() {
    const width = this.marks.clientWidth;
    if (!width || this.last < 1) return;
    const found = this.markList(width);
    this.marked_steps = found.map((mark) => mark.step);
    const taken = []; // stretches of the label line, in pixels
    const fits = (at, half) => taken.every(([from, to]) => at + half < from || at - half > to);
    const bad = (mark) => mark.label in INVARIANTS;
    const nodes = [...found].sort((a, b) => bad(b) - bad(a) || a.step - b.step).map((mark) => {
      const at = (mark.step / this.last) * width;
      const half = mark.label.length * 3.2 + 6;
      const node = element("span", { class: `mk-mark${bad(mark) ? " is-bad" : ""}`, style: `left:${at}px` });
      if (fits(at, half)) {
        taken.push([at - half, at + half]);
        node.append(element("span", {}, mark.label));
      }
      return node;
    });
    this.marks.replaceChildren(...nodes);
  }

  markList(width) {
    // Steps of one kind in a row are one mark (a fork shares block by block), and so are marks on one pixel.
    const found = [];
    let before = null;
    this.player.frames.forEach(({ mark }, step) => {
      const near = found.length && ((step - found[found.length - 1].step) / this.last) * width < 2;
      if (mark && mark !== before && !(near && !(mark in INVARIANTS))) found.push({ step, label: mark });
      before = mark;
    });
    return found;
  }

  // ---- logical ------------------------------------------------------------------------------------

  drawRequests(state) {
    const slots = counted(state.block_size, "slot");
    const inside = this.big ? "coloured as far as it is written" : "each cell a token";
    setText(this.logicalHint, `each box is a block of ${slots}, ${inside}`);
    setText(this.poolHint, this.big ? "×n = ref count above 1" : "bold = ref count · #n = place in the free queue");
    while (this.rows.length > state.requests.length) this.putAside(this.rows.pop());
    state.requests.forEach((request, number) => this.drawRequest(state, request, number));
    setText(this.gone, state.requests.length ? goneText(state.requests) : "No request yet.");
  }

  drawRequest(state, request, number) {
    if (number === this.rows.length) this.rows.push(this.takeBack() ?? this.newRow(number));
    const row = this.rows[number];
    row.node.hidden = !isShown(request);
    row.node.classList.toggle("is-acting", this.frame.request === number);
    const waiting = this.waitingWord(state, request);
    setLabel(row.node, groupLabel(request, waiting));
    setText(row.name, request.name);
    row.name.title = request.text ? `Request ${request.name}: ${request.text}` : `Request ${request.name}`;
    const signature = facts(request).join("\n");
    if (row.facts.dataset.text !== signature) {
      row.facts.dataset.text = signature;
      row.facts.replaceChildren(...facts(request).map((fact) => element("div", {}, fact)));
    }
    while (row.boxes.length > request.blocks.length) row.boxes.pop().node.remove();
    request.blocks.forEach((block, index) => this.drawBox(state, request, row, number, index, block));
    drawWaiting(row, waiting);
  }

  putAside(row) {
    // With its boxes: who seeks to the start comes back, and a thousand boxes take a while to make.
    tabStopOf(row.node)?.setAttribute("tabindex", "-1");
    row.node.remove();
    this.aside.push(row);
  }

  takeBack() {
    const row = this.aside.pop(); // rows go from the last one on, so this is the one that went from here
    if (row) this.logical.append(row.node);
    return row;
  }

  newRow(number) {
    const name = element("div", { class: "mk-name" });
    const info = element("div", { class: "mk-facts" });
    const list = element("div", { class: "mk-boxes" });
    const waiting = element("div", { class: "mk-waiting" });
    list.append(waiting);
    const head = element("div", { class: "mk-who" }, element("div", { class: "mk-kind" }, "Request"), name, info);
    const node = element("div", { class: `mk-request ${inkClass(number)}`, role: "group" }, head, list);
    this.logical.append(node);
    return { node, name, facts: info, list, waiting, boxes: [] };
  }

  drawBox(state, request, row, number, index, block) {
    if (index === row.boxes.length) row.boxes.push(newBox(row, number, index));
    const box = row.boxes[index];
    if (this.big) return this.drawSmallBox(state, request, box, index, block);
    const slots = this.slotsOf(state, request, index, block);
    const flags = this.flags(block);
    const count = state.ref[block];
    const last = index === request.blocks.length - 1;
    setLabel(box.node, this.boxLabel(index, block, count, slots, last ? this.waitingWord(state, request) : ""));
    const signature = `${block}|${count}|${flags}|${slots.map(({ kind, text }) => kind + text).join("|")}`;
    if (box.signature === signature) return;
    box.signature = signature;
    box.block = block;
    box.node.dataset.block = block;
    box.node.className = `mk-option mk-box ${flags}`;
    box.node.replaceChildren(...this.boxParts(state, index, block, count, slots));
  }

  boxLabel(index, block, count, slots, waiting) {
    // What the picture says by dashes, italics and frames is said in words.
    const of = (kind) => slots.filter((slot) => slot.kind.startsWith(kind));
    const [dead, written, chosen, empty] = [of("is-dead"), of("is-written"), of("is-chosen"), of("is-empty")];
    const parts = [];
    if (dead.length) parts.push(`${counted(dead.length, "slot")} before the offset`);
    if (written.length) parts.push(written.map(({ text }) => text).join(" "));
    if (!written.length && !dead.length) parts.push("nothing written");
    if (chosen.length) parts.push(`chosen, not stored: ${chosen[0].text}`);
    if (empty.length) parts.push(`${counted(empty.length, "slot")} empty`);
    if (waiting) parts.push(`chosen, no slot yet: ${waiting}`);
    return `L${index}, block ${block}, ref count ${count}: ${parts.join("; ")}${this.saidMarks(block)}`;
  }

  drawSmallBox(state, request, box, index, block) {
    // One element without children: a thousand of these are drawn within one seek.
    const size = state.block_size;
    const dead = Math.max(0, Math.min(size, request.offset - index * size));
    const used = dead + countWritten(state.words[block], dead);
    const flags = this.flags(block);
    const count = state.ref[block];
    const signature = `${block}|${count}|${flags}|${used}|${dead}`;
    if (box.signature === signature) return;
    box.signature = signature;
    if (box.block !== block) {
      box.block = block;
      box.node.dataset.block = block;
      box.node.textContent = `L${index} → P${block}`;
    }
    box.node.className = `mk-option mk-box ${flags}${used === size ? " is-full" : ""}`;
    box.node.style.cssText = used === size ? "" : `--used:${(100 * used) / size}%`; // a style of its own is costly
    setData(box.node, "count", count > 1 ? `×${count}` : "");
  }

  boxParts(state, index, block, count, slots) {
    const head = element("div", { class: "mk-box-head" });
    head.append(element("span", {}, `L${index} → `, element("b", {}, `P${block}`)));
    if (count > 1) head.append(element("span", { class: "mk-shared", title: `${count} holders` }, `×${count}`));
    const grid = element("div", { class: "mk-slots", style: `--columns:${slotColumns(state.block_size)}` });
    grid.append(...slots.map(({ kind, text }) => element("span", { class: `mk-slot ${kind}`, title: text }, text)));
    return [head, grid];
  }

  slotsOf(state, request, index, block) {
    const end = Math.max(request.end, request.offset);
    return state.words[block].map((word, place) => {
      const at = index * state.block_size + place;
      if (at < request.offset) return { kind: "is-dead", text: "–" };
      if (word !== null) {
        const fresh = this.fresh.has(block * state.block_size + place);
        return { kind: fresh ? "is-written is-fresh" : "is-written", text: shown(word) };
      }
      if (request.next && at === end) return { kind: "is-chosen", text: shown(request.next.word) };
      return { kind: "is-empty", text: "" };
    });
  }

  waitingWord(state, request) {
    // A chosen token for which the table has no slot: the next block has to come first.
    const full = request.offset + storedIn(request) >= request.blocks.length * state.block_size;
    return request.next && full ? shown(request.next.word) : "";
  }

  saidMarks(block) {
    return `${this.broken.has(block) ? ", broken" : ""}${this.marked.has(block) ? ", marked" : ""}`;
  }

  flags(block) {
    const flags = [];
    if (this.broken.has(block)) flags.push("is-broken");
    if (this.marked.has(block)) flags.push("is-marked");
    if (this.main === block) flags.push("is-main");
    return flags.join(" ");
  }

  // ---- physical -----------------------------------------------------------------------------------

  near(count) {
    // The cells in sight, and those that come into sight when the event's own is scrolled to: [from, to) each.
    // Asked before anything is drawn, when the browser knows the answer without a new layout.
    const { scrollTop, clientHeight, scrollHeight } = this.pool;
    if (!this.big || !scrollHeight || this.cells.length !== count) return [[0, count]];
    const first = Math.floor((scrollTop / scrollHeight) * count);
    const seen = Math.ceil((clientHeight / scrollHeight) * count) + MARGIN;
    const { main } = this;
    const ranges = [[first - MARGIN, first + seen]];
    return main === undefined ? ranges : [...ranges, [main - seen, main + seen]];
  }

  drawPool(state, near) {
    if (this.cells.length !== state.num_blocks) this.newCells(state.num_blocks);
    const holders = this.cells.map(() => []);
    state.requests.forEach((request, number) => {
      for (const block of new Set(request.blocks)) holders[block].push(number);
    });
    this.waiting = state.tape.slice(state.head).filter((block) => block !== null);
    this.places = new Map();
    this.waiting.forEach((block, place) => {  // in a broken queue a block may wait twice
      if (!this.places.has(block)) this.places.set(block, place + 1);
    });
    this.holders = holders;
    this.drawNear(near);
    clearTimeout(this.resting);
    if (this.big) this.resting = setTimeout(() => this.drawRest(), REST_MS);
  }

  drawNear(near) {
    for (const [from, to] of near) {
      const end = Math.min(this.cells.length, to);
      for (let block = Math.max(0, from); block < end; block++) {
        this.drawCell(this.player.state, block, this.holders[block]);
      }
    }
  }

  drawRest() {
    // What is out of sight in a big pool is drawn when the seeking pauses.
    this.resting = undefined;
    this.drawNear([[0, this.cells.length]]);
  }

  newCells(count) {
    this.cells = Array.from({ length: count }, (_, block) => {
      const node = element("div", { role: "option", tabindex: "-1", "aria-selected": "false" });
      node.dataset.block = block;
      return { node, signature: null };
    });
    this.pool.replaceChildren(...this.cells.map((cell) => cell.node));
  }

  drawCell(state, block, holders) {
    const cell = this.cells[block];
    const free = this.places.has(block) && state.ref[block] === 0;
    // In a big pool the places are not drawn, so that taking one block does not redraw all free ones.
    const place = this.big ? "" : (this.places.get(block) ?? "");
    const cached = state.other[block] > 0;
    const flags = `${this.flags(block)}${free ? " is-free" : ""}`;
    // Says more than the cell shows; a big pool has its labels when they are needed.
    if (!this.big) setLabel(cell.node, this.describe(state, block));
    const signature = `${state.ref[block]}|${place}|${flags}|${holders}|${cached}`;
    if (cell.signature === signature) return;
    cell.signature = signature;
    if (this.big) return drawSmallCell(state, cell.node, block, flags, holders, cached);
    cell.node.className = `mk-option mk-cell ${flags}`;
    const head = element("div", { class: "mk-cell-head" }, element("span", {}, `P${block}`));
    if (place !== "") head.append(element("span", { class: "mk-place" }, `#${place}`));
    if (!free) head.append(element("b", {}, String(state.ref[block])));
    cell.node.replaceChildren(head, free ? element("div", { class: "mk-free" }, "free") : tags(state, holders, cached));
  }

  describe(state, block) {
    const place = this.places.get(block);
    if (place && state.ref[block] === 0) {
      return `Block ${block}: free, number ${place} in the free queue${this.saidMarks(block)}`;
    }
    const names = this.holders[block].map((number) => {
      const request = state.requests[number];
      return `request ${request.name} as L${request.blocks.indexOf(block)}`;
    });
    if (state.other[block] > 0) names.push("a cache");
    const written = state.words[block].filter((word) => word !== null).length;
    const text = `ref count ${state.ref[block]} · held by ${names.join(" and ") || "nobody"}`;
    return `Block ${block}: ${text} · ${written} of ${state.block_size} slots written${this.saidMarks(block)}`;
  }

  // ---- below the map ------------------------------------------------------------------------------

  drawFooter(state) {
    this.drawQueue();
    this.drawMemory(state);
    this.drawInvariants();
  }

  drawQueue() {
    const ids = this.waiting;
    const signature = `${ids.length}:${ids.slice(0, QUEUE_SHOWN)}`;
    if (this.queue.dataset.text === signature) return;
    this.queue.dataset.text = signature;
    const chips = ids.slice(0, QUEUE_SHOWN).map((block) => {
      const chip = element("span", { class: "mk-chip" }, `P${block}`);
      chip.dataset.block = block;
      return chip;
    });
    const rest = ids.length - chips.length;
    if (rest > 0) chips.push(element("span", { class: "mk-more" }, `and ${rest} more`));
    if (!ids.length) chips.push(element("span", { class: "mk-more" }, "empty: no block is free"));
    this.queue.replaceChildren(...chips);
  }

  drawMemory(state) {
    const { tokens, unused, before, lost, free, held, peak, saved } = state.memory;
    const parts = Object.entries({ tokens, unused, before, ...(lost && { lost }), free });
    const signature = `${parts}|${held}|${peak}|${saved}`;
    if (this.bar.dataset.text === signature) return;
    this.bar.dataset.text = signature;
    const slots = state.num_blocks * state.block_size;
    const pieces = parts.filter(([, number]) => number).map(([name, number]) => {
      const share = number / slots;
      const label = share > 0.1 ? `${name} ${number}` : share > 0.025 ? String(number) : "";
      return element("span", { class: `mk-part is-${name}`, style: `flex-grow:${number}`, title: `${name} ${number}` }, label);
    });
    this.bar.replaceChildren(...pieces);
    const names = { tokens: "tokens", unused: "unused", before: "before offset", lost: "lost", free: "free" };
    this.bar.setAttribute("aria-label", `${slots} slots: ${parts.map(([name, number]) => `${number} ${names[name]}`).join(", ")}`);
    const legend = parts.map(([name, number]) => {
      return element("span", {}, element("span", { class: `mk-swatch is-${name}` }), `${number} ${names[name]}`);
    });
    const blocks = [`${held} of ${state.num_blocks} blocks held`, `peak ${peak}`];
    if (saved) blocks.push(`sharing saves ${saved}`);
    this.barText.replaceChildren(...legend, element("span", { class: "mk-blocks" }, blocks.join(" · ")));
  }

  drawInvariants() {
    const signature = JSON.stringify([this.standing, [...this.marked], this.model.get("caption")]);
    if (this.invariants.dataset.text === signature) return;
    this.invariants.dataset.text = signature;
    this.invariants.replaceChildren(...Object.keys(INVARIANTS).map((short) => this.pill(short)));
    const lines = this.standing.slice(0, VIOLATIONS_SHOWN).map((found) => this.violation(found));
    const rest = this.standing.length - lines.length;
    if (rest > 0) lines.push(element("p", {}, `and ${counted(rest, "more violation")}`));
    if (this.marked.size) lines.unshift(this.captionLine());
    this.violations.replaceChildren(...lines);
  }

  captionLine() {
    const blocks = [...this.marked].map((block) => `P${block}`).join(", ");
    const caption = this.model.get("caption");
    return element("p", { class: "mk-caption" }, `◆ ${blocks}${caption ? `: ${caption}` : ""}`);
  }

  pill(short) {
    const found = this.standing.find((each) => each.invariant === short);
    const text = `${short} ${INVARIANTS[short]}`;
    if (!found) return element("span", { class: "mk-pill", role: "img", "aria-label": `${text} holds` }, `✓ ${text}`);
    const label = `${text} is broken since step ${found.step}; go there`;
    const pill = element("button", { type: "button", class: "mk-pill is-bad", title: label, "aria-label": label }, `✗ ${text}`);
    pill.addEventListener("click", () => this.goToViolation(found));
    return pill;
  }

  violation(found) {
    const name = `${found.invariant} ${INVARIANTS[found.invariant]}`;
    const label = `Step ${found.step}: ${name}${found.block === null ? "" : `, block ${found.block}`}`;
    const go = element("button", { type: "button", class: "mk-go", "aria-label": label }, `Step ${found.step}`);
    go.addEventListener("click", () => this.goToViolation(found));
    return element("p", {}, go, element("span", {}, `${name}: ${found.sentence}`));
  }

  goToViolation({ step, block }) {
    this.stop();
    this.go(step);
    this.render();
    const node = block === null ? null : this.cells[block].node;
    node?.focus({ preventScroll: true });
    this.root.scrollIntoView({ block: "nearest" }); // all of the map, if it fits
    node?.scrollIntoView({ block: "nearest" }); // and the block in any case
  }

  // ---- focus that survives a redraw ---------------------------------------------------------------

  keepTabStops(focused) {
    const { main } = this;
    this.keepTabStop(this.logical, (this.mainBox() ?? this.boxesOf(main)[0])?.node);
    this.keepTabStop(this.pool, this.cells[main]?.node);
    const lost = focused && !focused.isConnected;
    if (lost) (this.twinOf(focused) ?? this.timeline).focus(); // what had the focus is gone: keys go on working
    const option = document.activeElement?.closest?.(".mk-option");
    if (option && this.root.contains(option)) this.focused = this.placeOf(option);
    this.labelFocused();
  }

  keepTabStop(list, main) {
    // Where Tab enters a list: at the block the reader was on; before that, at the event's own.
    const stop = tabStopOf(list);
    if (stop && this.entered.has(list)) return;
    const start = main ?? stop ?? list.querySelector(".mk-option");
    if (start && start !== stop) moveTabStop(list, start);
  }

  twinOf(lost) {
    // A button that was drawn anew, such as that of an invariant that is still broken.
    const label = lost.getAttribute("aria-label");
    const buttons = lost.localName === "button" ? [...this.root.querySelectorAll(".mk-foot button")] : [];
    return buttons.find((each) => each.getAttribute("aria-label") === label);
  }

  mainBox() {
    // The event's block in the row of the request that acts.
    const row = this.rows[this.frame.request];
    return row?.boxes.find((box) => box.block === this.main);
  }

  showMain() {
    // Scrolls inside the map only, so that the page does not jump while it plays.
    const { main } = this;
    if (main === undefined) return;
    for (const node of [this.cells[main].node, this.mainBox()?.node]) if (node) reveal(node);
  }

  // ---- links between the two sides ----------------------------------------------------------------

  drawLinks() {
    if (!this.frame) return;
    for (const node of this.linked) {
      node.classList.remove("is-linked");
      node.setAttribute("aria-selected", "false");
    }
    const place = this.hovered ?? this.focused ?? this.eventPlace();
    const boxes = place ? this.boxesOf(place.block) : [];
    const byHand = this.hovered ?? this.focused;
    const drawn = byHand ? boxes : boxes.filter((box) => Number(box.node.dataset.request) === this.frame.request);
    const cell = place ? this.cells[place.block]?.node : undefined;
    this.linked = cell ? [cell, ...boxes.map((box) => box.node)] : [];
    if (byHand) {
      for (const node of this.linked) {
        node.classList.add("is-linked");
        node.setAttribute("aria-selected", "true");
      }
    }
    setText(this.detail, cell ? this.detailOf(place) : "");
    this.links.replaceChildren();
    this.ends.replaceChildren();
    const links = cell ? drawn.flatMap((box) => this.link(box, cell)) : [];
    // Behind the blocks, where they leave room for a line to be seen; in a big pool they do not.
    (this.big ? this.ends : this.links).append(...links.map((link) => link.path));
    this.ends.append(...links.map((link) => link.end));
  }

  detailOf({ block, request }) {
    const { state } = this.player;
    const text = this.describe(state, block);
    const from = state.requests[request];
    return from?.text ? `${text} · prompt of request ${from.name}: ${prompt(from)}` : text;
  }

  eventPlace() {
    const block = this.main;
    return block === undefined ? null : { block };
  }

  link(box, cell) {
    if (!isVisible(box.node) || !isVisible(cell)) return [];
    const origin = this.stage.getBoundingClientRect();
    const from = within(box.node.getBoundingClientRect(), origin);
    const to = within(cell.getBoundingClientRect(), origin);
    const pool = within(this.pool.getBoundingClientRect(), origin);
    const beside = pool.left > from.right;
    const edge = within(lineEnd(box.node).getBoundingClientRect(), origin).right;
    const { d, end } = beside ? acrossPath(from, edge, to, pool) : downPath(from, to);
    const ink = inkClass(Number(box.node.dataset.request));
    const path = vector("path", { d, class: `mk-link ${ink}` });
    return [{ path, end: vector("circle", { cx: end[0], cy: end[1], r: 4, class: `mk-link-end ${ink}` }) }];
  }
}

// ---- drawing without the view's state -------------------------------------------------------------

const inkClass = (number) => `mk-ink-${number % INKS} mk-pattern-${number % PATTERNS}`;
const CACHE_CLASSES = "mk-ink-cache mk-pattern-cache";
const OVER = ["finished", "freed"];
const STOPS = ':is(a[href], button, input, select, textarea, summary, iframe, [tabindex]):not([tabindex="-1"], :disabled)';
// Without Ctrl and the like: a letter is a command to the notebook (x cuts the cell), Enter opens the editor.
const isCommand = (key) => key.length === 1 || key === "Enter";
const isShown = (request) => request.blocks.length > 0 || !OVER.includes(request.status);

function goneText(requests) {
  const lines = OVER.map((status) => {
    const names = requests.filter((request) => request.status === status && !isShown(request)).map(({ name }) => name);
    return names.length ? `${status[0].toUpperCase()}${status.slice(1)}: ${names.join(", ")}.` : "";
  });
  return lines.filter(Boolean).join(" ");
}

function drawWaiting(row, text) {
  row.waiting.hidden = !text;
  if (row.waiting.dataset.text === text) return;
  row.waiting.dataset.text = text;
  const word = element("span", { class: "mk-slot is-chosen" }, text);
  row.waiting.replaceChildren(element("span", { class: "mk-waiting-head" }, "no slot yet"), word);
}

function prompt({ text }) {
  return text.length > PROMPT_SHOWN ? `${text.slice(0, PROMPT_SHOWN)} …` : text;
}

function groupLabel(request, waiting) {
  const parts = [`Request ${request.name}`, ...facts(request)];
  if (waiting && !request.blocks.length) parts.push(`chosen, no slot yet: ${waiting}`); // no block says it
  if (request.text) parts.push(`prompt: ${prompt(request)}`);
  return parts.join(", ");
}

function facts(request) {
  const found = [request.status, counted(storedIn(request), "token")];
  if (request.offset) found.push(`offset ${request.offset}`);
  return found;
}

const tabStopOf = (list) => list.querySelector('.mk-option[tabindex="0"]');

function moveTabStop(list, option) {
  tabStopOf(list)?.setAttribute("tabindex", "-1");
  option.setAttribute("tabindex", "0");
}

function newBox(row, number, index) {
  const node = element("div", { role: "option", tabindex: "-1", "aria-selected": "false" });
  node.dataset.request = number;
  node.dataset.index = index;
  row.list.insertBefore(node, row.waiting);
  return { node, signature: null, block: null };
}

function countWritten(words, from) {
  let found = 0;
  for (let place = from; place < words.length; place++) if (words[place] !== null) found += 1;
  return found;
}

function setData(node, name, value) {
  if (value) node.dataset[name] = value;
  else delete node.dataset[name];
}

function drawSmallCell(state, node, block, flags, holders, cached) {
  const names = holders.map((number) => state.requests[number].name);
  if (cached) names.push("cache");
  const held = state.ref[block] > 0 || names.length > 0;
  const label = names.length > 1 ? `${names[0]} +${names.length - 1}` : (names[0] ?? (held ? "nobody" : ""));
  const ink = holders.length ? inkClass(holders[0]) : cached ? CACHE_CLASSES : "";
  node.className = `mk-option mk-cell ${flags} ${ink}`;
  if (!node.firstChild) node.append(element("span", { class: "mk-id" }), "");
  setText(node.firstChild, state.ref[block] > 1 ? `P${block} ×${state.ref[block]}` : `P${block}`);
  if (node.lastChild.data !== label) node.lastChild.data = label;
}

function tags(state, holders, cached) {
  const all = holders.map((number) => [state.requests[number].name, inkClass(number)]);
  if (cached) all.push(["cache", CACHE_CLASSES]);
  if (!all.length) return element("div", { class: "mk-tags" }, element("span", { class: "mk-nobody" }, "nobody"));
  const drawn = all.length > TAGS_SHOWN ? all.slice(0, TAGS_SHOWN - 1) : all;
  const node = element("div", { class: "mk-tags" });
  for (const [label, classes] of drawn) {
    node.append(element("span", { class: `mk-tag ${classes}`, title: label }, element("span", {}, label)));
  }
  if (drawn.length < all.length) node.append(element("span", { class: "mk-rest" }, `+${all.length - drawn.length}`));
  return node;
}

function neighbour(option, options, direction) {
  // The nearest option in the next line up or down.
  const here = option.getBoundingClientRect();
  let best = null;
  for (const each of options) {
    const there = each.getBoundingClientRect();
    const down = direction * (there.top - here.top);
    if (down < here.height / 2 || !there.height) continue;
    const distance = down * 1000 + Math.abs(there.left - here.left);
    if (!best || distance < best.distance) best = { each, distance };
  }
  return best?.each;
}

function scrollerOf(node) {
  return node.closest(".is-big .mk-requests, .minikv-block-map:not(.is-big) .mk-boxes, .mk-pool");
}

function reveal(node) {
  const scroller = scrollerOf(node);
  if (!scroller) return;
  const view = scroller.getBoundingClientRect();
  const there = node.getBoundingClientRect();
  if (there.top < view.top) scroller.scrollTop -= view.top - there.top + 6;
  else if (there.bottom > view.bottom) scroller.scrollTop += there.bottom - view.bottom + 6;
}

function isVisible(node) {
  const scroller = scrollerOf(node);
  if (!scroller) return true;
  const view = scroller.getBoundingClientRect();
  const there = node.getBoundingClientRect();
  return there.bottom > view.top && there.top < view.bottom;
}

function within(rect, origin) {
  const left = rect.left - origin.left;
  const top = rect.top - origin.top;
  return { left, top, right: left + rect.width, bottom: top + rect.height, width: rect.width, height: rect.height };
}

function acrossPath(from, edge, to, pool) {
  // Between the blocks on both sides, so that none is crossed: out of the box, below its neighbours to the
  // line's right edge, over to the pool, and above the cell's neighbours to the cell.
  const middle = from.top + from.height / 2;
  const y = edge > from.right ? from.bottom + 5 : middle;
  const x = from.left + from.width / 2;
  const start = edge > from.right ? `M${x} ${from.bottom}Q${x} ${y} ${x + 6} ${y}H${edge}` : `M${edge} ${y}`;
  const first = to.left - pool.left < 12;
  const gutter = first ? to.left : pool.left - 10;
  const lane = first ? to.top + to.height / 2 : to.top - 5;
  const bend = Math.max(24, (gutter - edge) / 2);
  const over = `C${edge + bend} ${y} ${gutter - bend} ${lane} ${gutter} ${lane}`;
  if (first) return { d: start + over, end: [gutter, lane] };
  const end = [to.left + Math.min(14, to.width / 2), to.top];
  return { d: `${start}${over}H${end[0] - 5}Q${end[0]} ${lane} ${end[0]} ${end[1]}`, end };
}

function lineEnd(node) {
  // The last block in the same line as `node`.
  let last = node;
  for (let next = node; next && next.offsetTop === node.offsetTop; next = next.nextElementSibling) {
    if (next.offsetWidth) last = next;
  }
  return last;
}

function downPath(from, to) {
  const start = [from.left + from.width / 2, from.bottom];
  const end = [to.left + to.width / 2, to.top];
  const bend = Math.max(24, (end[1] - start[1]) / 2);
  return { d: `M${start}C${start[0]} ${start[1] + bend} ${end[0]} ${end[1] - bend} ${end}`, end };
}

function nextCell(cell) {
  const next = cell.nextElementSibling;
  return next?.classList.contains("jp-Cell") ? next : cell; // after the last one, its own
}

// ---- what anywidget calls -------------------------------------------------------------------------

function initialize({ model }) {
  // Once per model, whatever the number of views: new frames join the list that later views start from,
  // and that is saved with the notebook. In place, because nothing is to be sent back to the kernel.
  const grow = () => model.get("_chunks").push(model.get("_delta").chunk);
  model.on("change:_delta", grow);
  return () => model.off("change:_delta", grow);
}

function render({ model, el }) {
  const view = new View(model, el);
  return () => view.destroy();
}

export default { initialize, render };
