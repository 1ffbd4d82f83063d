// The boxes of a prediction in the browser: a label and a text box for each question, and the keys that
// lead from box to box and out again.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

class View {
  constructor(model, host) {
    this.model = model;
    this.boxes = Object.entries(model.get("_questions")).map(([name, question]) => this.newBox(name, question));
    const rows = this.boxes.map((box) => box.parentElement);
    this.root = element("div", { class: "minikv-predict minikv-frame", role: "group", "aria-label": "Your prediction" }, ...rows);
    this.root.addEventListener("input", (event) => this.onInput(event.target));
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    this.onAnswers = () => this.draw();
    model.on("change:_answers", this.onAnswers);
    host.append(this.root);
    this.draw();
  }

  newBox(name, question) {
    const box = element("input", { type: "text", placeholder: "your prediction", autocomplete: "off", spellcheck: "false" });
    box.dataset.name = name;
    element("label", {}, element("span", {}, question), box);
    return box;
  }

  draw() {
    const answers = this.model.get("_answers");
    for (const box of this.boxes) {
      const answer = answers[box.dataset.name] ?? "";
      if (box.value !== answer) box.value = answer; // setting it would move the caret
    }
  }

  onInput(box) {
    this.model.set("_answers", { ...this.model.get("_answers"), [box.dataset.name]: box.value });
    this.model.save_changes();
  }

  // ---- keys ---------------------------------------------------------------------------------------

  onKey(event) {
    if (!event.isComposing && this.leadsOn(event)) event.preventDefault();
    else if (event.ctrlKey || event.metaKey || event.altKey) return; // the notebook's: save, undo, …
    event.stopPropagation(); // all else is text; to the notebook a letter would be a command
  }

  leadsOn(event) {
    // Enter, Tab and Escape. True if the focus has moved; elsewhere than in JupyterLab there may be nowhere to go.
    const last = event.target === this.boxes[this.boxes.length - 1];
    const plain = !(event.shiftKey || event.ctrlKey || event.metaKey || event.altKey);
    if (event.key === "Escape") return this.focusCell((cell) => cell);
    if (event.key === "Tab") return plain && last && this.focusCell(nextCell);
    if (event.key !== "Enter") return false;
    // With Shift or Ctrl, too: to run this cell once more would throw the answers away.
    if (!plain || last) return this.focusCell(nextCell);
    this.boxes[this.boxes.indexOf(event.target) + 1].select();
    return true;
  }

  focusCell(find) {
    const own = this.root.closest(".jp-Cell");
    const cell = own && find(own);
    cell?.focus();
    return Boolean(cell);
  }

  destroy() {
    this.model.off("change:_answers", this.onAnswers);
    this.root.remove();
  }
}

function nextCell(cell) {
  const next = cell.nextElementSibling;
  return next?.classList.contains("jp-Cell") ? next : cell; // after the last one, its own
}

function render({ model, el }) {
  const view = new View(model, el);
  return () => view.destroy();
}

export default { render };
