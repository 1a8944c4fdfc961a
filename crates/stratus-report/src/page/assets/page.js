"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
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
  const labels = (_, ticks, axis, space, step) => {
    const places = decimals(step);
    const short = { minimumFractionDigits: places, maximumFractionDigits: places };
    const fine = places > 5;
    const text = v => fine && v !== 0 ? v.toExponential(2) : v.toLocaleString("en-US", fine ? {} : short);
    return ticks.map(v => v === null ? "" : text(v));
  };

  const draw = (container, x, series, rows, more) => {
    const axis = () => ({ stroke: () => css("--muted"), grid: { stroke: () => css("--line"), width: 1 },
      ticks: { stroke: () => css("--line") }, values: labels });
    const size = () => ({ width: Math.max(container.clientWidth, 200), height: more.height || 260 });
    const options = Object.assign(size(), {
      scales: { x: { time: false }, y: more.scale || {} },
      axes: [axis(), Object.assign(axis(), { size: 62 })],
      series: [{ label: x }].concat(series),
      legend: { live: series.length < 8 },
      cursor: { drag: { x: true, y: false } },
    });
    const chart = container.chart = new uPlot(options, rows, container);
    new ResizeObserver(() => { const s = size(); if (s.width !== chart.width) chart.setSize(s); }).observe(container);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw(false, true));
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
      draw(container, "iteration", [line("training", 0), line("validation", 1)], joinSeries([[c.iteration, c.loss], v]), {});
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
  for (const container of document.querySelectorAll("[data-chart]")) {
    charts[container.dataset.chart](container, data.runs[Number(container.dataset.run)]);
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => {
        const cell = row.cells[column];
        return cell.dataset.n !== undefined ? Number(cell.dataset.n) : cell.classList.contains("n") ? -Infinity : cell.textContent;
      };
      const order = (a, b) => typeof a === "number" && typeof b === "number"
        ? a - b || 0 : String(a).localeCompare(String(b), undefined, { numeric: true });
      [...body.rows].sort((a, b) => (down ? -1 : 1) * order(key(a), key(b))).forEach(row => body.append(row));
    }));
  }
})();
