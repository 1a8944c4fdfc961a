"use strict";
// The charts and tables of a page. A saved report draws them once; a live page draws them again with new data.
const stratus = (() => {
  let data = JSON.parse(document.getElementById("data").textContent);
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const hues = ["--forward", "--backward-data", "--update", "--backward-weights", "--bad", "--other"];
  // After the named colours, hues at the golden angle keep neighbours distinct.
  const colour = i => i < hues.length ? css(hues[i]) : `hsl(${(i * 137.5) % 360} 55% 55%)`;
  const percent = values => values.map(v => v === null ? null : 100 * v);

  // Joins series with different x into one table, since uPlot needs a common x.
  const joinSeries = parts => uPlot.join(parts.map(([x, y]) => [x, y]));

  const line = (label, i, more) => Object.assign({
    label, stroke: () => colour(i), width: 1.6, spanGaps: true, points: { size: 5 },
    value: (_, v) => v === null || v === undefined ? "–" : Number(v.toPrecision(5)).toString(),
  }, more);

  // The number of decimals that distinguishes neighbouring labels of an axis.
  const decimals = step => {
    let places = 0;
    while (places < 12 && Math.abs(step - Number(step.toFixed(places))) > 1e-6 * step) places++;
    return places;
  };
  const logLabels = (_, ticks) => ticks.map(v => v === null ? "" : v >= 1e6 || v < 1e-4 ? v.toExponential()
    : String(Number(v.toPrecision(3))));
  const labels = (_, ticks, axis, space, step) => {
    const places = decimals(step);
    const short = { minimumFractionDigits: places, maximumFractionDigits: places };
    const fine = places > 5;
    const text = v => fine && v !== 0 ? v.toExponential(2) : v.toLocaleString("en-US", fine ? {} : short);
    return ticks.map(v => v === null ? "" : text(v));
  };

  const sizeOf = container =>
    ({ width: Math.max(container.clientWidth, 200), height: container.chartHeight });
  const resized = new ResizeObserver(entries => entries.forEach(({ target }) => {
    if (target.chart && sizeOf(target).width !== target.chart.width) target.chart.setSize(sizeOf(target));
  }));
  const places = root => [...root.querySelectorAll("[data-chart]")];
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    places(document).forEach(container => container.chart && container.chart.redraw(false, true)));

  // The data of a chart as CSV. Spreadsheets would compute text that begins with one of some characters.
  const toCsv = chart => {
    const quoted = text => `"${(/^[=+@\t\r-]/.test(text) ? "'" + text : text).replaceAll('"', '""')}"`;
    const lines = chart.data[0].map((_, i) => chart.data.map(values => values[i] ?? "").join(","));
    return [chart.series.map(s => quoted(String(s.label))).join(","), ...lines, ""].join("\n");
  };
  // A chart as PNG, on the background of the page.
  const toPng = chart => new Promise(done => {
    const drawn = chart.ctx.canvas, copy = document.createElement("canvas");
    Object.assign(copy, { width: drawn.width, height: drawn.height });
    const context = copy.getContext("2d");
    context.fillStyle = css("--page");
    context.fillRect(0, 0, copy.width, copy.height);
    context.drawImage(drawn, 0, 0);
    copy.toBlob(done, "image/png");
  });
  const download = (blob, name) => {
    const link = document.createElement("a"), address = URL.createObjectURL(blob);
    Object.assign(link, { href: address, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  const addDownloads = container => {
    const figure = container.closest("figure"), caption = figure && figure.querySelector("figcaption");
    if (!caption || figure.querySelector(".downloads")) return;
    const place = document.createElement("span");
    place.className = "downloads";
    const add = (name, make) => {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: name });
      button.setAttribute("aria-label", `Save as ${name}: ${caption.textContent}`);
      button.addEventListener("click", async () => {
        const title = caption.textContent.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "").toLowerCase();
        if (container.chart) download(await make(container.chart), `${title}.${name.toLowerCase()}`);
      });
      place.append(button);
    };
    add("CSV", chart => new Blob([toCsv(chart)], { type: "text/csv" }));
    add("PNG", toPng);
    caption.after(place);
  };

  // Draws a chart, or gives new data to the chart of the same lines, whose zoom and hidden lines stay.
  const draw = (container, x, series, rows, more) => {
    const shape = JSON.stringify([x, more, series.map(s => s.label)]);
    const old = container.chart;
    if (old && container.chartShape === shape) {
      const known = old.data[0], scale = old.scales.x;
      const zoomed = known.length > 1 && (scale.min > known[0] || scale.max < known[known.length - 1]);
      old.setData(rows, !zoomed);
      if (zoomed) old.redraw();
      return;
    }
    remove(container);
    const axis = () => ({ stroke: () => css("--muted"), grid: { stroke: () => css("--line"), width: 1 },
      ticks: { stroke: () => css("--line") }, values: labels });
    container.chartShape = shape;
    container.chartHeight = more.height || 260;
    const options = Object.assign(sizeOf(container), {
      scales: { x: { time: false }, y: more.scale || {} },
      axes: [axis(), Object.assign(axis(), { size: 62 }, more.scale && more.scale.distr === 3 ? { values: logLabels } : {})],
      series: [{ label: x }].concat(series),
      bands: more.bands || [],
      legend: { live: series.length < 8 },
      cursor: { drag: { x: true, y: false } },
    });
    container.chart = new uPlot(options, rows, container);
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

  const charts = {
    loss: (container, run) => {
      const c = run.curves, v = withoutNulls(epochEnds(run), run.epochs.map(e => e.val_loss));
      const lines = [line("training", 0), line("validation", 1)], curves = [[c.iteration, c.loss], v];
      if (c.iterations_per_point < 2) {
        draw(container, "iteration", lines, joinSeries(curves), {});
        return;
      }
      // The lowest and the highest loss of each point, as a band behind its mean.
      const bound = label => line(label, 0, { width: 0, class: "range", points: { show: false } });
      draw(container, "iteration", lines.concat([bound("highest"), bound("lowest")]),
        joinSeries(curves.concat([[c.iteration, c.loss_max], [c.iteration, c.loss_min]])),
        { bands: [{ series: [3, 4], fill: colour(0) + "30" }] });
    },
    accuracy: (container, run) => {
      const c = run.curves, byEpoch = value => withoutNulls(epochEnds(run), percent(run.epochs.map(value)));
      const lines = [line("training", 0), line("validation", 1)];
      const curves = [[c.iteration, percent(c.accuracy)], byEpoch(e => e.val_accuracy)];
      if (run.task === "segmentation") {
        lines.push(line("validation mean IoU", 2));
        curves.push(byEpoch(e => e.val_score));
      }
      draw(container, "iteration", lines, joinSeries(curves), {});
    },
    "learning-rate": (container, run) =>
      draw(container, "iteration", [line("learning rate", 2)], [run.curves.iteration, run.curves.learning_rate], {}),
    "iteration-time": (container, run) => draw(container, "iteration", [line("iteration", 0), line("data wait", 4)],
      [run.curves.iteration, run.curves.iteration_ms, run.curves.data_ms], { scale: { range: { min: { pad: 0, soft: 0, mode: 1 }, max: { pad: 0.1 } } } }),
    layers: (container, run) => {
      const c = run.curves, sum = l => l.forward_ms.map((f, i) => f + l.backward_ms[i]);
      draw(container, "iteration", c.layers.map((l, i) => line(l.layer, i, { show: i < 8 })),
        [c.layer_iteration].concat(c.layers.map(sum)), { height: 320 });
    },
    "forward-backward": (container, run) => {
      const c = run.curves;
      draw(container, "iteration", [line("forward", 0), line("backward and update", 1)],
        [c.layer_iteration, c.forward_ms, c.backward_ms], {});
    },
    "class-history": (container, run) => {
      const h = run.class_history;
      if (h) draw(container, "epoch", h.curves.map((c, i) => line(c.name, i, { show: i < 8 })),
        [h.epochs].concat(h.curves.map(c => percent(c.values))), { height: 320 });
    },
    "usage-cpu": (container, run) => drawUsage(container, run, [["CPU", "cpu_percent", 1, 0], ["GPU", "gpu_percent", 1, 2]]),
    "usage-memory": (container, run) => drawUsage(container, run, [["run", "rss_bytes", 1e-9, 0], ["GPU", "gpu_memory_bytes", 1e-9, 2]]),
    "usage-transfers": (container, run) => drawUsage(container, run, [["disk, read", "disk_read_mb_per_s", 1, 0],
      ["disk, written", "disk_write_mb_per_s", 1, 1], ["network", "net_mb_per_s", 1, 3]]),
    "usage-power": (container, run) => drawUsage(container, run, [["CPU", "cpu_watts", 1, 0], ["GPU", "gpu_watts", 1, 2]]),
    "runs-loss": container => drawRuns(container, e => e.val_loss),
    "runs-accuracy": container => drawRuns(container, e => e.val_score === null ? null : 100 * e.val_score),
  };
  // Unknown quantities have no line.
  const drawUsage = (container, run, lines) => {
    const u = run.usage, knownLines = lines.filter(([, key]) => u && u[key].some(v => v !== null));
    if (!knownLines.length) return;
    draw(container, "seconds", knownLines.map(([label, , , i]) => line(label, i)),
      [u.elapsed_s].concat(knownLines.map(([, key, scale]) => u[key].map(v => v === null ? null : scale * v))),
      { scale: { range: { min: { pad: 0, soft: 0, mode: 1 }, max: { pad: 0.1 } } } });
  };
  const drawRuns = (container, value) => {
    const runs = data.runs.filter(r => r.epochs.some(e => value(e) !== null));
    if (!runs.length) return;
    draw(container, "epoch", runs.map((r, i) => line(r.label, i)),
      joinSeries(runs.map(r => withoutNulls(r.epochs.map(e => e.epoch), r.epochs.map(value)))), { height: 300 });
  };
  const drawCharts = root => places(root).filter(container => charts[container.dataset.chart])
    .forEach(container => charts[container.dataset.chart](container, data.runs[Number(container.dataset.run)]));

  const sort = (table, column, down) => {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach(other => other.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => {
      const cell = row.cells[column];
      return cell.dataset.n !== undefined ? Number(cell.dataset.n) : cell.classList.contains("n") ? -Infinity : cell.textContent;
    };
    const order = (a, b) => typeof a === "number" && typeof b === "number"
      ? a - b || 0 : String(a).localeCompare(String(b), undefined, { numeric: true });
    [...body.rows].sort((a, b) => (down ? -1 : 1) * order(key(a), key(b))).forEach(row => body.append(row));
  };
  const sortOnClick = root => root.querySelectorAll("table.sortable").forEach(table =>
    [...table.tHead.rows[0].cells].forEach((head, column) => head.firstChild.addEventListener("click", () =>
      sort(table, column, head.getAttribute("aria-sort") !== "descending"))));

  // The slider of the epochs of masks: shows the pictures and the values of another epoch.
  document.addEventListener("input", event => {
    const slider = event.target, epochs = slider.dataset.maskEpochs;
    if (epochs === undefined) return;
    const place = slider.closest(".masks"), epoch = epochs.split(",")[Number(slider.value)];
    slider.closest("p").querySelector("output").value = epoch;
    place.querySelectorAll(".predicted use").forEach(use => use.setAttribute("href", `#${slider.dataset.pictures}${epoch}`));
    place.querySelectorAll("[data-ious]").forEach(iou => { iou.textContent = iou.dataset.ious.split(",")[Number(slider.value)]; });
  });

  drawCharts(document);
  sortOnClick(document);
  return {
    data: () => data,
    setData: renewed => { data = renewed; },
    line, joinSeries, withoutNulls, draw, remove, drawCharts, sort, sortOnClick,
    removeCharts: root => places(root).forEach(remove),
  };
})();
