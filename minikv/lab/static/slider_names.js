// The handles of ipywidgets' sliders have no names: a screen reader says "slider, 16". Give each the words that
// stand before it. The sliders may be drawn after this, so it looks again until they are there.
function render({ el }) {
  const looking = setInterval(() => {
    const handles = el.closest(".widget-vbox")?.querySelectorAll(".widget-slider [role=slider]") ?? [];
    for (const handle of handles) {
      const words = handle.closest(".widget-slider").querySelector(".widget-label").textContent;
      handle.setAttribute("aria-label", words);
    }
    if (handles.length) clearInterval(looking);
  }, 100);
  return () => clearInterval(looking);
}

export default { render };
