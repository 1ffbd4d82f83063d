// The packing game in the browser: draws the state that Python sends, shows where a reservation would go,
// and sends every move to the game's own rules (minikv/lab/packing.py), which answer with the next state.

const INKS = 6; // request colours, as in palette.css
const KINDS = ["tokens", "reserved", "internal", "unknown", "external", "free"]; // as in packing_split.py
const NAMES = {
  tokens: "tokens",
  reserved: "reserved for later",
  internal: "internal fragmentation",
  unknown: "not yet known",
  external: "external fragmentation",
  free: "free",
};
const RUN_MS = 450; // between two steps while time runs
const PATIENCE_MS = 5000; // for the kernel's answer
const KEYS = [
  ["← →", "aim one slot further"],
  ["↑ ↓", "aim one line of the memory further"],
  ["H", "aim at the next hole"],
  ["+ −", "reserve a slot more or less"],
  ["Enter", "place, move or grow the request in hand"],
  ["N", "next step: every running request writes one token"],
  ["Space", "let time run until there is something to decide; again to stop"],
  ["D", "drop the running request in hand: back to the head of the queue"],
  ["M", "take another running request in hand, to move or drop it"],
  ["Esc", "take the one in hand that has to be decided about; else back to the cell"],
  ["U", "undo"],
  ["R", "begin again"],
  ["?", "show or hide these keys"],
];

// ---- small helpers ------------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function setText(at, text) {
  if (at.textContent !== text) at.textContent = text;
}

const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const inkClass = (number) => `mk-ink-${number % INKS}`;
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const slotsText = (start, size) => (size === 1 ? `slot ${start}` : `slots ${start} to ${start + size - 1}`);

// ---- the view -----------------------------------------------------------------------------------

class View {
  constructor(model, host) {
    this.model = model;
    this.picked = null; // name of a running request that was taken in hand on purpose
    this.aim = null; // {name, start, size}: whose reservation would go where
    this.build(host);
    this.listen();
    this.receive();
  }

  // ---- building, once -----------------------------------------------------------------------------

  build(host) {
    const label = { role: "group", "aria-label": "Packing game", tabindex: "-1" };
    this.root = element("div", { class: "minikv-packing minikv-frame", ...label });
    this.title = element("div", { class: "mk-step" });
    this.sentence = element("p", { class: "mk-sentence", "aria-live": "polite", "aria-atomic": "true" });
    this.aimText = element("p", { class: "mk-aim", "aria-live": "polite", "aria-atomic": "true" });
    this.help = this.buildHelp();
    this.result = element("section", { class: "mk-result", "aria-label": "The same requests, paged" });
    this.root.append(
      element("header", { class: "mk-head" }, this.title, this.sentence),
      this.buildControls(),
      this.help,
      this.result,
      this.buildDesk(),
      this.buildMemory(),
      this.aimText,
      this.buildFooter(),
    );
    host.append(this.root);
  }

  button(label, key, action, className = "") {
    const made = element("button", { type: "button", class: `mk-button ${className}` }, label);
    if (key) made.append(element("kbd", { "aria-hidden": "true" }, key));
    made.addEventListener("click", action);
    return made;
  }

  buildControls() {
    this.nextButton = this.button("Next step", "N", () => this.step());
    this.runButton = this.button("Let time run", "Space", () => this.toggleRun());
    this.undoButton = this.button("Undo", "U", () => this.send("undo"));
    this.restartButton = this.button("Begin again", "R", () => this.send("restart"));
    this.helpButton = this.button("Keys", "?", () => this.toggleHelp(), "mk-push");
    const all = [this.nextButton, this.runButton, this.undoButton, this.restartButton, this.helpButton];
    return element("div", { class: "mk-controls", role: "group", "aria-label": "Time" }, ...all);
  }

  buildDesk() {
    this.handTitle = element("h3");
    this.handFacts = element("p", { class: "mk-facts" });
    this.card = element("div", { class: "mk-card", title: "Drag this into the memory" });
    this.sizeText = element("span", { class: "mk-size" });
    this.placeButton = this.button("Place", "Enter", () => this.place(), "is-first mk-do");
    this.dropButton = this.button("Drop", "D", () => this.drop());
    const less = this.button("−", "", () => this.resize(-1));
    const more = this.button("+", "", () => this.resize(1));
    less.setAttribute("aria-label", "Reserve a slot less");
    more.setAttribute("aria-label", "Reserve a slot more");
    this.sizeButtons = { less, more };
    const row = element("div", { class: "mk-row-of-buttons" }, less, this.sizeText, more, this.placeButton, this.dropButton);
    this.hand = element("section", { class: "mk-hand", "aria-label": "In hand" }, this.handTitle, this.handFacts, this.card, row);
    this.queue = element("div", { class: "mk-queue" });
    this.queueHint = element("p", { class: "mk-facts" });
    const title = element("h3", {}, "Waiting", element("span", {}, "served in this order"));
    const waiting = element("section", { class: "mk-waiting" }, title, this.queueHint, this.queue);
    this.desk = element("div", { class: "mk-desk" }, this.hand, waiting);
    return this.desk;
  }

  buildMemory() {
    this.strip = element("div", { class: "mk-strip", role: "group", tabindex: "0" });
    this.strip.dataset.testid = "strip";
    this.stripHint = element("span");
    return element("section", {}, element("h3", {}, "Memory", this.stripHint), this.strip);
  }

  buildFooter() {
    this.bar = element("div", { class: "mk-bar", role: "img" });
    this.legend = element("div", { class: "mk-legend" });
    this.columns = element("div", { class: "mk-columns", role: "img" });
    this.tiles = element("div", { class: "mk-tiles" });
    const line = (label, ...parts) => {
      const words = element("div", { class: "mk-label" }, label);
      return element("div", { class: "mk-line" }, words, element("div", {}, ...parts));
    };
    const grey = "Grey is not decided yet. When a request ends, its grey parts in earlier columns change colour.";
    return element(
      "footer",
      { class: "mk-foot" },
      line("Slots now", this.bar, this.legend),
      line("So far", this.columns, element("p", { class: "mk-hint" }, grey)),
      line("Score", this.tiles),
    );
  }

  buildHelp() {
    const rows = KEYS.flatMap(([keys, meaning]) => [
      element("dt", {}, ...keys.split(" ").map((key) => element("kbd", {}, key))),
      element("dd", {}, meaning),
    ]);
    const mouse = "Mouse: drag the card into the memory; or drag over free slots to reserve just these; or drag a running request to another place. Click a slot to aim at it.";
    const help = element("div", { class: "mk-help", role: "region", "aria-label": "Keys" }, element("dl", {}, ...rows), element("p", { class: "mk-keys" }, mouse));
    help.hidden = true;
    return help;
  }

  // ---- talking to the kernel ------------------------------------------------------------------------

  listen() {
    this.onState = () => this.receive();
    this.model.on("change:_state", this.onState);
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    this.root.addEventListener("pointerdown", (event) => this.onGrab(event));
    this.root.addEventListener("pointermove", (event) => this.onDrag(event));
    this.root.addEventListener("pointerup", (event) => this.onRelease(event));
    this.root.addEventListener("pointercancel", () => this.endDrag());
  }

  destroy() {
    this.stopRun();
    clearTimeout(this.waiting);
    this.model.off("change:_state", this.onState);
    this.root.remove();
  }

  receive() {
    clearTimeout(this.waiting);
    const before = this.state;
    this.state = JSON.parse(this.model.get("_state"));
    this.fresh = before && this.state.step === before.step + 1;
    this.refusal = this.state.refusal;
    if (!this.running(this.picked)) this.picked = null;
    this.takeAim();
    this.render();
    this.goOn(before);
  }

  send(what, more = {}) {
    if (what !== "step") this.stopRun();
    this.serial = (this.serial ?? 0) + 1;
    const serial = `${Date.now()}-${this.serial}`; // an equal move made twice is still two moves
    this.model.set("_action", { serial, do: what, ...more });
    this.model.save_changes();
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.complain(), PATIENCE_MS);
  }

  complain() {
    const reason = "The kernel does not answer. It may be busy with another cell; if the notebook was reopened, run this cell again.";
    setText(this.aimText, reason);
    this.aimText.className = "mk-aim is-clashing";
  }

  // ---- moves ----------------------------------------------------------------------------------------

  running(name) {
    return this.state.runs.find((run) => run.name === name);
  }

  get subject() {
    // Whom the next Enter is about: {name, ink, prompt, tokens, least, most, run}; `run` is null for one that waits.
    const { state } = this;
    if (state.over) return null;
    const name = this.picked ?? state.hand?.name;
    const run = this.running(name);
    if (run) return { ...run, run };
    const head = state.waiting[0];
    if (!head || head.name !== name) return null;
    return { ...head, tokens: head.prompt, least: state.hand.least, most: state.hand.most, run: null };
  }

  takeAim() {
    // An aim stays while its request is as it was: one that waits keeps it from step to step.
    const subject = this.subject;
    if (!subject) {
      this.aim = null;
      return;
    }
    const { name, run } = subject;
    const basis = run ? `${name} ${run.start} ${run.size} ${run.tokens}` : name;
    if (this.aim?.basis === basis) {
      if (!this.refusal && this.judge().clash) this.aim.start = this.bestStart(this.aim); // others came and went
      return;
    }
    const { hand, aim } = this.state;
    const own = hand?.name === name ? hand : run; // one picked on purpose: where it is, as large as it is
    const [start, size] = (this.aim ? null : aim) ?? [own.start, clamp(own.size, subject.least, subject.most)];
    this.aim = { name, basis, start, size };
  }

  bestStart({ start, size }) {
    // The first hole that is large enough, else the largest one; it stays where there is none.
    const { holes } = this.state;
    const largest = Math.max(0, ...holes.map(([, room]) => room));
    return holes.find(([, room]) => room >= Math.min(size, largest))?.[0] ?? start;
  }

  place() {
    const { aim, subject } = this;
    if (!aim || !subject) return;
    this.picked = null;
    this.send(subject.run ? "move" : "place", { name: aim.name, start: aim.start, size: aim.size });
  }

  drop() {
    const run = this.subject?.run;
    if (!run) return;
    this.picked = null;
    this.send("drop", { name: run.name });
  }

  step() {
    this.send("step", { size: this.wanted ?? 0 });
  }

  resize(by) {
    const subject = this.subject;
    if (!subject) return;
    this.refusal = "";
    this.aim.size = clamp(this.aim.size + by, subject.least, subject.most);
    if (this.fit.nowhere && !this.judge().nowhere && this.judge().clash) this.aim.start = this.bestStart(this.aim);
    this.redraw();
  }

  aimAt(start) {
    if (!this.aim) return;
    this.refusal = "";
    this.aim.start = clamp(start, 0, Math.max(0, this.state.slots - 1));
    this.redraw();
  }

  nextHole() {
    const { holes } = this.state;
    if (!this.aim || !holes.length) return;
    const [start] = holes.find(([each]) => each > this.aim.start) ?? holes[0];
    this.aimAt(start);
  }

  pickNext() {
    const { runs } = this.state;
    if (this.state.over || !runs.length) return;
    const here = runs.findIndex((run) => run.name === this.picked);
    this.pick(here + 1 < runs.length ? runs[here + 1].name : null);
  }

  pick(name) {
    this.picked = name;
    this.refusal = "";
    this.takeAim();
    this.redraw();
  }

  toggleHelp() {
    this.help.hidden = !this.help.hidden;
    this.helpButton.setAttribute("aria-expanded", String(!this.help.hidden));
  }

  // ---- time that runs by itself -----------------------------------------------------------------------

  toggleRun() {
    if (this.runsOn) return this.stopRun();
    if (this.state.over) return;
    this.runsOn = true;
    this.drawControls();
    this.step();
  }

  stopRun() {
    if (!this.runsOn) return;
    this.runsOn = false;
    clearTimeout(this.next);
    this.drawControls();
  }

  goOn(before) {
    if (!this.runsOn) return;
    const { state } = this;
    const somebodyEnded = before && state.served.length > before.served.length;
    const stuck = state.runs.some((run) => run.outgrown);
    if (state.refusal || state.over || stuck || (somebodyEnded && state.waiting.length)) return this.stopRun();
    this.next = setTimeout(() => this.runsOn && this.step(), RUN_MS);
  }

  // ---- keys -------------------------------------------------------------------------------------------

  onKey(event) {
    if (event.shiftKey && event.key === "Enter") return; // the notebook's: run the cell and go on
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const ownPress = event.target.closest("button") && (event.key === " " || event.key === "Enter");
    if (!ownPress) {
      const action = this.actionOf(event.key);
      if (action) {
        action();
        event.preventDefault();
      } else if (event.key.length > 1) return; // a letter here is none of JupyterLab's commands: x would cut the cell
    }
    event.stopPropagation(); // a key that was used here is not the notebook's as well
  }

  actionOf(key) {
    const line = this.state.columns;
    const actions = {
      ArrowLeft: () => this.aimAt(this.aim?.start - 1),
      ArrowRight: () => this.aimAt(this.aim?.start + 1),
      ArrowUp: () => this.aimAt(this.aim?.start - line),
      ArrowDown: () => this.aimAt(this.aim?.start + line),
      Home: () => this.aimAt(0),
      End: () => this.aimAt(this.state.slots - (this.aim?.size ?? 1)),
      h: () => this.nextHole(),
      "+": () => this.resize(1),
      "=": () => this.resize(1), // the same key without Shift
      "-": () => this.resize(-1),
      "−": () => this.resize(-1),
      Enter: () => this.place(),
      n: () => this.step(),
      " ": () => this.toggleRun(),
      d: () => this.drop(),
      m: () => this.pickNext(),
      u: () => this.send("undo"),
      r: () => this.send("restart"),
      "?": () => this.toggleHelp(),
      Escape: () => this.leave(),
    };
    return actions[key.length === 1 ? key.toLowerCase() : key];
  }

  leave() {
    // Of what is open, the innermost is closed; with nothing open, back to the cell.
    if (!this.help.hidden) this.toggleHelp();
    else if (this.picked) this.pick(null);
    else this.root.closest(".jp-Cell")?.focus();
  }

  // ---- dragging -----------------------------------------------------------------------------------------

  slotAt(event) {
    const found = document.elementFromPoint(event.clientX, event.clientY)?.closest?.("[data-slot]");
    return found && this.strip.contains(found) ? Number(found.dataset.slot) : null;
  }

  onGrab(event) {
    if (event.button !== 0 || !event.isPrimary || this.state.over) return;
    const onCard = this.card.contains(event.target);
    const slot = onCard ? null : this.slotAt(event);
    if (!onCard && slot === null) return;
    event.preventDefault(); // no text is selected, and the notebook does not start a drag of its own
    this.strip.focus({ preventScroll: true });
    const run = slot === null ? null : this.state.runs.find((each) => slot >= each.start && slot < each.start + each.size);
    if (run) this.grabRun(run, slot);
    else if (onCard) this.drag = { kind: "card", offset: 0 };
    else if (this.aim) this.drag = { kind: "draw", from: slot };
    if (!this.drag) return;
    if (this.drag.kind === "draw") this.aimAt(slot);
    this.root.setPointerCapture(event.pointerId);
    this.root.classList.add("is-dragging");
  }

  grabRun(run, slot) {
    this.pick(run.name);
    this.drag = { kind: "run", from: slot, offset: slot - run.start };
  }

  onDrag(event) {
    if (!this.drag) return;
    const slot = this.slotAt(event);
    this.drag.over = slot !== null;
    if (slot === null || slot === this.drag.last) return;
    this.drag.last = slot;
    if (slot !== this.drag.from) this.drag.moved = true;
    if (this.drag.kind === "draw") this.drawOver(slot);
    else this.aimAt(slot - this.drag.offset);
  }

  drawOver(slot) {
    if (!this.drag.moved) return;
    const { least, most } = this.subject;
    const start = Math.min(this.drag.from, slot);
    this.aim.start = start;
    this.aim.size = clamp(Math.abs(slot - this.drag.from) + 1, least, most);
    this.redraw();
  }

  onRelease() {
    const drag = this.drag;
    this.endDrag();
    if (!drag) return;
    if (drag.moved && drag.over) this.place();
  }

  endDrag() {
    this.drag = null;
    this.root.classList.remove("is-dragging");
  }

  // ---- drawing --------------------------------------------------------------------------------------------

  render() {
    const { state } = this;
    setText(this.title, `Step ${state.step} of ${state.steps}`);
    setText(this.sentence, state.sentence);
    this.drawQueue();
    this.drawColumns();
    this.drawTiles();
    this.drawResult();
    this.redraw();
  }

  redraw() {
    // What depends on the aim, too.
    if (this.aim && !this.subject.run) this.wanted = this.aim.size; // for the head of the queue, whoever is in hand
    this.fit = this.judge();
    this.drawControls();
    this.drawHand();
    this.drawStrip();
    this.drawAim();
    this.drawBar();
  }

  judge() {
    // Whether the aim is right, as the rules will judge it: {clash, reason, nowhere, room, …}.
    const { state, aim, subject } = this;
    if (!aim || !subject) return { clash: false };
    const free = state.holes.reduce((sum, [, size]) => sum + size, 0);
    const largest = Math.max(0, ...state.holes.map(([, size]) => size));
    const grows = subject.run && aim.start === subject.start;
    const behind = state.holes.find(([start]) => subject.run && start === subject.start + subject.size)?.[1] ?? 0;
    const room = Math.max(largest, subject.run ? subject.size + behind : 0);
    const nowhere = aim.size > room;
    const found = { free, largest, room, grows, nowhere, scattered: nowhere && free >= aim.size && !subject.run };
    const stop = aim.start + aim.size;
    for (const run of state.runs) {
      const own = run.name === aim.name;
      if (own && grows) continue;
      const slot = Math.max(aim.start, run.start);
      if (slot < Math.min(stop, run.start + run.size)) {
        const whose = own ? `${run.name}'s own, and must be copied out of first` : `${run.name}'s`;
        return { ...found, clash: true, reason: `slot ${slot} is ${whose}` };
      }
    }
    if (stop > state.slots) return { ...found, clash: true, reason: `the memory ends at slot ${state.slots - 1}` };
    return { ...found, clash: false };
  }

  drawControls() {
    const { state } = this;
    const stuck = state.runs.some((run) => run.outgrown);
    const disable = (button, is) => button.setAttribute("aria-disabled", String(Boolean(is)));
    disable(this.nextButton, state.over || stuck);
    disable(this.undoButton, !state.undo);
    disable(this.restartButton, !state.undo);
    disable(this.runButton, state.over || (stuck && !this.runsOn));
    const label = this.runsOn ? "Stop" : "Let time run";
    if (this.runButton.firstChild.data !== label) this.runButton.firstChild.data = label;
  }

  drawHand() {
    const { subject, aim, state } = this;
    this.desk.hidden = state.over;
    const hint = state.over ? "as it was at the end" : "drag over free slots to reserve them, or drag the card";
    setText(this.stripHint, hint);
    this.hand.hidden = !subject;
    if (!subject) return;
    this.hand.className = `mk-hand ${inkClass(subject.ink)}${subject.run?.outgrown ? " is-outgrown" : ""}`;
    const name = element("b", {}, subject.name);
    if (subject.run?.outgrown) this.handTitle.replaceChildren(name, " has outgrown its slots");
    else this.handTitle.replaceChildren(subject.run ? "In hand: " : "Next: ", name);
    setText(this.handFacts, this.facts(subject));
    this.drawCard(subject, aim);
    const answer = aim.size - subject.tokens;
    const parts = subject.run ? `${subject.tokens} written + ${answer}` : `${subject.tokens} for the prompt + ${answer}`;
    this.sizeText.replaceChildren(element("b", {}, String(aim.size)), ` slots = ${parts}`);
    const verb = !subject.run ? "Place" : this.fit.grows ? (aim.size < subject.size ? "Shrink" : "Grow here") : "Move";
    if (this.placeButton.firstChild.data !== verb) this.placeButton.firstChild.data = verb;
    this.placeButton.setAttribute("aria-disabled", String(this.fit.clash));
    this.dropButton.style.visibility = subject.run ? "" : "hidden"; // it keeps its place: nothing may jump in a drag
    this.sizeButtons.less.setAttribute("aria-disabled", String(aim.size <= subject.least));
    this.sizeButtons.more.setAttribute("aria-disabled", String(aim.size >= subject.most));
  }

  facts(subject) {
    const most = subject.most - subject.prompt;
    const known = subject.seen ? `more than ${subject.seen - subject.prompt}` : "nobody knows";
    if (!subject.run) return `prompt ${counted(subject.prompt, "token")} · answer: ${known}, ${most} at most`;
    const written = `${subject.tokens} of ${counted(subject.size, "slot")} written`;
    return subject.run.outgrown ? `${written}, and it goes on: grow, move or drop it` : `${written}, from slot ${subject.start} on`;
  }

  drawCard(subject, aim) {
    const signature = `${subject.name}|${subject.tokens}|${aim.size}|${Boolean(subject.run)}`;
    if (this.card.dataset.text === signature) return;
    this.card.dataset.text = signature;
    const cells = Array.from({ length: aim.size }, (_, place) =>
      element("i", { class: place < subject.tokens ? "is-token" : "is-kind-unknown" }),
    );
    this.card.replaceChildren(...cells, element("em", {}, "drag me"));
  }

  drawQueue() {
    const { waiting, more } = this.state;
    setText(this.queueHint, waiting.length ? "with the tokens of their prompts" : "Nobody waits.");
    const chips = waiting.map(({ name, prompt, ink }, place) => {
      const title = `${name}: a prompt of ${counted(prompt, "token")}`;
      const next = place === 0 ? " is-next" : "";
      return element("span", { class: `mk-chip ${inkClass(ink)}${next}`, title }, element("b", {}, name), String(prompt));
    });
    if (more) chips.push(element("span", { class: "mk-more" }, `and ${more} more`));
    this.queue.replaceChildren(...chips);
  }

  // ---- the strip ----------------------------------------------------------------------------------------------

  drawStrip() {
    const { state, aim } = this;
    if (this.cells?.length !== state.slots) this.buildCells();
    const looks = this.cells.map(() => ({ kind: this.fit.scattered ? "is-external" : "", text: "" }));
    for (const run of state.runs) {
      for (let place = 0; place < run.size; place++) looks[run.start + place] = this.look(run, place);
    }
    const clash = this.fit.clash;
    this.strip.classList.toggle("is-clashing", clash);
    this.strip.classList.toggle("is-clash-free", !clash);
    this.cells.forEach((cell, slot) => this.drawCell(cell, slot, looks[slot], aim));
    this.strip.setAttribute("aria-label", this.stripLabel());
  }

  buildCells() {
    const { slots, columns } = this.state;
    this.strip.style.setProperty("--columns", columns);
    this.cells = Array.from({ length: slots }, (_, slot) => {
      const node = element("div", { class: "mk-slot", "aria-hidden": "true" });
      node.dataset.slot = slot;
      return { node, signature: null };
    });
    const rows = [];
    this.cells.forEach(({ node }, slot) => {
      if (slot % columns === 0) rows.push(element("div", { class: "mk-first", "aria-hidden": "true" }, String(slot)));
      rows.push(node);
    });
    this.strip.replaceChildren(...rows);
  }

  look(run, place) {
    const kinds = [inkClass(run.ink), "is-held"];
    if (place < run.tokens) kinds.push("is-written");
    if (place < run.prompt) kinds.push("is-prompt");
    if (this.fresh && place === run.tokens - 1 && run.tokens > run.prompt) kinds.push("is-fresh");
    if (run.outgrown && place === run.size - 1) kinds.push("is-full");
    return { kind: kinds.join(" "), text: place < run.tokens ? run.name : "" };
  }

  drawCell(cell, slot, { kind, text }, aim) {
    const aimed = aim && slot >= aim.start && slot < aim.start + aim.size;
    const signature = `${kind}|${text}|${aimed ? `${slot - aim.start}/${aim.size}/${this.fit.clash}` : ""}`;
    if (cell.signature === signature) return;
    cell.signature = signature;
    cell.node.className = `mk-slot ${kind}`;
    const parts = text ? [text] : [];
    if (aimed) parts.push(this.aimMark(slot, aim));
    cell.node.replaceChildren(...parts);
  }

  aimMark(slot, aim) {
    const ends = []; // where a line ends within the aim, the frame stays open
    if (slot === aim.start) ends.push("is-first");
    if (slot === aim.start + aim.size - 1) ends.push("is-last");
    const taken = this.fit.clash && this.takenBy(slot, aim) ? " is-clash" : "";
    return element("span", { class: `mk-aim-mark ${ends.join(" ")}${taken}` });
  }

  takenBy(slot, aim) {
    const grows = this.fit.grows;
    return this.state.runs.some((run) => slot >= run.start && slot < run.start + run.size && !(grows && run.name === aim.name));
  }

  stripLabel() {
    const { runs, holes, slots } = this.state;
    const held = runs.map((run) => `${run.name} holds ${slotsText(run.start, run.size)}, ${run.tokens} written`);
    const free = holes.map(([start, size]) => `${slotsText(start, size)} free`);
    return `Memory of ${slots} slots. ${[...held, ...free].join("; ")}. Arrow keys aim, plus and minus resize, Enter places.`;
  }

  // ---- what is said about the aim ---------------------------------------------------------------------------

  drawAim() {
    const { fit } = this;
    setText(this.aimText, this.aimSentence());
    const bad = Boolean(this.refusal) || (fit.clash && !fit.nowhere);
    this.aimText.className = `mk-aim${bad ? " is-clashing" : ""}${fit.nowhere ? " is-nowhere" : ""}`;
  }

  aimSentence() {
    const { state, aim, subject, fit } = this;
    if (this.refusal) return `✗ Refused: ${this.refusal}.`;
    if (!aim || !subject) return state.over ? "" : "Let time run.";
    if (fit.nowhere) return this.nowhere(subject, aim);
    if (fit.clash) return `✗ ${aim.name} cannot go there: ${fit.reason}.`;
    return `✓ ${this.plan(subject, aim)}`;
  }

  nowhere(subject, { name, size }) {
    // Why it fits nowhere, and what can be done: only what the rules allow now.
    const { free, largest, room, scattered } = this.fit;
    const wants = `With ${size} slots, ${name} fits nowhere:`;
    if (scattered) return `${wants} ${free} are free, but the largest hole has ${largest}. This is external fragmentation.`;
    const yields = (run) => run.name !== name && (run.least <= largest || run.least < run.size);
    const neighbour = this.state.runs.some(yields) ? "move or shrink a neighbour (M), " : "";
    if (subject.run) {
      const why = `${wants} of the other slots ${free} are free, side by side at most ${largest}.`;
      if (subject.least > room) return `${why} Nothing above ${subject.tokens} fits: ${neighbour}or drop it.`;
      return `${why} Reserve ${room} or fewer, ${neighbour}or drop it.`;
    }
    const less = subject.least > room ? "" : `Reserve ${room} or fewer, or let`;
    return `${wants} only ${free} ${free === 1 ? "is" : "are"} free. ${less || "Let"} time run.`;
  }

  plan(subject, { name, start, size }) {
    const where = slotsText(start, size);
    if (!subject.run) return `${name} would get ${where}: ${subject.tokens} for its prompt, ${size - subject.tokens} for its answer.`;
    if (this.fit.grows) return `${name} would have ${where}. It begins where it began, so nothing is copied.`;
    return `${name} would move to ${where}, and ${counted(subject.tokens, "token")} would be copied.`;
  }

  // ---- below the strip ------------------------------------------------------------------------------------------

  drawBar() {
    const { state, fit } = this;
    const free = state.holes.reduce((sum, [, size]) => sum + size, 0);
    const tokens = state.runs.reduce((sum, run) => sum + run.tokens, 0);
    const split = { tokens, unknown: state.slots - free - tokens, external: fit.scattered ? free : 0, free: fit.scattered ? 0 : free };
    fillBar(this.bar, split, state.slots, (amount) => String(amount));
    const legend = KINDS.map((kind) => {
      const amount = kind in split ? `${split[kind]} ` : "";
      const swatch = element("span", { class: `mk-swatch is-kind-${kind}` });
      return element("span", {}, swatch, `${amount}${NAMES[kind]}`);
    });
    this.legend.replaceChildren(...legend);
  }

  drawColumns() {
    const { history, steps, slots } = this.state;
    this.columns.style.setProperty("--steps", steps);
    const columns = Array.from({ length: steps }, (_, step) => {
      const found = history[step];
      if (!found) return element("div", { class: "mk-column" });
      const parts = KINDS.map((kind, place) => [kind, found[place]]).filter(([, amount]) => amount);
      const title = `step ${step + 1}: ${parts.map(([kind, amount]) => `${amount} ${NAMES[kind]}`).join(", ")}`;
      const pieces = parts.map(([kind, amount]) => element("i", { class: `is-kind-${kind}`, style: `flex-grow:${amount}` }));
      return element("div", { class: "mk-column", title }, ...pieces);
    });
    this.columns.replaceChildren(...columns);
    const last = history[history.length - 1];
    const label = last ? `${history.length} steps; the last one: ${KINDS.map((kind, place) => `${last[place]} of ${slots} ${NAMES[kind]}`).join(", ")}` : "no step yet";
    this.columns.setAttribute("aria-label", label);
  }

  drawTiles() {
    const { score, step } = this.state;
    const tile = (value, words) => element("span", { class: "mk-tile" }, element("b", {}, value), words);
    const tiles = [
      tile(step ? `${score.split[0].toFixed(1)} %` : "–", "of the memory held tokens"),
      tile(String(score.served), "served"),
      tile(String(score.tokens_copied), "tokens copied"),
      tile(String(score.dropped), "dropped"),
    ];
    if (score.tokens_lost) tiles.push(tile(String(score.tokens_lost), "tokens lost"));
    this.tiles.replaceChildren(...tiles);
  }

  drawResult() {
    const { over, paged, score, columns, player } = this.state;
    this.result.hidden = !over || !paged;
    if (this.result.hidden) return;
    const headings = ["", "", "tokens", "served", "copied", "dropped", "tokens lost"].map((words, place) =>
      element("span", { class: `mk-heading${place === 1 ? " is-bar" : ""}` }, words),
    );
    const table = element("div", { class: "mk-compare" }, ...headings, ...resultRow(player, score), ...resultRow("Paged", paged.score));
    const title = element("h3", {}, "The same requests, paged", element("span", {}, `blocks of ${paged.block_size} slots, taken when they are needed`));
    const strip = element("div", { class: "mk-strip is-small", "aria-hidden": "true" });
    strip.style.setProperty("--columns", columns);
    strip.append(...pagedCells(paged, columns));
    const hint = element("p", { class: "mk-hint" }, "The paged memory at the end. A letter is a token; the blocks of one request lie anywhere.");
    this.result.replaceChildren(title, table, hint, strip);
  }
}

// ---- drawing without the view's state -----------------------------------------------------------------------

function fillBar(bar, split, total, words) {
  const parts = Object.entries(split).filter(([, amount]) => amount);
  const pieces = parts.map(([kind, amount]) => {
    const label = amount / total > 0.05 ? [element("span", {}, words(amount))] : [];
    const attributes = { class: `mk-part is-kind-${kind}`, style: `flex-grow:${amount}`, title: `${NAMES[kind]} ${words(amount)}` };
    return element("span", attributes, ...label);
  });
  bar.replaceChildren(...pieces);
  bar.setAttribute("aria-label", parts.map(([kind, amount]) => `${words(amount)} ${NAMES[kind]}`).join(", "));
}

function resultRow(who, score) {
  const bar = element("div", { class: "mk-bar", role: "img" });
  fillBar(bar, Object.fromEntries(KINDS.map((kind, place) => [kind, score.split[place]])), 100, (share) => `${share.toFixed(0)} %`);
  const numbers = [`${score.split[0].toFixed(1)} %`, score.served, score.tokens_copied, score.dropped, score.tokens_lost];
  return [
    element("span", { class: "mk-who" }, who),
    bar,
    ...numbers.map((value) => element("span", { class: "mk-number" }, String(value))),
  ];
}

function pagedCells(paged, columns) {
  const nodes = [];
  paged.slots.forEach((slot, number) => {
    if (number % columns === 0) nodes.push(element("div", { class: "mk-first" }, String(number)));
    const [name, written, ink] = slot ?? ["", false, 0];
    const kind = slot ? `${inkClass(ink)} is-held${written ? " is-written" : ""}` : "";
    const end = number % paged.block_size === paged.block_size - 1 ? " is-block-end" : "";
    nodes.push(element("div", { class: `mk-slot ${kind}${end}` }, written ? name : ""));
  });
  return nodes;
}

// ---- what anywidget calls -------------------------------------------------------------------------------------

function render({ model, el }) {
  const view = new View(model, el);
  return () => view.destroy();
}

export default { render };
