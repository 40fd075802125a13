// The report's edges: filters, a table and a network of those that pass them. No library, no request.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const UP = "#b2182b", DOWN = "#2166ac", MOST_ROWS = 200;
  const edges = data.w.map((weight, i) => ({
    source: data.genes[data.s[i]],
    target: data.genes[data.t[i]],
    programme: data.programmes[data.genes[data.t[i]]] || null, // a group of genes that rise and fall together anyway
    type: data.types[data.k[i]],
    weight,
    q: data.q[i],
    size: data.e ? data.e[i] : null, // of certain edges: log2 fold change for a doubling, or change for one unit
    error: data.d ? data.d[i] : null,
  }));

  // ---- Filters: one set for the table and the network ----
  const filters = { type: at("type"), sign: at("sign"), regulator: at("regulator"), gene: at("gene"), least: at("least"), certain: at("certain") };
  const known = edges.some((edge) => edge.q !== null);
  filters.certain.checked = known;
  at("certainty").hidden = !known;
  for (const type of data.types) filters.type.add(new Option(type, type));
  filters.type.add(new Option("every cell type", ""));
  const sure = (edge) => edge.q !== null && edge.q <= 0.05, doubtful = (edge) => known && !sure(edge);
  const certain = edges.filter(sure);
  if (certain.length && !certain.some((edge) => edge.type === data.types[0])) filters.type.value = ""; // in single types alone
  for (const name of [...new Set(edges.map((edge) => edge.source))].sort()) at("regulators").append(new Option(name, name));
  for (const name of data.genes) at("genes").append(new Option(name, name));

  const widest = {};
  for (const edge of edges) widest[edge.type] = Math.max(widest[edge.type] || 0, Math.abs(edge.weight));

  function passing() {
    const { type, sign } = { type: filters.type.value, sign: filters.sign.value };
    const least = (filters.least.value / 100) ** 2; // finer where most edges are
    at("least_value").textContent = `${(100 * least).toFixed(1)} % of the strongest`;
    return edges.filter(
      (edge) =>
        (!filters.certain.checked || sure(edge)) &&
        (!type || edge.type === type) &&
        (!sign || (sign === "+" ? edge.weight > 0 : edge.weight < 0)) &&
        Math.abs(edge.weight) >= least * widest[edge.type] &&
        fitting(edge),
    );
  }

  // A whole name is that gene alone; a part of one, all genes that begin so.
  const names = new Set(data.genes.map((name) => name.toLowerCase()));
  function fitting(edge) {
    const regulator = filters.regulator.value.trim().toLowerCase(), gene = filters.gene.value.trim().toLowerCase();
    const fits = (name, text) => !text || (names.has(text) ? name.toLowerCase() === text : name.toLowerCase().startsWith(text));
    return fits(edge.source, regulator) && (!gene || fits(edge.source, gene) || fits(edge.target, gene));
  }

  // ---- The table ----
  let sorted = known ? { column: "q", falling: false } : { column: "weight", falling: true };
  const columns = [
    ["source", "regulator"], ["effect", ""], ["target", "target"], ["programme", "programme"], ["type", "cell type"],
    ["weight", "weight"], ["size", data.fold ? "fold change for a doubling" : "change for one unit more"], ["q", "q"],
  ].filter(([column]) => (column !== "q" || known) && (column !== "programme" || edges.some((edge) => edge.programme)) && (column !== "size" || edges.some((edge) => edge.size !== null)));
  const numbers = ["weight", "size"]; // sorted by their sizes, the largest first
  const head = at("edges").tHead.insertRow();
  for (const [column, title] of columns) {
    const cell = document.createElement("th");
    cell.textContent = title;
    cell.dataset.column = column;
    if (column !== "effect") {
      cell.tabIndex = 0;
      cell.setAttribute("role", "button");
      const sort = () => {
        sorted = { column, falling: sorted.column === column ? !sorted.falling : numbers.includes(column) };
        update();
      };
      cell.onclick = sort;
      cell.onkeydown = (event) => { if (event.key === "Enter") sort(); };
    }
    head.append(cell);
  }

  function compare(one, other) {
    const { column, falling } = sorted;
    let [a, b] = [one[column], other[column]];
    if (numbers.includes(column)) [a, b] = [a, b].map((value) => value === null ? null : Math.abs(value));
    if (a === b) return Math.abs(other.weight) - Math.abs(one.weight);
    if (a === null || b === null) return a === null ? 1 : -1; // what is not known comes last
    return (a < b ? -1 : 1) * (falling ? -1 : 1);
  }

  const texts = {
    programme: (edge) => edge.programme || "",
    effect: (edge) => (data.signed ? (edge.weight > 0 ? "raises" : "lowers") + (doubtful(edge) ? "?" : "") : ""),
    weight: (edge) => (edge.weight > 0 ? "+" : "") + edge.weight.toPrecision(2),
    size: (edge) => {
      if (edge.size === null) return "";
      const text = (value) => String(+(data.fold ? 2 ** value : value).toPrecision(3));
      const ends = edge.error === null ? "" : ` (${text(edge.size - 1.96 * edge.error)} to ${text(edge.size + 1.96 * edge.error)})`;
      return (data.fold ? "x" : edge.size > 0 ? "+" : "") + text(edge.size) + ends;
    },
    q: (edge) => (edge.q === null ? "" : edge.q.toPrecision(2)),
  };

  function fillTable(found) {
    const body = document.createElement("tbody");
    for (const edge of [...found].sort(compare).slice(0, MOST_ROWS)) {
      const row = body.insertRow();
      for (const [column] of columns) {
        const cell = row.insertCell();
        cell.textContent = texts[column] ? texts[column](edge) : edge[column]; // never as HTML
        if (["weight", "size", "q"].includes(column)) cell.className = "number";
        if (["weight", "effect"].includes(column)) cell.classList.add(edge.weight > 0 ? "up" : "down");
        if (["source", "target"].includes(column)) { cell.dataset.gene = edge[column]; cell.classList.add("gene"); }
      }
    }
    at("edges").tBodies[0].replaceWith(body);
    for (const cell of head.cells) {
      cell.setAttribute("aria-sort", cell.dataset.column !== sorted.column ? "none" : sorted.falling ? "descending" : "ascending");
    }
    const rows = Math.min(found.length, MOST_ROWS);
    const none = found.length ? "" : `: ${why()}`;
    at("found").textContent = `${found.length} of ${edges.length} edges${none}` + (rows < found.length ? `, the first ${rows} are listed` : "");
  }

  function why() { // no edge passes
    const typed = { gene: filters.gene.value.trim(), regulator: filters.regulator.value.trim() };
    const has = (names, text) => names.some((name) => name.toLowerCase().startsWith(text.toLowerCase()));
    for (const text of Object.values(typed)) {
      if (text && !has(data.genes, text) && !has(data.others, text)) return `${text} is not among the ${data.genes.length + data.others.length} genes of this run, so that nothing can be said of it`;
    }
    if (typed.regulator && !has(data.regulators, typed.regulator)) return `${typed.regulator} is not among the ${data.regulators.length} regulators of this run`;
    const elsewhere = new Set(edges.filter((edge) => sure(edge) && fitting(edge)).map((edge) => edge.type));
    if (filters.certain.checked && elsewhere.size) return `none of these is certain here, but in ${[...elsewhere].join("; ")}`;
    if (filters.certain.checked) return "none of these is certain, which does not show that there is no effect; untick the box to see others";
    return "none of these is among the certain and the strongest, which does not show that there is no effect";
  }

  // ---- The network ----
  const canvas = at("network"), pen = canvas.getContext("2d"), tip = at("tip");
  let nodes = [], links = [], view = { x: 0, y: 0, zoom: 1 }, heat = 0, hovered = null, drag = null, waiting = false;

  function layOut(found) {
    const before = new Map(nodes.map((node) => [node.name, node]));
    const byName = new Map();
    const node = (name) => {
      if (!byName.has(name)) {
        const angle = 2.39996 * byName.size, radius = 14 * Math.sqrt(byName.size + 1); // a sunflower to begin with
        const old = before.get(name);
        byName.set(name, { name, x: old ? old.x : radius * Math.cos(angle), y: old ? old.y : radius * Math.sin(angle), dx: 0, dy: 0, degree: 0, regulates: 0 });
      }
      return byName.get(name);
    };
    const strongest = [...found].sort((a, b) => doubtful(a) - doubtful(b) || Math.abs(b.weight) - Math.abs(a.weight)).slice(0, +at("count").value);
    const largest = Math.max(1e-9, ...strongest.map((edge) => Math.abs(edge.weight)));
    links = strongest.map((edge) => ({ edge, from: node(edge.source), to: node(edge.target), size: Math.abs(edge.weight) / largest }));
    for (const link of links) { link.from.degree++; link.to.degree++; link.from.regulates++; }
    nodes = [...byName.values()];
    hovered = null;
    tip.hidden = true;
    heat = 1;
    canvas.parentElement.hidden = !links.length;
    resize();
    const number = known ? `, ${links.filter(({ edge }) => sure(edge)).length} of them certain` : "";
    at("drawn").textContent = `${links.length} edges between ${nodes.length} genes are drawn${number}`;
    at("drawn").parentElement.hidden = !links.length;
    canvas.dataset.edges = links.length;
  }

  function step() {
    const push = 900;
    for (let i = 0; i < nodes.length; i++) {
      const one = nodes[i];
      one.dx -= 0.012 * one.x * heat; // towards the middle
      one.dy -= 0.012 * one.y * heat;
      for (let j = i + 1; j < nodes.length; j++) {
        const other = nodes[j];
        const x = one.x - other.x, y = one.y - other.y, square = x * x + y * y + 20;
        if (square > 90000) continue;
        const force = (push * heat) / square;
        one.dx += x * force / 10; one.dy += y * force / 10;
        other.dx -= x * force / 10; other.dy -= y * force / 10;
      }
    }
    for (const { from, to, size } of links) {
      const x = to.x - from.x, y = to.y - from.y, distance = Math.hypot(x, y) || 1;
      const force = (heat * (0.04 + 0.08 * size) * (distance - 55)) / distance / Math.sqrt(Math.min(from.degree, to.degree));
      from.dx += x * force; from.dy += y * force;
      to.dx -= x * force; to.dy -= y * force;
    }
    for (const one of nodes) {
      const speed = Math.hypot(one.dx, one.dy), most = 30 * heat + 1;
      const scale = speed > most ? most / speed : 1;
      one.x += one.dx * scale; one.y += one.dy * scale;
      one.dx *= 0.6; one.dy *= 0.6;
    }
    heat *= 0.985;
  }

  const onScreen = (node) => [canvas.width / 2 + view.zoom * (node.x + view.x), canvas.height / 2 + view.zoom * (node.y + view.y)];

  function draw() {
    if (!waiting) { waiting = true; requestAnimationFrame(frame); }
  }

  function frame() {
    waiting = false;
    const until = performance.now() + 10, moves = heat > 0.02;
    while (heat > 0.02 && performance.now() < until) { step(); if (nodes.length > 400) break; }
    if (moves && !drag && view.fit !== false) fit(); // a small network comes to rest within one frame
    paint();
    if (heat > 0.02) draw();
  }

  function fit() {
    if (!nodes.length) return;
    const spread = (axis) => [Math.min(...nodes.map((n) => n[axis])), Math.max(...nodes.map((n) => n[axis]))];
    const [left, right] = spread("x"), [top, bottom] = spread("y");
    view.zoom = Math.min(2.2, 0.86 * Math.min(canvas.width / (right - left + 60), canvas.height / (bottom - top + 30)));
    view.x = -(left + right) / 2;
    view.y = -(top + bottom) / 2;
  }

  function paint() {
    pen.clearRect(0, 0, canvas.width, canvas.height);
    const near = hovered && new Set(links.flatMap(({ from, to }) => (from === hovered || to === hovered ? [from, to] : [])));
    for (const [colour, dashed] of [[UP, true], [DOWN, true], [UP, false], [DOWN, false]]) {
      pen.setLineDash(dashed ? [4, 3] : []);
      for (let part = 0; part < 4; part++) { // edges of about one strength are one stroke
        pen.beginPath();
        for (const { edge, from, to, size } of links) {
          if ((edge.weight > 0) !== (colour === UP) || Math.min(3, Math.floor(4 * size)) !== part) continue;
          if (doubtful(edge) !== dashed) continue;
          if (hovered && from !== hovered && to !== hovered) continue;
          drawLink(from, to, edge.weight > 0);
        }
        pen.strokeStyle = colour;
        pen.globalAlpha = 0.25 + 0.2 * part;
        pen.lineWidth = (0.6 + 0.8 * part) * Math.min(1.5, Math.max(0.6, view.zoom));
        pen.stroke();
      }
    }
    pen.globalAlpha = 1;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const seen = nodes
      .map((node) => [node, ...onScreen(node), node.regulates ? Math.min(8, 3 + Math.sqrt(node.degree)) : 3])
      .filter(([, x, y]) => x > -40 && y > -20 && x < canvas.width + 40 && y < canvas.height + 20);
    for (const [node, x, y, radius] of seen) {
      pen.globalAlpha = near && !near.has(node) ? 0.15 : 1;
      pen.fillStyle = node.regulates ? "#e0a526" : "#8a8a8a";
      pen.beginPath();
      pen.arc(x, y, radius, 0, 7);
      pen.fill();
    }
    // Names of regulators first, beside their dot, and none over a dot or another name.
    const boxes = seen.map(([, x, y, radius]) => [x, y, radius, radius]);
    pen.lineWidth = 3;
    pen.strokeStyle = "white";
    pen.fillStyle = "#222";
    for (const [node, x, y, radius] of seen.sort(([one], [other]) => other.regulates - one.regulates || other.degree - one.degree)) {
      if (near && !near.has(node)) continue;
      pen.font = `${node.regulates ? "600 12" : "11"}px system-ui, sans-serif`;
      const half = pen.measureText(node.name).width / 2 + 2, aside = half + radius + 3;
      const places = [[x, y - radius - 7], [x, y + radius + 8], [x + aside, y], [x - aside, y]];
      const free = ([a, b]) => boxes.every(([c, d, width, height]) => Math.abs(a - c) > half + width || Math.abs(b - d) > 6 + height);
      const place = places.find(free) || (node === hovered && places[0]);
      if (!place) continue;
      boxes.push([...place, half, 6]);
      pen.strokeText(node.name, ...place);
      pen.fillText(node.name, ...place);
    }
  }

  function drawLink(from, to, raises) {
    const [a, b] = onScreen(from), [x, y] = onScreen(to);
    const length = Math.hypot(x - a, y - b);
    if (length < 12) return;
    const u = (x - a) / length, v = (y - b) / length, ex = x - 8 * u, ey = y - 8 * v;
    pen.moveTo(a, b);
    pen.lineTo(ex, ey);
    if (raises) { // an arrow
      pen.moveTo(ex - 5 * u - 3 * v, ey - 5 * v + 3 * u);
      pen.lineTo(ex, ey);
      pen.lineTo(ex - 5 * u + 3 * v, ey - 5 * v - 3 * u);
    } else { // a bar
      pen.moveTo(ex - 4 * v, ey + 4 * u);
      pen.lineTo(ex + 4 * v, ey - 4 * u);
    }
  }

  function nodeAt(event) {
    let best = null, least = 16;
    for (const node of nodes) {
      const [x, y] = onScreen(node), distance = Math.hypot(x - event.offsetX, y - event.offsetY);
      if (distance < least) [best, least] = [node, distance];
    }
    return best;
  }

  canvas.onmousemove = (event) => {
    if (drag) {
      view.x += (event.offsetX - drag.x) / view.zoom;
      view.y += (event.offsetY - drag.y) / view.zoom;
      drag = { x: event.offsetX, y: event.offsetY, moved: true };
      view.fit = false;
      return draw();
    }
    const node = nodeAt(event);
    if (node === hovered) return;
    hovered = node;
    canvas.style.cursor = node ? "pointer" : "grab";
    tip.hidden = !node;
    if (node) {
      const of = links.filter(({ from, to }) => from === node || to === node).slice(0, 10);
      tip.textContent = [node.name, ...of.map(({ edge }) => `${edge.source} ${data.signed ? (edge.weight > 0 ? "raises" : "lowers") : "→"} ${edge.target}: ${texts.weight(edge)}${edge.size === null ? "" : `, ${texts.size(edge)}`}${known ? `, q ${texts.q(edge)}` : ""}${filters.type.value ? "" : ` (${edge.type})`}`)].join("\n");
      tip.style.left = `${Math.min(event.offsetX + 14, canvas.width - 220)}px`;
      tip.style.top = `${event.offsetY + 14}px`;
    }
    draw();
  };
  canvas.onmousedown = (event) => { drag = { x: event.offsetX, y: event.offsetY, moved: false }; };
  canvas.onmouseup = (event) => {
    const moved = drag && drag.moved, node = nodeAt(event);
    drag = null;
    if (!moved && node) { filters.gene.value = node.name; update(); }
  };
  canvas.onmouseleave = () => { drag = null; hovered = null; tip.hidden = true; draw(); };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const factor = Math.exp(-event.deltaY / 400), x = event.offsetX - canvas.width / 2, y = event.offsetY - canvas.height / 2;
    view.x += x / view.zoom * (1 / factor - 1); // what is under the mouse stays there
    view.y += y / view.zoom * (1 / factor - 1);
    view.zoom *= factor;
    view.fit = false;
    draw();
  }, { passive: false });
  at("fit").onclick = () => { view.fit = true; fit(); draw(); };

  function resize() {
    canvas.width = canvas.parentElement.clientWidth;
    canvas.height = Math.max(420, Math.min(640, canvas.width * 0.6));
    if (view.fit !== false) fit();
    draw();
  }

  // ---- All together ----
  function update() {
    const found = passing();
    at("count_value").textContent = at("count").value;
    view.fit = true;
    fillTable(found);
    layOut(found);
  }
  for (const each of [...Object.values(filters), at("count")]) each.addEventListener("input", update);
  at("reset").onclick = () => {
    for (const each of Object.values(filters)) each.value = each === filters.least ? 0 : each === filters.type ? data.types[0] : "";
    filters.certain.checked = known;
    update();
  };
  document.addEventListener("click", (event) => { // a gene anywhere on the page is looked up
    const place = event.target.closest("[data-gene]");
    if (!place) return;
    filters.gene.value = place.dataset.gene;
    filters.regulator.value = "";
    if (place.dataset.type !== undefined && data.types.includes(place.dataset.type)) filters.type.value = place.dataset.type;
    update();
    if (!place.closest("#edges")) at("edges-and-network").scrollIntoView();
  });
  window.addEventListener("resize", resize);
  update();
})();
