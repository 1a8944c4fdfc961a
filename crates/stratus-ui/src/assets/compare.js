"use strict";
// The comparison: one curve of all runs in one chart, and the sections of the comparison.
(() => {
  const compared = stratus.data().compared;
  const query = new URLSearchParams(location.search);
  const renew = ui.renewer(ui.byId("sections"));
  const live = new Map(compared.map(({ id }) => [id, ui.series(id)]));
  // The measures of several tasks are in one unit.
  const inUnit = () => stratus.inUnit(stratus.data().runs);
  const hasR2 = stratus.data().runs.some(run => run.task === "regression"),
    onlyR2 = stratus.data().runs.every(run => run.task === "regression");
  const title = (name, r2) => (onlyR2 ? r2 : hasR2 ? name : `${name}, %`);

  // Name, title with unit, and the values: over iterations, or over epochs.
  const metrics = [
    ["loss", "Training loss", { points: c => c.loss }],
    ["accuracy", title("Training accuracy", "Training R²"), { points: c => c.accuracy.map(inUnit()) }],
    ["val_loss", "Validation loss", { epochs: e => e.val_loss }],
    ["val_score", title("Validation score", "Validation R²"), { epochs: e => inUnit()(e.val_score) }],
    ["learning_rate", "Learning rate", { points: c => c.learning_rate }],
    ["iteration_ms", "Time per iteration, ms", { points: c => c.iteration_ms }],
    ["data_ms", "Waiting for data per iteration, ms", { points: c => c.data_ms }],
  ];
  const axes = [
    ["iteration", "iteration"],
    ["epoch", "epoch"],
    ["time", "seconds"],
  ];
  const metric = ui.byId("metric"),
    axis = ui.byId("axis");
  const smoothing = ui.byId("smoothing"),
    logarithmic = ui.byId("logarithmic"),
    asBands = ui.byId("bands");
  figures.fill(
    metric,
    metrics.map(([name, title]) => [name, title]),
    query.get("metric"),
  );
  figures.fill(axis, axes, query.get("axis"));
  smoothing.value = query.get("smoothing") || "0";
  logarithmic.checked = query.get("log") === "1";
  asBands.checked = query.get("bands") !== "0";
  const showBands = () => {
    asBands.closest("label").hidden = !stratus.data().repetitions.length;
  };

  // The exponential moving average, corrected for its start at zero.
  const smooth = (values, factor) => {
    let sum = 0,
      weight = 0;
    return values.map(value => {
      if (value === null) return null;
      sum = factor * sum + (1 - factor) * value;
      weight = factor * weight + (1 - factor);
      return sum / weight;
    });
  };
  const xOfPoints = (curves, run) => {
    if (axis.value === "iteration") return curves.iteration;
    if (axis.value === "time") return curves.elapsed_s;
    const first = run.epochs.find(e => e.last_iteration);
    return curves.iteration.map(i => (first ? (i * first.epoch) / first.last_iteration : null));
  };
  const xOfEpochs = run =>
    run.epochs.map(e =>
      axis.value === "iteration" ? e.last_iteration : axis.value === "time" ? e.elapsed_s : e.epoch,
    );

  const lineOf = ({ id, label }, values) => {
    const run = stratus.data().runs.find(run => run.label === label),
      curves = live.get(id).curves;
    if (!run || (values.points && !curves)) return [[], []];
    const x = values.points ? xOfPoints(curves, run) : xOfEpochs(run);
    const y = values.points ? values.points(curves) : run.epochs.map(values.epochs);
    const smoothed = smooth(y, Math.min(Number(smoothing.value) || 0, 0.99));
    const allowed = smoothed.map(v => (logarithmic.checked && v <= 0 ? null : v));
    return stratus.withoutNulls(x, allowed);
  };
  const drawCurve = () => {
    const [, title, values] = metrics.find(([name]) => name === metric.value);
    // Rows of iterations have the time of iterations only; epochs have that of the whole run.
    const x =
      axis.value !== "time"
        ? axis.value
        : values.points
          ? "seconds of iterations"
          : "seconds since the start";
    const lines = compared
      .map((run, i) => [run.label, i, lineOf(run, values)])
      .filter(([, , [known]]) => known.length > 0);
    const container = ui.byId("curve");
    ui.byId("curve-title").textContent = `${title} by ${x}`;
    const missing = compared.length - lines.length;
    const notes = missing ? [`${missing} of the runs have no such values yet.`] : [];
    if (asBands.checked && stratus.data().repetitions.length) {
      notes.push(
        "Repetitions are drawn as their mean, with a band from the lowest to the highest of the runs " +
          "that have reached a point.",
      );
    }
    ui.byId("curve-note").textContent = notes.join(" ");
    showBands();
    if (!lines.length) {
      stratus.remove(container);
      return;
    }
    stratus.drawLines(container, x, lines, asBands.checked, {
      height: 380,
      scale: logarithmic.checked ? { distr: 3 } : {},
      single: { points: { show: values.epochs ? undefined : false } },
    });
  };

  const keep = () =>
    ui.setAddress({
      metric: metric.value === metrics[0][0] ? "" : metric.value,
      axis: axis.value === axes[0][0] ? "" : axis.value,
      smoothing: Number(smoothing.value) ? smoothing.value : "",
      log: logarithmic.checked ? "1" : "",
      bands: asBands.checked ? "" : "0",
    });
  for (const control of [metric, axis, smoothing, logarithmic, asBands]) {
    control.addEventListener("input", () => {
      keep();
      drawCurve();
    });
  }

  const changed = new Set(compared.map(({ id }) => id));
  const append = ui.paced(async () => {
    const ids = [...changed];
    changed.clear();
    await Promise.all(
      ids.map(id =>
        live
          .get(id)
          .fetch()
          .catch(error => {
            if (!(error instanceof TypeError) && !error.status) throw error;
          }),
      ),
    );
    drawCurve();
  }, 500);
  const renewSections = ui.paced(async () => {
    const ids = compared.map(({ id }) => id).join(",");
    const renewed = await ui.fetchJson(`/api/compare?runs=${ids}`);
    stratus.setData(Object.assign(renewed.data, { compared }));
    renew(renewed.html);
    stratus.drawCharts(ui.byId("sections"));
    drawCurve();
  }, 5000);

  // Reading the times of layers takes ten times as long as the rest: only when they are asked for.
  const layerTimes = ui.byId("layer-times");
  layerTimes.hidden = compared.length < 2;
  layerTimes.addEventListener("toggle", async () => {
    if (!layerTimes.open) return;
    const place = layerTimes.querySelector("div");
    place.textContent = "Reading…";
    try {
      const ids = compared.map(({ id }) => id).join(",");
      const { html } = await ui.fetchJson(`/api/compare/layers?runs=${ids}`);
      place.replaceChildren(document.createRange().createContextualFragment(html));
      stratus.sortOnClick(place);
    } catch (error) {
      place.textContent = `The times of layers cannot be read: ${error.message}`;
    }
  });

  append();
  if (!compared.length) return;
  const contents = new Map();
  ui.listen({ runs: compared.map(({ id }) => id).join(",") }, null, rows => {
    for (const row of rows.runs) {
      changed.add(row.id);
      if (contents.has(row.id) && contents.get(row.id) < row.content) renewSections();
      contents.set(row.id, row.content);
    }
    if (rows.runs.length) append();
    if (rows.removed.length) renewSections();
  });
})();
