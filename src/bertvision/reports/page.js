// Draws the figures, sorts tables and switches the theme. Everything it needs is in the page.
(() => {
  "use strict";
  const root = document.documentElement;
  const narrow = matchMedia("(max-width: 700px)");
  const LOOKS = {
    light: { text: "#3c434b", line: "#e4e7ea", edge: "#c3c8ce", ground: "#ffffff", heat: ["#f1f5fa", "#86b6ea"] },
    dark: { text: "#c3c8cf", line: "#292e35", edge: "#454c55", ground: "#20252c", heat: ["#1d232b", "#2d74bf"] },
  };

  // Theme: the reader's choice if there was one, else the system's.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => { try { return localStorage.getItem("bertvision-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("bertvision-theme", theme); } catch { /* file: in some browsers */ } };
  let chosen = remembered();
  const theme = () => chosen ?? (system.matches ? "dark" : "light");

  // Figures and plotly.js come compressed in base 85 (page.py), and are unpacked once the text can be read.
  const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
  const VALUES = new Uint8Array(128);
  [...DIGITS].forEach((digit, value) => { VALUES[digit.charCodeAt(0)] = value; });

  function unpacked(id) {
    const text = document.getElementById(id).textContent;
    const groups = Math.ceil(text.length / 5);
    const padded = text.padEnd(5 * groups, "~");
    const bytes = new DataView(new ArrayBuffer(4 * groups));
    for (let group = 0; group < groups; group++) {
      let value = 0;
      for (let at = 5 * group; at < 5 * group + 5; at++) value = 85 * value + VALUES[padded.charCodeAt(at)];
      bytes.setUint32(4 * group, value);
    }
    const compressed = new Blob([bytes.buffer.slice(0, 4 * groups - (padded.length - text.length))]);
    return new Response(compressed.stream().pipeThrough(new DecompressionStream("deflate"))).text();
  }

  async function load() {
    const [data, library] = await Promise.all(["figures", "plotly"].map(unpacked));
    const script = document.createElement("script");
    script.textContent = library;
    document.head.append(script);
    return JSON.parse(data);
  }

  // Without figures the page still has all its numbers: show the tables.
  function explain(error) {
    for (const place of places) {
      place.removeAttribute("style");
      place.className = "missing";
      place.textContent = `This browser cannot draw the figure (${error.message}). The numbers are in the tables.`;
    }
    for (const folded of document.querySelectorAll("details.numbers")) folded.open = true;
  }

  let figures = null; // as soon as they are loaded
  const places = [...document.querySelectorAll("[data-figure]")];
  const touch = matchMedia("(pointer: coarse)").matches;

  // Data and layout come with the page; colours of text, grid and heat maps are added here.
  function dressed(figure, name) {
    const look = LOOKS[name];
    const { data, layout } = structuredClone(figure);
    layout.font = { color: look.text, size: 12, family: getComputedStyle(document.body).fontFamily };
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: look.ground, bordercolor: look.edge, font: { color: look.text } };
    layout.dragmode = touch ? false : "zoom"; // touching a figure scrolls the page
    const closer = (narrow.matches && layout.meta?.narrow) || {};
    for (const axis of ["xaxis", "yaxis"]) {
      layout[axis] = { ...layout[axis], ...closer[axis], gridcolor: look.line, linecolor: look.edge, zerolinecolor: look.edge };
    }
    for (const trace of data) {
      if (trace.meta === "heat") trace.colorscale = [[0, look.heat[0]], [1, look.heat[1]]];
    }
    return { data, layout };
  }

  function draw(place, name) {
    const { data, layout } = dressed(figures[place.dataset.figure], name);
    const buttons = ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"];
    return Plotly.react(place, data, layout, {
      responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover", modeBarButtonsToRemove: buttons,
    });
  }

  // One figure at a time, so that the page stays responsive.
  async function drawAll() {
    if (!figures) return;
    const name = theme();
    for (const place of places) {
      if (name !== theme()) return; // switched while drawing: another call draws them all
      await draw(place, name);
      await new Promise((ready) => setTimeout(ready));
    }
    root.dataset.drawn = name;
  }

  function dress() {
    root.style.colorScheme = theme();
    root.dataset.theme = theme();
    return drawAll();
  }

  document.getElementById("theme").addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    remember(chosen);
    dress();
  });
  system.addEventListener("change", dress);
  narrow.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { if (figures) places.forEach((place) => draw(place, "light")); }); // paper is white
  addEventListener("afterprint", drawAll);

  // Tables: a click on a header sorts by it, a second click reverses; missing values stay last.
  const key = (cell) => (cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key));
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  document.addEventListener("click", (event) => {
    const header = event.target.closest("thead th");
    if (!header) return;
    const down = header.ariaSort === "ascending";
    for (const other of header.parentNode.children) other.ariaSort = "none";
    header.ariaSort = down ? "descending" : "ascending";
    const body = header.closest("table").tBodies[0];
    const empty = (row) => row.cells[header.cellIndex].textContent === "-";
    const rows = [...body.rows].sort((a, b) => {
      if (empty(a) || empty(b)) return empty(a) - empty(b);
      const order = compare(key(a.cells[header.cellIndex]), key(b.cells[header.cellIndex]));
      return down ? -order : order;
    });
    body.append(...rows);
  });

  // Contents: folded on a phone; the current section is highlighted.
  const contents = document.querySelector("nav details");
  const fold = () => { contents.open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();
  contents.addEventListener("click", (event) => { if (event.target.closest("a") && narrow.matches) contents.open = false; });
  const links = new Map([...contents.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) links.get(target.id)?.classList.toggle("here", isIntersecting);
  }, { rootMargin: "-15% 0px -75% 0px" });
  document.querySelectorAll("section").forEach((section) => seen.observe(section));

  dress();
  load().then((loaded) => { figures = loaded; return drawAll(); }).catch(explain);
})();
