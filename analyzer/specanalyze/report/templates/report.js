"use strict";
(async () => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const options = {
    mode: "vega-lite",
    renderer: "svg",
    ast: true, // the page's policy forbids making code out of text
    actions: false,
    tooltip: { theme: "page" },
    loader: { load: () => Promise.reject(new Error("this page loads nothing")) },
  };
  // On a narrow screen the plot itself needs the room: shorter labels, whose end tells most, legends of one column, titles of several lines.
  const NARROW = 700, LABEL = 120, LETTERS = 16, TITLE = /\S{25,}|.{1,24}(?:\s|$)/g; // CSS pixels, CSS pixels, characters, lines of 24 characters
  const narrowed = (node) => {
    if (Array.isArray(node)) return node.map(narrowed);
    if (node === null || typeof node !== "object") return node;
    const made = Object.fromEntries(Object.entries(node).map(([key, value]) => [key, key === "values" ? value : narrowed(value)]));
    if (typeof made.x?.title === "string") made.x.title = made.x.title.match(TITLE)?.map((line) => line.trim()) ?? "";
    if (made.stack && made.scale?.domain) made.scale.domain = [made.scale.domain[0], 1.1 * made.scale.domain[1]]; // for the figure at a bar's end
    if (made.labelOverlap) made.labelFlush = 20; // CSS pixels: figures as near the end of an axis stay inside
    if (made.orient === "top" && !made.gradientLength) made.columns = 1;
    else if (made.labelLimit > LABEL && !made.symbolType) {
      made.labelLimit = LABEL;
      made.minExtent = 0;
      made.labelExpr ??= `truncate(datum.label, ${LETTERS}, 'left')`;
    }
    return made;
  };
  const fitting = (spec) => innerWidth <= NARROW ? { ...narrowed({ ...spec, datasets: null }), datasets: spec.datasets } : spec;
  const failed = [];
  for (const [key, spec] of Object.entries(specs)) {
    const place = document.getElementById(key);
    try {
      const drawn = await vegaEmbed(place, fitting(spec), options);
      place.view = drawn.view;
    } catch (error) {
      failed.push(key);
      place.textContent = "This plot could not be drawn; its table follows.";
      console.error(key, error);
    }
  }
  document.body.dataset.plots = failed.length ? "failed" : "drawn";

  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();

  // On paper nothing can be pointed at: short tables are printed under their plots, which are drawn as wide as the sheet.
  const PAPER = 690; // CSS pixels between the margins of A4 and Letter
  const views = () => [...document.querySelectorAll(".plot")].map((place) => place.view).filter(Boolean);
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")].filter((d) => d.querySelectorAll("tr").length <= 40);
    opened.forEach((d) => { d.open = true; });
    views().forEach((view) => { view.width(PAPER).run(); });
  });
  addEventListener("afterprint", () => {
    opened.forEach((d) => { d.open = false; });
    dispatchEvent(new Event("resize")); // each plot takes the width of its place again
  });
})();
