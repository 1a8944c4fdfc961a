"use strict";
// The page of a sweep. What it shows is in the address: value, keys of the map, limits, order, page.
(() => {
  const { byId, element, svg } = ui,
    { fixed } = formats;
  const { short, numberOf } = figures;
  const id = location.pathname.split("/").pop();
  const BINS = 8,
    MAX_GRID_VALUES = 24,
    MAX_SHOWN_VALUES = 60,
    MAX_ROUND_ROWS = 200;
  const query = new URLSearchParams(location.search);
  const view = {
    value: query.get("value") || "",
    columnKey: query.get("x") || "",
    rowKey: query.get("y"),
    sort: query.get("sort") || "cell",
    page: Math.max(Number.parseInt(query.get("page"), 10) || 1, 1),
    limits: parallel.parse(query.get("f")),
  };
  let sweep = null,
    damage = "";
  const keepView = () =>
    ui.setAddress({
      value: view.value === valuesOfSweep()[0].name ? "" : view.value,
      x: view.columnKey === sweep.keys[0] ? "" : view.columnKey,
      y: view.rowKey === defaultRowKey() ? "" : view.rowKey || "none",
      f: parallel.format(view.limits),
      sort: view.sort === "cell" ? "" : view.sort,
      page: view.page > 1 ? view.page : "",
    });

  // The values that can colour the cells: the numbers of a cell's runs, and their text.
  const valuesOfSweep = () => {
    const inPercent = sweep.measure_unit === "%";
    const values = [
      {
        name: "best",
        title: `Best validation ${sweep.measure || "score"}`,
        unit: inPercent ? "%" : "higher is better",
        of: r => (r.best === null ? null : inPercent ? 100 * r.best : r.best),
        text: v => fixed(v, inPercent ? 2 : 4),
      },
      {
        name: "speed",
        title: "Training speed",
        unit: "images/s",
        of: r => r.images_per_second,
        text: v => fixed(v, 0),
      },
      { name: "time", title: "Training time", unit: "s", of: r => r.elapsed_s, text: v => fixed(v, 1) },
    ];
    if (sweep.objective) {
      const name = sweep.objective.name;
      values.unshift({
        name,
        title: `Best ${name}`,
        unit: sweep.objective.is_higher_better ? "higher is better" : "lower is better",
        ofCell: cell => cell.result,
        text: v => v.toPrecision(4),
      });
    }
    return values;
  };
  const mean = numbers => (numbers.length ? numbers.reduce((a, b) => a + b, 0) / numbers.length : null);
  const numbersOf = (cell, value) =>
    value.ofCell
      ? [value.ofCell(cell)].filter(v => v !== null)
      : cell.runs.map(value.of).filter(v => v !== null && v !== undefined);
  const keyValue = (cell, key) => {
    const text = cell.values[sweep.keys.indexOf(key)];
    const quotes = text.match(/^"(.*)"$/);
    return quotes ? quotes[1] : text;
  };
  const isNumeric = key => sweep.rows.every(cell => numberOf(keyValue(cell, key)) !== null);
  const defaultRowKey = () => (sweep.keys.length > 1 ? sweep.keys.find(key => key !== view.columnKey) : "");

  // The values of a key as the columns or rows of the map: [label, contains].
  const categories = key => {
    const texts = [...new Set(sweep.rows.map(cell => keyValue(cell, key)))];
    const collate = (a, b) => a.localeCompare(b, undefined, { numeric: true });
    if (!isNumeric(key)) return texts.sort(collate).map(text => [text, cell => keyValue(cell, key) === text]);
    const numbers = texts.map(Number).sort((a, b) => a - b);
    const most = sweep.method.startsWith("grid") ? MAX_GRID_VALUES : BINS;
    if (texts.length <= most) return numbers.map(v => [String(v), cell => Number(keyValue(cell, key)) === v]);
    // The values of searched ranges are all different: they are grouped into intervals.
    const low = numbers[0],
      high = numbers[numbers.length - 1],
      isLog = low > 0 && high / low >= 50;
    const scale = isLog ? Math.log : v => v,
      back = isLog ? Math.exp : v => v;
    const ends = Array.from({ length: BINS + 1 }, (_, i) =>
      back(scale(low) + (i / BINS) * (scale(high) - scale(low))),
    );
    return ends.slice(1).map((end, i) => [
      `${short(ends[i])}–${short(end)}`,
      cell => {
        const v = Number(keyValue(cell, key));
        return (i === 0 || v >= ends[i]) && (i === BINS - 1 || v < end);
      },
    ]);
  };
  const statusOf = cells => {
    const statuses = cells.flatMap(cell => cell.runs.map(run => run.status));
    const first = [
      "running",
      "failed",
      "does_not_fit",
      "killed",
      "interrupted",
      "stopped_early",
      "waiting",
    ].find(s => statuses.includes(s));
    return first ? first.replaceAll("_", " ") : "no value";
  };

  const drawHeat = () => {
    const values = valuesOfSweep(),
      keys = sweep.keys.map(key => [key, key]);
    byId("heat").hidden = !keys.length || !sweep.rows.length;
    if (byId("heat").hidden) return;
    view.value = figures.fill(
      byId("value"),
      values.map(v => [v.name, v.title]),
      view.value,
    );
    view.columnKey = figures.fill(byId("heat-columns"), keys, view.columnKey);
    if (view.rowKey === null) view.rowKey = defaultRowKey();
    view.rowKey = figures.fill(
      byId("heat-rows"),
      [["none", "nothing"], ...keys.filter(([key]) => key !== view.columnKey)],
      view.rowKey || "none",
    );
    if (view.rowKey === "none") view.rowKey = "";
    const value = values.find(v => v.name === view.value);
    const all = [categories(view.columnKey), view.rowKey ? categories(view.rowKey) : [["all", () => true]]];
    const [columns, rows] = all.map(list => list.slice(0, MAX_SHOWN_VALUES));
    const grid = rows.map(([, inRow]) =>
      columns.map(([, inColumn]) => {
        const cells = sweep.rows.filter(cell => inRow(cell) && inColumn(cell));
        const numbers = cells.flatMap(cell => numbersOf(cell, value));
        return {
          cells,
          mean: mean(numbers),
          count: value.ofCell
            ? cells
                .filter(c => numbersOf(c, value).length)
                .reduce((sum, c) => sum + c.runs.filter(r => r.run).length, 0)
            : numbers.length,
        };
      }),
    );
    const known = grid
      .flat()
      .map(one => one.mean)
      .filter(v => v !== null);
    const low = Math.min(...known),
      high = Math.max(...known);
    const by = view.rowKey ? `${view.columnKey} and ${view.rowKey}` : view.columnKey;
    const title = `${value.title}, ${value.unit}, by ${by}`;
    byId("heat-title").textContent = title;
    const best = sweep.best && sweep.best.cell;
    const cellOf = one => {
      if (!one.cells.length) return element("td", { class: "none", title: "no such cell" }, "·");
      if (one.mean === null) return element("td", { class: "missing" }, statusOf(one.cells));
      const rgb = figures.colourOf(high > low ? (one.mean - low) / (high - low) : 0.5);
      const isBest = one.cells.some(cell => cell.cell === best);
      const cell = element("td", { class: isBest ? "best" : null });
      cell.style.backgroundColor = figures.css(rgb);
      cell.style.color = figures.inkOn(rgb);
      const runs = one.cells.flatMap(c => c.runs).filter(run => run.run);
      const text = `${isBest ? "★ " : ""}${value.text(one.mean)}`;
      const link = runs.length === 1 ? element("a", { href: `/run/${runs[0].run}` }, text) : text;
      cell.append(link);
      if (one.count > 1) cell.append(element("span", { class: "count" }, ` ×${one.count}`));
      return cell;
    };
    const head = element(
      "tr",
      {},
      element(
        "th",
        { scope: "col" },
        view.rowKey ? `${view.rowKey} ↓ ${view.columnKey} →` : `${view.columnKey} →`,
      ),
      ...columns.map(([label]) => element("th", { scope: "col" }, label)),
    );
    const lines = grid.map((line, i) =>
      element("tr", {}, element("th", { scope: "row" }, rows[i][0]), ...line.map(cellOf)),
    );
    figures.replace(
      byId("heat-map"),
      element(
        "table",
        { class: "heat" },
        element("caption", { class: "hidden" }, title),
        element("thead", {}, head),
        element("tbody", {}, ...lines),
      ),
    );
    const swatch = part => {
      const made = element("span", { class: "swatch" });
      made.style.backgroundColor = figures.css(figures.colourOf(part));
      return made;
    };
    byId("heat-legend").replaceChildren(
      ...(known.length
        ? [
            `${value.text(low)} `,
            ...[0, 0.2, 0.4, 0.6, 0.8, 1].map(swatch),
            ` ${value.text(high)} ${value.unit}`,
          ]
        : ["No values yet"]),
      element("span", { class: "swatch missing" }),
      " no value yet",
      element("span", { class: "swatch none" }),
      " no such cell",
      " ★ best cell",
    );
    const others = sweep.keys.filter(key => key !== view.columnKey && key !== view.rowKey);
    const several = grid
      .flat()
      .map(one => one.count)
      .find(count => count > 1);
    byId("heat-note").textContent = [
      several &&
        `×${several}: the mean of ${several === 2 ? "two" : several} runs` +
          (others.length ? `, over all values of ${others.join(", ")}.` : "."),
      [columns, rows].some(list => list.length === BINS && list[0][0].includes("–")) &&
        "Values of a searched range are grouped into intervals.",
      all.some(list => list.length > MAX_SHOWN_VALUES) &&
        `Of keys with more values, the first ${MAX_SHOWN_VALUES} are shown.`,
    ]
      .filter(note => note)
      .join(" ");
    figures.addCsv(byId("heat-map").closest("figure"), () => [
      [view.rowKey || "all", ...columns.map(([label]) => label)],
      ...grid.map((line, i) => [rows[i][0], ...line.map(one => one.mean ?? "")]),
    ]);
  };

  const MARKS = {
    continues: "✓ continues",
    stopped: "■ stopped",
    failed: "✗ failed",
    undecided: "… undecided",
  };
  const drawRounds = () => {
    byId("rounds").hidden = !sweep.halving;
    if (!sweep.halving) return;
    const { metric, factor, is_asynchronous } = sweep.halving,
      rounds = sweep.rounds;
    byId("rounds-note").textContent =
      `One of ${factor} cells continues after each round, by ${metric.name} ` +
      `(${metric.is_higher_better ? "higher" : "lower"} is better)` +
      (is_asynchronous
        ? "; a cell continues as soon as it is among the best of those that got as far."
        : ".");
    const title = `${metric.name} at the end of each round`;
    byId("rounds-title").textContent = title;
    const all = rounds.flatMap(round => round.cells.map(([, v]) => v)).filter(v => v !== null);
    const room = Math.min(byId("rounds-plot").clientWidth, 1100);
    const width = Math.max(640, 180 * rounds.length, room),
      height = 290,
      left = 70,
      top = 16,
      bottom = 50;
    const low = Math.min(...all),
      high = Math.max(...all);
    const x = i =>
      left + (rounds.length < 2 ? (width - 2 * left) / 2 : (i * (width - 2 * left)) / (rounds.length - 1));
    const y = v => height - bottom - (high > low ? (v - low) / (high - low) : 0.5) * (height - top - bottom);
    // Two lines each, since the labels of neighbouring rounds would overlap in one.
    const labels = rounds.map(round => [
      `epoch ${round.epoch}`,
      `${round.cells.length} cells, ${round.cells.filter(([, , o]) => o === "continues").length} continue`,
    ]);
    const counts = labels.map(lines => lines.join(": "));
    const drawing = svg("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      class: "rounds",
      role: "img",
      "aria-label": `${title}. ${counts.join("; ")}. The table below has the values.`,
    });
    const text = (content, attributes) => {
      const made = svg("text", attributes);
      made.textContent = content;
      drawing.append(made);
    };
    for (const part of all.length ? [0, 0.25, 0.5, 0.75, 1] : []) {
      const v = low + part * (high - low);
      drawing.append(
        svg("line", { x1: left - 10, x2: width - left + 10, y1: y(v), y2: y(v), class: "grid" }),
      );
      text(v.toPrecision(4), { x: left - 16, y: y(v) + 4, class: "tick", "text-anchor": "end" });
      if (high === low) break;
    }
    // At the edges, labels end within the drawing.
    const anchorOf = i =>
      rounds.length < 2 ? "middle" : i === 0 ? "start" : i === rounds.length - 1 ? "end" : "middle";
    labels.forEach((lines, i) =>
      lines.forEach((content, line) =>
        text(content, { x: x(i), y: height - 26 + 15 * line, class: "tick", "text-anchor": anchorOf(i) }),
      ),
    );
    const places = new Map();
    rounds.forEach((round, i) =>
      round.cells.forEach(([cell, v, outcome]) => {
        if (v === null) return;
        const before = places.get(cell),
          here = [x(i), y(v)];
        if (before)
          drawing.append(
            svg("line", { x1: before[0], y1: before[1], x2: here[0], y2: here[1], class: "path" }),
          );
        places.set(cell, here);
        const mark = svg(
          outcome === "stopped" || outcome === "failed" ? "rect" : "circle",
          outcome === "stopped" || outcome === "failed"
            ? { x: here[0] - 4, y: here[1] - 4, width: 8, height: 8, class: outcome }
            : { cx: here[0], cy: here[1], r: 5, class: outcome },
        );
        const name = svg("title", {});
        name.textContent = `cell ${cell} (${sweep.rows[cell - 1].name}): ${v.toPrecision(4)}, ${outcome}`;
        mark.append(name);
        drawing.append(mark);
      }),
    );
    byId("rounds-plot").replaceChildren(
      drawing,
      element("p", { class: "legend" }, "● continues   ■ stopped or failed   ○ undecided"),
    );
    const cells = [...new Set([...rounds].reverse().flatMap(round => round.cells.map(([cell]) => cell)))];
    const of = (round, cell) => round.cells.find(([other]) => other === cell);
    const columns = [
      { name: "cell", title: "Cell", cell: cell => `${cell}: ${sweep.rows[cell - 1].name}` },
      ...rounds.map((round, i) => ({
        name: `r${i}`,
        title: `Epoch ${round.epoch}, ${metric.name}`,
        cell: cell => {
          const found = of(round, cell);
          return found ? `${found[1] === null ? "–" : found[1].toPrecision(4)} ${MARKS[found[2]]}` : "–";
        },
      })),
    ];
    byId("rounds-table").replaceChildren(
      figures.table({
        sort: "",
        columns,
        rows: cells.slice(0, MAX_ROUND_ROWS),
        caption:
          cells.length > MAX_ROUND_ROWS
            ? `The ${MAX_ROUND_ROWS} of ${cells.length} cells that got furthest`
            : "Cells, those that got furthest first",
        empty: "No cell has reached the first round.",
      }),
    );
    figures.addCsv(byId("rounds-plot").closest("figure"), () => [
      ["epoch", "cell", "name", metric.name, "outcome"],
      ...rounds.flatMap(round =>
        round.cells.map(([cell, v, outcome]) => [
          round.epoch,
          cell,
          sweep.rows[cell - 1].name,
          v ?? "",
          outcome,
        ]),
      ),
    ]);
  };

  const resultAxis = "result";
  const axisValue = (cell, name, value) => {
    if (name === resultAxis) return mean(numbersOf(cell, value));
    const text = keyValue(cell, name);
    return isNumber.get(name) ? Number(text) : text;
  };
  let isNumber = new Map();
  const chosenCells = value =>
    sweep.rows.filter(cell =>
      parallel.passes(view.limits, name =>
        name === resultAxis || sweep.keys.includes(name) ? axisValue(cell, name, value) : undefined,
      ),
    );
  const setLimit = (name, limits) => {
    if (name === null) view.limits = new Map();
    else if (limits === null) view.limits.delete(name);
    else view.limits.set(name, limits);
    view.page = 1;
    keepView();
    drawParallel();
    drawCells();
  };
  const drawParallel = () => {
    byId("parallel").hidden = !sweep.keys.length || !sweep.rows.length;
    if (byId("parallel").hidden || byId("parallel-plot").isDragging) return;
    const value = valuesOfSweep().find(v => v.name === view.value);
    const axes = [
      ...sweep.keys.map(key =>
        parallel.axisOf(
          key,
          key,
          sweep.rows.map(cell => axisValue(cell, key, value)),
        ),
      ),
      parallel.axisOf(
        resultAxis,
        `${value.title}, ${value.unit}`,
        sweep.rows.map(cell => axisValue(cell, resultAxis, value)),
      ),
    ];
    axes.forEach(axis => {
      axis.label = axis.name === resultAxis ? `${value.title}, ${value.unit}` : axis.name;
    });
    const title = `Keys and ${value.title.toLowerCase()}, ${value.unit}`;
    byId("parallel-title").textContent = title;
    const chosen = new Set(chosenCells(value)),
      scale = axes[axes.length - 1];
    parallel.draw(
      byId("parallel-plot"),
      title,
      axes,
      sweep.rows.map(cell => {
        const result = axisValue(cell, resultAxis, value);
        return {
          values: axes.map(axis => axisValue(cell, axis.name, value)),
          isChosen: chosen.has(cell),
          colour: result === null || !scale.isNumber ? null : figures.lineColour(scale.at(result)),
          title:
            `cell ${cell.cell} (${cell.name})` +
            (result === null ? "" : `: ${value.text(result)} ${value.unit}`),
        };
      }),
      view.limits,
      setLimit,
    );
    parallel.fields(byId("filters"), axes, view.limits, setLimit);
    figures.addCsv(byId("parallel-plot").closest("figure"), () => [
      ["cell", ...sweep.keys, `${value.title}, ${value.unit}`],
      ...sweep.rows
        .filter(cell => chosen.has(cell))
        .map(cell => [
          cell.cell,
          ...sweep.keys.map(key => axisValue(cell, key, value)),
          axisValue(cell, resultAxis, value) ?? "",
        ]),
    ]);
  };

  const drawCells = () => {
    const values = valuesOfSweep(),
      value = values.find(v => v.name === view.value);
    const runLinks = cell =>
      cell.runs.flatMap((run, i) => {
        const epochs = run.epochs === null ? "" : ` ${run.epochs}${run.of_epochs ? `/${run.of_epochs}` : ""}`;
        const words = `${run.status.replaceAll("_", " ")}${epochs}`;
        const shown = run.run
          ? element(
              "a",
              {
                href: `/run/${run.run}`,
                "aria-label": `run ${run.repetition} of cell ${cell.cell}: ${words}`,
              },
              words,
            )
          : words;
        const mark = element("span", { class: `state ${run.status}`, title: run.reason || null }, shown);
        if (run.problem) mark.append(element("span", { class: "problem" }, ` ⚠ ${run.problem}`));
        return i ? [", ", mark] : [mark];
      });
    const reasons = cell =>
      [...new Set(cell.runs.map(run => run.reason).filter(reason => reason))].join("; ");
    const columns = [
      {
        name: "cell",
        title: "Cell",
        key: c => c.cell,
        cell: c => `${sweep.best && sweep.best.cell === c.cell ? "★ " : ""}${c.cell}`,
      },
      ...sweep.keys.map(key => ({
        name: `k:${key}`,
        title: key,
        n: isNumber.get(key),
        key: c => axisValue(c, key, value),
        cell: c => keyValue(c, key),
      })),
      ...values.map(v => ({
        name: v.name,
        title: `${v.title}, ${v.unit}`,
        n: true,
        key: c => mean(numbersOf(c, v)),
        cell: c => {
          const numbers = numbersOf(c, v);
          return numbers.length
            ? `${v.text(mean(numbers))}${numbers.length > 1 ? ` ×${numbers.length}` : ""}`
            : "–";
        },
      })),
      {
        name: "runs",
        title: "Runs: status, epochs",
        key: c => c.runs.map(run => run.status).join(),
        cell: runLinks,
      },
      { name: "reason", title: "Reason", key: reasons, cell: reasons },
    ];
    const chosen = chosenCells(value);
    byId("cells-note").textContent = `${chosen.length} of ${sweep.rows.length} cells`;
    const rows = figures.sorted(chosen, columns, view.sort);
    const [from, to] = figures.pager(byId("pager"), rows.length, view.page, page => {
      view.page = page;
      keepView();
      drawCells();
    });
    figures.replace(
      byId("cells"),
      figures.table({
        caption: "Cells of the sweep",
        columns,
        rows: rows.slice(from, to),
        sort: view.sort,
        onSort: sort => {
          view.sort = sort;
          view.page = 1;
          keepView();
          drawCells();
        },
        empty: "No cell is within the limits.",
      }),
    );
    figures.addCsv(byId("cells").querySelector("table"), () => [
      columns.map(c => c.title),
      ...rows.map(cell =>
        columns.map(c =>
          c.name === "runs" ? cell.runs.map(run => run.status).join(" ") : (c.key(cell) ?? ""),
        ),
      ),
    ]);
  };

  const say = text => {
    byId("notice").textContent = text;
    byId("notice").hidden = !text;
  };
  const draw = () => {
    drawHeat();
    drawRounds();
    drawParallel();
    drawCells();
  };
  const show = made => {
    // A damaged file is reported; what was read before stays.
    damage = made.problem ? `This sweep cannot be read: ${made.problem}` : "";
    say(damage);
    if (damage && sweep) return;
    sweep = made;
    isNumber = new Map(sweep.keys.map(key => [key, isNumeric(key)]));
    if (!view.value) view.value = valuesOfSweep()[0].name;
    if (!sweep.keys.includes(view.columnKey)) view.columnKey = sweep.keys[0] || "";
    const counts = Object.entries(sweep.statuses).map(([status, count]) =>
      element(
        "span",
        { class: "status" },
        element("span", { class: `state ${status}` }, `${count} ${status.replaceAll("_", " ")}`),
      ),
    );
    const size =
      sweep.cells[0] === sweep.cells[1]
        ? `${sweep.cells[0]} cells`
        : `${sweep.cells[0]} of ${sweep.cells[1]} cells so far`;
    byId("facts").replaceChildren(
      ...(made.problem
        ? []
        : [
            `${sweep.method}, ${size}, ${sweep.repetitions} ${sweep.repetitions === 1 ? "run" : "runs"} each`,
          ]),
      ...counts,
    );
    const best = sweep.best;
    byId("best").textContent = best
      ? `★ Best: cell ${best.cell} (${best.name}): ${figures.measured(best)}` +
        (best.runs > 1 ? `, mean of ${best.runs} runs` : "")
      : "";
    draw();
  };
  figures.document(`/api/sweeps/${id}`, show, text => say(text || damage));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => sweep && draw());
  byId("value").addEventListener("change", event => {
    view.value = event.target.value;
    view.limits.delete(resultAxis);
    keepView();
    draw();
  });
  byId("heat-columns").addEventListener("change", event => {
    if (event.target.value === view.rowKey) view.rowKey = view.columnKey;
    view.columnKey = event.target.value;
    keepView();
    draw();
  });
  byId("heat-rows").addEventListener("change", event => {
    view.rowKey = event.target.value;
    keepView();
    draw();
  });
})();
