"use strict";
// The charts and tables of a page. A saved report draws them once; a live page draws them again with new
// data.
const stratus = (() => {
  let data = JSON.parse(document.getElementById("data").textContent);
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const hues = ["--forward", "--backward-data", "--update", "--backward-weights", "--bad", "--other"];
  // After the named colours, hues at the golden angle keep neighbours distinct.
  const colour = i => (i < hues.length ? css(hues[i]) : `hsl(${(i * 137.5) % 360} 55% 55%)`);
  const translucent = text => (text.startsWith("#") ? text + "30" : text.replace(")", " / 19%)"));
  const percent = values => values.map(v => (v === null ? null : 100 * v));

  // Joins series with different x into one table, since uPlot needs a common x.
  const joinSeries = parts => uPlot.join(parts.map(([x, y]) => [x, y]));

  const line = (label, i, more) =>
    Object.assign(
      {
        label,
        stroke: () => colour(i),
        width: 1.6,
        spanGaps: true,
        points: { size: 5 },
        value: (_, v) => (v === null || v === undefined ? "–" : Number(v.toPrecision(5)).toString()),
      },
      more,
    );

  // The number of decimals that distinguishes neighbouring labels of an axis.
  const decimals = step => {
    let places = 0;
    while (places < 12 && Math.abs(step - Number(step.toFixed(places))) > 1e-6 * step) places++;
    return places;
  };
  const logLabels = (_, ticks) =>
    ticks.map(v =>
      v === null ? "" : v >= 1e6 || v < 1e-4 ? v.toExponential() : String(Number(v.toPrecision(3))),
    );
  const labels = (_, ticks, axis, space, step) => {
    const places = decimals(step);
    const short = { minimumFractionDigits: places, maximumFractionDigits: places };
    const fine = places > 5;
    const text = v => (fine && v !== 0 ? v.toExponential(2) : v.toLocaleString("en-US", fine ? {} : short));
    return ticks.map(v => (v === null ? "" : text(v)));
  };

  const sizeOf = container => ({
    width: Math.max(container.clientWidth, 200),
    height: container.chartHeight,
  });
  const resized = new ResizeObserver(entries =>
    entries.forEach(({ target }) => {
      if (target.chart && sizeOf(target).width !== target.chart.width) target.chart.setSize(sizeOf(target));
    }),
  );
  // Every place of a chart, also those that scripts make.
  const places = root => [...root.querySelectorAll(".chart")];
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    places(document).forEach(container => container.chart && container.chart.redraw(false, true)),
  );

  // The data of a chart as CSV.
  const toCsv = chart => {
    const lines = chart.data[0].map((_, i) => chart.data.map(values => values[i] ?? "").join(","));
    return [chart.series.map(s => formats.csvCell(String(s.label))).join(","), ...lines, ""].join("\n");
  };
  // A chart as PNG, on the background of the page.
  const toPng = chart =>
    new Promise(done => {
      const drawn = chart.ctx.canvas,
        copy = document.createElement("canvas");
      Object.assign(copy, { width: drawn.width, height: drawn.height });
      const context = copy.getContext("2d");
      context.fillStyle = css("--page");
      context.fillRect(0, 0, copy.width, copy.height);
      context.drawImage(drawn, 0, 0);
      copy.toBlob(done, "image/png");
    });
  const addDownloads = container => {
    const figure = container.closest("figure"),
      caption = figure && figure.querySelector("figcaption");
    if (!caption || figure.querySelector(".downloads")) return;
    const place = document.createElement("span");
    place.className = "downloads";
    const add = (name, make) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: name });
      button.setAttribute("aria-label", `Save as ${name}: ${caption.textContent}`);
      button.addEventListener("click", async () => {
        const title = formats.fileName(caption.textContent);
        if (container.chart) formats.download(await make(container.chart), `${title}.${name.toLowerCase()}`);
      });
      place.append(button);
    };
    add("CSV", chart => new Blob([toCsv(chart)], { type: "text/csv" }));
    add("PNG", toPng);
    caption.after(place);
  };

  // A drawing as a file of its own: what the style of the page sets becomes attributes.
  const STYLE_PROPERTIES = [
    "fill",
    "stroke",
    "stroke-width",
    "stroke-linecap",
    "stroke-opacity",
    "stroke-dasharray",
    "opacity",
    "fill-opacity",
    "font-family",
    "font-size",
    "font-weight",
    "text-anchor",
    "display",
  ];
  const toSvg = drawing => {
    const copy = drawing.cloneNode(true),
      [, , width, height] = drawing.getAttribute("viewBox").split(" ");
    const shown = [...drawing.querySelectorAll("*")];
    [...copy.querySelectorAll("*")].forEach((mark, i) => {
      const style = getComputedStyle(shown[i]);
      for (const name of STYLE_PROPERTIES) mark.setAttribute(name, style.getPropertyValue(name));
      mark.removeAttribute("class");
    });
    const page = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of [
      ["width", width],
      ["height", height],
      ["fill", css("--page")],
    ])
      page.setAttribute(name, value);
    copy.prepend(page);
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
  };
  // A button that saves it, above each drawing, or in the figure of a small one.
  const addDrawingDownloads = root =>
    root.querySelectorAll(".scroll > svg[role=img], .points > svg, .plot > svg").forEach(drawing => {
      const place = drawing.parentElement,
        isPlot = place.classList.contains("plot"),
        neighbour = isPlot ? place.querySelector(".downloads") : place.previousElementSibling;
      if (neighbour && neighbour.classList.contains("downloads")) return;
      const title = drawing.getAttribute("aria-label"),
        bar = document.createElement(isPlot ? "span" : "p");
      bar.className = "downloads";
      const button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: "SVG" });
      button.setAttribute("aria-label", `Save as SVG: ${title}`);
      button.addEventListener("click", () =>
        formats.download(toSvg(drawing), `${formats.fileName(title)}.svg`),
      );
      bar.append(button);
      if (isPlot) place.append(bar);
      else place.before(bar);
    });

  // The entries of a legend that hide and show a line, with their series. uPlot names no x where it has no
  // values.
  const legendOf = chart => {
    const lines = [...chart.root.querySelectorAll(".u-legend .u-series > th")];
    return lines.slice(lines.length - chart.series.length + 1).map((head, i) => [head, i + 1]);
  };
  const markLegend = chart =>
    legendOf(chart).forEach(([head, i]) => {
      const button = head.querySelector("button");
      if (button) button.setAttribute("aria-pressed", String(chart.series[i].show));
    });
  // uPlot's entries react to clicks, but cannot have the focus: buttons in them can, and a click on one, also
  // by Enter or Space, is a click on its entry.
  const addLegendButtons = chart => {
    for (const [head] of legendOf(chart)) {
      const button = document.createElement("button");
      button.type = "button";
      button.title = "Hide or show this line";
      button.append(...head.childNodes);
      head.append(button);
    }
    markLegend(chart);
  };

  // Draws a chart, or gives new data to the chart of the same lines, whose zoom and hidden lines stay.
  const draw = (container, x, series, rows, more) => {
    const shape = JSON.stringify([x, more, series.map(s => s.label)]);
    const old = container.chart;
    if (old && container.chartShape === shape) {
      const known = old.data[0],
        scale = old.scales.x;
      const zoomed = known.length > 1 && (scale.min > known[0] || scale.max < known[known.length - 1]);
      old.setData(rows, !zoomed);
      if (zoomed) old.redraw();
      return;
    }
    remove(container);
    const axis = () => ({
      stroke: () => css("--muted"),
      grid: { stroke: () => css("--line"), width: 1 },
      ticks: { stroke: () => css("--line") },
      values: labels,
    });
    container.chartShape = shape;
    container.chartHeight = more.height || 260;
    const options = Object.assign(sizeOf(container), {
      scales: { x: { time: false }, y: more.scale || {} },
      axes: [
        axis(),
        Object.assign(
          axis(),
          { size: 62 },
          more.scale && more.scale.distr === 3 ? { values: logLabels } : {},
        ),
      ],
      series: [{ label: x }].concat(series),
      bands: more.bands || [],
      legend: { live: series.length < 8 },
      cursor: { drag: { x: true, y: false } },
      hooks: { setSeries: [markLegend] },
    });
    container.chart = new uPlot(options, rows, container);
    addLegendButtons(container.chart);
    resized.observe(container);
    addDownloads(container);
  };
  const remove = container => {
    resized.unobserve(container);
    if (container.chart) container.chart.destroy();
    container.chart = null;
  };

  // Epochs are drawn at their last iteration.
  const epochEnds = run => run.epochs.map(e => e.last_iteration);
  const withoutNulls = (x, y) => {
    const keep = x.map((_, i) => i).filter(i => x[i] !== null && y[i] !== null && y[i] !== undefined);
    return [keep.map(i => x[i]), keep.map(i => y[i])];
  };

  // Values of the measure of some runs, null for null: in percent, unless one of them has R², as in
  // `report/score.rs`.
  const inUnit = runs => {
    const factor = runs.some(run => run.task === "regression") ? 1 : 100;
    return value => (value === null ? null : factor * value);
  };
  // The measure by which runs of a task are compared, where it is not the accuracy.
  const THIRD_LINES = {
    segmentation: "validation mean IoU",
    multi_label: "validation mean average precision",
  };

  const charts = {
    loss: (container, run) => {
      const c = run.curves,
        v = withoutNulls(
          epochEnds(run),
          run.epochs.map(e => e.val_loss),
        );
      const lines = [line("training", 0), line("validation", 1)],
        curves = [[c.iteration, c.loss], v];
      if (c.iterations_per_point < 2) {
        draw(container, "iteration", lines, joinSeries(curves), {});
        return;
      }
      // The lowest and the highest loss of each point, as a band behind its mean.
      const bound = label => line(label, 0, { width: 0, class: "range", points: { show: false } });
      draw(
        container,
        "iteration",
        lines.concat([bound("highest"), bound("lowest")]),
        joinSeries(
          curves.concat([
            [c.iteration, c.loss_max],
            [c.iteration, c.loss_min],
          ]),
        ),
        { bands: [{ series: [3, 4], fill: translucent(colour(0)) }] },
      );
    },
    accuracy: (container, run) => {
      const c = run.curves,
        scaled = inUnit([run]),
        byEpoch = value => withoutNulls(epochEnds(run), run.epochs.map(value).map(scaled));
      const lines = [line("training", 0), line("validation", 1)];
      const curves = [[c.iteration, c.accuracy.map(scaled)], byEpoch(e => e.val_accuracy)];
      if (THIRD_LINES[run.task]) {
        lines.push(line(THIRD_LINES[run.task], 2));
        curves.push(byEpoch(e => e.val_score));
      }
      draw(container, "iteration", lines, joinSeries(curves), {});
    },
    "label-measures": (container, run) =>
      drawEpochs(
        container,
        run,
        [
          ["mean AUC", "val_auc"],
          ["mean F1", "val_f1"],
          ["exact match", "val_exact_match"],
        ],
        100,
      ),
    errors: (container, run) =>
      drawEpochs(
        container,
        run,
        [
          ["mean absolute error", "val_mae"],
          ["RMSE", "val_rmse"],
        ],
        1,
      ),
    "learning-rate": (container, run) =>
      draw(
        container,
        "iteration",
        [line("learning rate", 2)],
        [run.curves.iteration, run.curves.learning_rate],
        {},
      ),
    "iteration-time": (container, run) =>
      draw(
        container,
        "iteration",
        [line("iteration", 0), line("data wait", 4)],
        [run.curves.iteration, run.curves.iteration_ms, run.curves.data_ms],
        { scale: { range: { min: { pad: 0, soft: 0, mode: 1 }, max: { pad: 0.1 } } } },
      ),
    layers: (container, run) => {
      const c = run.curves,
        sum = l => l.forward_ms.map((f, i) => f + l.backward_ms[i]);
      draw(
        container,
        "iteration",
        c.layers.map((l, i) => line(l.layer, i, { show: i < 8 })),
        [c.layer_iteration].concat(c.layers.map(sum)),
        { height: 320 },
      );
    },
    "forward-backward": (container, run) => {
      const c = run.curves;
      draw(
        container,
        "iteration",
        [line("forward", 0), line("backward and update", 1)],
        [c.layer_iteration, c.forward_ms, c.backward_ms],
        {},
      );
    },
    "class-history": (container, run) => {
      const h = run.class_history;
      if (h)
        draw(
          container,
          "epoch",
          h.curves.map((c, i) => line(c.name, i, { show: i < 8 })),
          [h.epochs].concat(h.curves.map(c => (h.is_fraction ? percent(c.values) : c.values))),
          { height: 320 },
        );
    },
    "usage-cpu": (container, run) =>
      drawUsage(container, run, [
        ["CPU", "cpu_percent", 1, 0],
        ["GPU", "gpu_percent", 1, 2],
      ]),
    "usage-memory": (container, run) =>
      drawUsage(container, run, [
        ["run", "rss_bytes", 1e-9, 0],
        ["GPU", "gpu_memory_bytes", 1e-9, 2],
      ]),
    "usage-transfers": (container, run) =>
      drawUsage(container, run, [
        ["disk, read", "disk_read_mb_per_s", 1, 0],
        ["disk, written", "disk_write_mb_per_s", 1, 1],
        ["network", "net_mb_per_s", 1, 3],
      ]),
    "usage-power": (container, run) =>
      drawUsage(container, run, [
        ["CPU", "cpu_watts", 1, 0],
        ["GPU", "gpu_watts", 1, 2],
      ]),
    "usage-clock": (container, run) => drawUsage(container, run, [["GPU", "gpu_mhz", 1, 2]]),
    "usage-throttling": (container, run) =>
      drawUsage(container, run, [
        ["temperature", "gpu_celsius", 1, 4],
        ["throttled by heat", "gpu_heat_percent", 1, 1],
        ["throttled by power", "gpu_power_percent", 1, 3],
      ]),
    "runs-loss": container => drawRuns(container, e => e.val_loss),
    "runs-accuracy": container => {
      const scaled = inUnit(data.runs);
      drawRuns(container, e => scaled(e.val_score));
    },
  };
  // Columns of epochs, `[label, key]`, by epoch. Those without a value have no line.
  const drawEpochs = (container, run, columns, factor) => {
    const lines = columns
      .map(([label, key], i) => [
        label,
        i,
        withoutNulls(
          run.epochs.map(e => e.epoch),
          run.epochs.map(e => (e[key] === undefined || e[key] === null ? null : factor * e[key])),
        ),
      ])
      .filter(([, , [x]]) => x.length);
    if (lines.length)
      draw(
        container,
        "epoch",
        lines.map(([label, i]) => line(label, i)),
        joinSeries(lines.map(([, , points]) => points)),
        {},
      );
  };
  // Unknown quantities have no line.
  const drawUsage = (container, run, lines) => {
    const u = run.usage,
      knownLines = lines.filter(([, key]) => u && u[key].some(v => v !== null));
    if (!knownLines.length) return;
    draw(
      container,
      "seconds",
      knownLines.map(([label, , , i]) => line(label, i)),
      [u.elapsed_s].concat(
        knownLines.map(([, key, scale]) => u[key].map(v => (v === null ? null : scale * v))),
      ),
      { scale: { range: { min: { pad: 0, soft: 0, mode: 1 }, max: { pad: 0.1 } } } },
    );
  };
  const drawRuns = (container, value) => {
    const runs = data.runs
      .map((r, i) => [
        r.label,
        i,
        withoutNulls(
          r.epochs.map(e => e.epoch),
          r.epochs.map(value),
        ),
      ])
      .filter(([, , [x]]) => x.length);
    if (runs.length) drawLines(container, "epoch", runs, true, { height: 300 });
  };

  // The value of a line at `x` between its points; null outside of them.
  const valueAt = ([xs, ys], x) => {
    let low = 0,
      high = xs.length - 1;
    if (high < 0 || x < xs[0] || x > xs[high]) return null;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle;
      else high = middle;
    }
    if (x === xs[low]) return ys[low];
    return ys[low] + ((ys[high] - ys[low]) * (x - xs[low])) / (xs[high] - xs[low]);
  };
  // Mean, lowest and highest of several lines at the points of all of them.
  const band = lines => {
    const xs = [...new Set(lines.flatMap(([x]) => x))].sort((a, b) => a - b);
    const rows = xs.map(x => lines.map(l => valueAt(l, x)).filter(v => v !== null));
    const of = f => rows.map(values => (values.length ? f(values) : null));
    return [
      xs,
      of(v => v.reduce((a, b) => a + b, 0) / v.length),
      of(v => Math.min(...v)),
      of(v => Math.max(...v)),
    ];
  };
  // Draws lines `[label, colour, [x, y]]`. Repetitions become one line, their mean, with a band from the
  // lowest to the highest, if `asBands`.
  const drawLines = (container, x, lines, asBands, more) => {
    const series = [],
      parts = [],
      bands = [],
      seen = new Set();
    const single = more.single || {};
    for (const [label, i, points] of lines) {
      if (seen.has(label)) continue;
      const group = asBands && data.repetitions.find(group => group.includes(label));
      const members = group ? lines.filter(([other]) => group.includes(other)) : [];
      members.forEach(([other]) => seen.add(other));
      if (members.length < 2) {
        series.push(line(label, i, single));
        parts.push(points);
        continue;
      }
      const [xs, mean, low, high] = band(members.map(([, , points]) => points));
      const bound = name =>
        line(`${name} of ${members.length} from ${label}`, i, {
          width: 0,
          class: "range",
          points: { show: false },
        });
      series.push(
        line(`mean of ${members.length} from ${label}`, i, single),
        bound("highest"),
        bound("lowest"),
      );
      parts.push([xs, mean], [xs, high], [xs, low]);
      bands.push({ series: [series.length - 1, series.length], fill: translucent(colour(i)) });
    }
    draw(container, x, series, joinSeries(parts), Object.assign({ bands }, more));
  };
  const drawCharts = root => {
    addDrawingDownloads(root);
    places(root)
      .filter(container => charts[container.dataset.chart])
      .forEach(container =>
        charts[container.dataset.chart](container, data.runs[Number(container.dataset.run)]),
      );
  };

  const sort = (table, column, down) => {
    const body = table.tBodies[0],
      heads = [...table.tHead.rows[0].cells];
    heads.forEach(other => other.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => {
      const cell = row.cells[column];
      return cell.dataset.n !== undefined
        ? Number(cell.dataset.n)
        : cell.classList.contains("n")
          ? -Infinity
          : cell.title || cell.textContent;
    };
    const order = (a, b) =>
      typeof a === "number" && typeof b === "number"
        ? a - b || 0
        : String(a).localeCompare(String(b), undefined, { numeric: true });
    const sorted = rows => rows.sort((a, b) => (down ? -1 : 1) * order(key(a.row || a), key(b.row || b)));
    if (!table.classList.contains("tree")) {
      sorted([...body.rows]).forEach(row => body.append(row));
      return;
    }
    // A tree is sorted within each block.
    const roots = [],
      open = [];
    for (const row of body.rows) {
      const level = Number(row.dataset.level),
        item = { row, within: [] };
      (level ? open[level - 1].within : roots).push(item);
      open[level] = item;
    }
    const append = items =>
      sorted(items).forEach(item => {
        body.append(item.row);
        append(item.within);
      });
    append(roots);
  };
  const sortOnClick = root =>
    root
      .querySelectorAll("table.sortable")
      .forEach(table =>
        [...table.tHead.rows[0].cells].forEach((head, column) =>
          head.firstChild.addEventListener("click", () =>
            sort(table, column, head.getAttribute("aria-sort") !== "descending"),
          ),
        ),
      );
  // Prepares new sections: sorting, the tree of layers, the network.
  const setUp = root => {
    sortOnClick(root);
    stratus.layers.setUp(root);
  };

  // The slider of the epochs of masks: shows the pictures and the values of another epoch.
  const epochsOf = slider => slider.dataset.maskEpochs.split(",");
  const showEpoch = slider => {
    const place = slider.closest(".masks"),
      epoch = epochsOf(slider)[Number(slider.value)];
    slider.closest("p").querySelector("output").value = epoch;
    place
      .querySelectorAll(".predicted use")
      .forEach(use => use.setAttribute("href", `#${slider.dataset.pictures}${epoch}`));
    place.querySelectorAll("[data-ious]").forEach(iou => {
      iou.textContent = iou.dataset.ious.split(",")[Number(slider.value)];
    });
  };
  document.addEventListener("input", event => {
    if (event.target.dataset.maskEpochs !== undefined) showEpoch(event.target);
  });
  // The epochs that readers chose in a place, by slider. One at the newest epoch follows it.
  const sliders = root => [...root.querySelectorAll("[data-mask-epochs]")];
  const chosenEpochs = root =>
    new Map(
      sliders(root)
        .filter(slider => slider.value !== slider.max)
        .map(slider => [slider.dataset.pictures, Number(epochsOf(slider)[Number(slider.value)])]),
    );
  // Shows these epochs in new sliders: the next one that is kept, if the pictures of an epoch were removed.
  const chooseEpochs = (root, chosen) => {
    for (const slider of sliders(root)) {
      const epoch = chosen.get(slider.dataset.pictures);
      if (epoch === undefined) continue;
      const kept = epochsOf(slider).findIndex(other => Number(other) >= epoch);
      slider.value = kept < 0 ? slider.max : kept;
      showEpoch(slider);
    }
  };

  drawCharts(document);
  sortOnClick(document);
  return {
    data: () => data,
    setData: renewed => {
      data = renewed;
    },
    line,
    withoutNulls,
    inUnit,
    draw,
    drawLines,
    remove,
    drawCharts,
    sort,
    sortOnClick,
    setUp,
    chosenEpochs,
    chooseEpochs,
    removeCharts: root => places(root).forEach(remove),
  };
})();
