// The layers of a run: the table as a tree, the colours of the network, and the details of a chosen layer.
// The choices belong to the page, so that they stay when a live page renews its sections.
stratus.layers = (() => {
  const { bytes, count } = formats;
  const opened = new Map(),
    colouring = new Map();
  let chosen = null,
    panel = null,
    opener = null;

  const runOf = number => stratus.data().runs[number];
  const layersOf = number => (runOf(number) && runOf(number).layers) || { nodes: [], details: [] };
  const tableOf = number => document.querySelector(`table.tree[data-tree="${number}"]`);
  const rowOf = (number, node) => document.getElementById(`layer-${number}-${node}`);
  const make = (name, text, attributes) => {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    return made;
  };
  const button = (text, className, click) => {
    const made = make("button", text, { type: "button", class: className });
    made.addEventListener("click", click);
    return made;
  };
  // The number in a cell of the table of layers; null if it is unknown.
  const columns = {
    forward: 2,
    backward: 3,
    update: 4,
    total: 5,
    median: 6,
    share: 7,
    mflop: 8,
    gflops: 9,
    gbs: 10,
  };
  const number = (run, node, column) => {
    const row = rowOf(run, node),
      cell = row && row.cells[columns[column]];
    return cell && cell.dataset.n !== undefined ? Number(cell.dataset.n) : null;
  };

  // The table as a tree: blocks are folded by buttons.
  const isOpen = (run, row) => {
    const known = opened.get(`${run} ${layersOf(run).nodes[row.dataset.node].name}`);
    return known === undefined ? row.hasAttribute("data-open") : known;
  };
  const fold = table => {
    const run = Number(table.dataset.tree),
      hiddenFrom = [];
    for (const row of table.tBodies[0].rows) {
      const level = Number(row.dataset.level);
      hiddenFrom.length = Math.min(hiddenFrom.length, level);
      row.hidden = hiddenFrom.some(hidden => hidden);
      const arrow = row.querySelector(".fold");
      if (!arrow) continue;
      const open = isOpen(run, row);
      arrow.textContent = open ? "▾" : "▸";
      arrow.setAttribute("aria-expanded", open);
      hiddenFrom[level] = !open;
    }
  };
  const setUpTable = table => {
    const run = Number(table.dataset.tree);
    for (const row of table.tBodies[0].rows) {
      const cell = row.cells[0],
        node = Number(row.dataset.node),
        name = layersOf(run).nodes[node];
      if (!name || cell.firstElementChild) continue;
      const label = cell.textContent;
      const pick = button(label, "pick", () => choose(run, node, pick));
      pick.title = `${name.name}: details`;
      cell.replaceChildren(pick);
      if (name.row === null) {
        const arrow = button("▸", "fold", () => {
          opened.set(`${run} ${name.name}`, !isOpen(run, row));
          fold(table);
        });
        arrow.setAttribute("aria-label", `Layers of ${name.name}`);
        cell.prepend(arrow);
      } else pick.classList.add("leaf");
    }
    fold(table);
  };

  // Drawings: the colours show time, memory or arithmetic.
  const modes = {
    time: {
      name: "time",
      unit: "ms per iteration",
      value: (run, node) => number(run, node, "total"),
      text: (v, run, node) => `${v.toFixed(3)} ms · ${number(run, node, "share").toFixed(1)} %`,
      scale: v => `${v.toFixed(3)} ms per iteration`,
    },
    memory: {
      name: "memory",
      value: (run, node) => {
        const memory = layersOf(run).nodes[node].memory;
        return memory ? memory.activation_bytes + memory.persistent_bytes : null;
      },
      text: bytes,
      scale: v => `${bytes(v)} of activations and parameters`,
    },
    work: {
      name: "arithmetic",
      value: (run, node) => number(run, node, "mflop"),
      text: v => `${v.toFixed(1)} MFLOP`,
      scale: v => `${v.toFixed(1)} MFLOP per iteration`,
    },
  };
  const paint = (svg, run, mode) => {
    const how = modes[mode],
      nodes = [...svg.querySelectorAll(".node[data-node]")];
    const values = nodes.map(node => how.value(run, Number(node.dataset.node)));
    const largest = Math.max(...values.map(value => value || 0), 0);
    svg.classList.remove("by-time", "by-memory", "by-work");
    svg.classList.add(`by-${mode}`);
    nodes.forEach((node, i) => {
      const value = values[i];
      const level = value > 0 && largest > 0 ? Math.min(6, Math.max(1, Math.ceil((6 * value) / largest))) : 0;
      node.setAttribute("class", node.getAttribute("class").replace(/\bh\d\b/, `h${level}`));
      node.querySelector(".value").textContent =
        value === null ? "–" : how.text(value, run, Number(node.dataset.node));
    });
    svg.querySelector(".scale").textContent = how.scale(largest);
  };
  const svgsOf = place => [...place.querySelectorAll(".graph > svg")];
  const setUpNetwork = place => {
    const run = Number(place.dataset.network);
    if (!layersOf(run).nodes.length || !tableOf(run)) return;
    if (!place.querySelector(".by")) {
      const label = make("label", "Colour by ", { class: "by" }),
        select = make("select");
      for (const [mode, { name }] of Object.entries(modes)) {
        if (mode === "time" || layersOf(run).nodes.some((_, node) => modes[mode].value(run, node) !== null)) {
          select.append(make("option", name, { value: mode }));
        }
      }
      select.value = colouring.get(run) || "time";
      select.addEventListener("change", () => {
        colouring.set(run, select.value);
        svgsOf(place).forEach(svg => paint(svg, run, select.value));
        if (chosen && chosen.run === run) show();
      });
      label.append(select);
      place.prepend(label);
    }
    svgsOf(place).forEach(svg => {
      link(svg, run);
      if (colouring.get(run)) paint(svg, run, colouring.get(run));
    });
  };
  const link = (svg, run) =>
    svg.querySelectorAll("a.node").forEach(node =>
      node.addEventListener("click", event => {
        event.preventDefault();
        choose(run, Number(node.dataset.node), node);
      }),
    );

  // The chosen layer, in the table, the drawings and the roofline.
  const rowsOf = (run, node) => {
    const { nodes } = layersOf(run);
    return nodes
      .slice(node, nodes[node].end)
      .map(inner => inner.row)
      .filter(row => row !== null);
  };
  const section = run => {
    const table = tableOf(run);
    return table && table.closest("section");
  };
  const mark = () => {
    document.querySelectorAll(".chosen").forEach(marked => marked.classList.remove("chosen"));
    document.querySelectorAll(".points-chosen").forEach(marked => marked.classList.remove("points-chosen"));
    if (!chosen) return;
    const { run, node } = chosen,
      root = section(run),
      rows = new Set(rowsOf(run, node).map(String));
    const row = rowOf(run, node);
    if (row) row.classList.add("chosen");
    if (!root) return;
    root.querySelectorAll(`a.node[data-node="${node}"]`).forEach(drawn => drawn.classList.add("chosen"));
    root.querySelectorAll("circle[data-row]").forEach(circle => {
      if (!rows.has(circle.dataset.row)) return;
      circle.classList.add("chosen");
      circle.closest("svg").classList.add("points-chosen");
    });
  };
  const list = (place, facts) => {
    const made = make("dl");
    facts
      .filter(([, value]) => value)
      .forEach(([name, value]) => made.append(make("dt", name), make("dd", value)));
    place.append(made);
  };
  const fixed = (value, places, unit) => (value === null ? null : `${value.toFixed(places)}${unit}`);
  const shapes = values =>
    values.length > 6 ? `${values.slice(0, 6).join(", ")} and ${values.length - 6} more` : values.join(", ");

  const history = (run, node) => {
    const { history } = runOf(run).curves || {},
      rows = rowsOf(run, node);
    if (!history || history.iteration.length < 2 || rows.some(row => !history.ms[row])) return null;
    return [
      history.iteration,
      history.iteration.map((_, i) => rows.reduce((sum, row) => sum + (history.ms[row][i] || 0), 0)),
    ];
  };
  const roofline = (run, node) => {
    const root = section(run),
      rows = new Set(rowsOf(run, node).map(String));
    return root
      ? [...root.querySelectorAll("circle[data-row]")]
          .filter(circle => rows.has(circle.dataset.row))
          .map(circle => circle.textContent.trim())
      : [];
  };
  const show = () => {
    const { run, node } = chosen,
      layers = layersOf(run),
      known = layers.nodes[node];
    const details = known.row !== null && layers.details[known.row],
      of = column => number(run, node, column);
    stratus.removeCharts(panel);
    const title = make("h2", known.name, { tabindex: "-1" });
    panel.replaceChildren(title, button("Close", "close", close));
    if (known.parent !== null) {
      panel.append(
        button(`In ${layers.nodes[known.parent].name}`, "up", () => choose(run, known.parent, opener)),
      );
    }
    const row = rowOf(run, node),
      memory = known.memory;
    list(panel, [
      ["kind", row && row.cells[1].textContent],
      ["device", details && details.device],
      ["input", details && shapes(details.inputs)],
      ["output", details && shapes(details.outputs)],
      ["parameters", memory && count(memory.parameters)],
      ["parameter memory", memory && `${bytes(memory.persistent_bytes)}, with optimiser state and copies`],
      ["activations", memory && `${bytes(memory.activation_bytes)} a batch`],
      ["time", `${fixed(of("total"), 3, " ms")}, ${fixed(of("share"), 1, " %")} of an iteration`],
      ["median", fixed(of("median"), 3, " ms")],
      ["forward", fixed(of("forward"), 3, " ms")],
      ["backward", fixed(of("backward"), 3, " ms")],
      ["update", fixed(of("update"), 3, " ms")],
      ["arithmetic", fixed(of("mflop"), 1, " MFLOP per iteration")],
      [
        "achieved",
        [fixed(of("gflops"), 1, " GFLOP/s"), fixed(of("gbs"), 1, " GB/s")].filter(text => text).join(", "),
      ],
    ]);
    const points = roofline(run, node);
    if (points.length && points.length <= 8) {
      panel.append(make("h3", "Roofline"));
      const made = make("ul");
      points.forEach(text =>
        made.append(make("li", text.slice(text.startsWith(`${known.name}, `) ? known.name.length + 2 : 0))),
      );
      panel.append(made);
    }
    if (details && details.kernels.length) {
      panel.append(make("h3", "Kernels"));
      const box = make("div", "", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Kernels" }),
        table = make("table"),
        head = make("tr");
      ["phase", "kernel", "implementation"].forEach(name => head.append(make("th", name, { scope: "col" })));
      table.append(head);
      for (const { phase, kernel, implementation, steps } of details.kernels) {
        const line = make("tr");
        [phase, kernel + (steps > 1 ? ` ×${steps}` : ""), implementation].forEach(text =>
          line.append(make("td", text.replaceAll("_", " "))),
        );
        table.append(line);
      }
      box.append(table);
      panel.append(box);
    }
    const inside = section(run) && section(run).querySelector(`[data-block="${node}"] > .graph`);
    if (inside) {
      panel.append(make("h3", "Inside"));
      const copy = inside.cloneNode(true);
      panel.append(copy);
      svgsOf(panel).forEach(svg => {
        link(svg, run);
        paint(svg, run, colouring.get(run) || "time");
      });
    }
    const drawn = history(run, node);
    if (drawn) {
      const figure = make("figure"),
        place = make("div", "", { class: "chart" });
      figure.append(make("figcaption", "Time over the iterations, ms"), place);
      panel.append(figure);
      stratus.draw(place, "iteration", [stratus.line("ms", 0)], drawn, { height: 160 });
    }
  };
  const choose = (run, node, from) => {
    if (!layersOf(run).nodes[node]) return;
    if (!panel) {
      panel = make("aside", "", { class: "layer-panel", "aria-label": "Layer" });
      panel.addEventListener("keydown", event => {
        if (event.key === "Escape") close();
      });
      (document.querySelector("main") || document.body).append(panel);
    }
    chosen = { run, node, name: layersOf(run).nodes[node].name };
    if (!panel.contains(from)) opener = from;
    panel.hidden = false;
    mark();
    show();
    panel.scrollTop = 0;
    panel.querySelector("h2").focus({ preventScroll: true });
  };
  const close = () => {
    stratus.removeCharts(panel);
    panel.hidden = true;
    panel.replaceChildren();
    chosen = null;
    mark();
    if (opener && opener.isConnected) opener.focus({ preventScroll: true });
  };

  const setUp = root => {
    root.querySelectorAll("table.tree").forEach(setUpTable);
    root.querySelectorAll(".network[data-network]").forEach(setUpNetwork);
    root.querySelectorAll("circle[data-row]").forEach(circle =>
      circle.addEventListener("click", () => {
        const place = circle.closest("section");
        const table = place && place.querySelector("table.tree");
        if (!table) return;
        const run = Number(table.dataset.tree);
        choose(
          run,
          layersOf(run).nodes.findIndex(node => node.row === Number(circle.dataset.row)),
          circle,
        );
      }),
    );
    if (!chosen) return;
    // New data: the same layer, if there still is one.
    const node = layersOf(chosen.run).nodes.findIndex(other => other.name === chosen.name);
    if (node < 0) {
      close();
      return;
    }
    chosen.node = node;
    mark();
    if (!panel.contains(document.activeElement)) show();
  };
  setUp(document);
  return { setUp };
})();
