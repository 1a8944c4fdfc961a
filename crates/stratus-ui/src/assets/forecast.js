"use strict";
// The page of forecasts. The request is in the address, and so is the order of the table.
(() => {
  const { byId, element, svg } = ui,
    { bytes, duration, fixed } = formats;
  const choices = JSON.parse(byId("data").textContent);
  const query = new URLSearchParams(location.search);
  const RUN = "run:",
    MAX_DRAWN = 20,
    OBJECTIVES = [
      ["value", "best value"],
      ["fastest", "fastest"],
      ["cheapest", "cheapest"],
      ["deadline", "cheapest before a deadline"],
      ["budget", "fastest within a budget"],
    ];
  let sort = query.get("sort") || "rank",
    answer = null,
    asked = 0;

  const dash = (value, text) => (value === null || value === undefined ? "–" : text(value));
  const money = row => dash(row.price, price => `${fixed(price, 2)} ${row.currency}`);

  // The form, from the address and into it.
  figures.fill(
    byId("experiment"),
    [
      ...choices.experiments.map(name => [name, name]),
      ...choices.runs.map(([id, label]) => [RUN + id, `run ${label}`]),
    ],
    query.has("run") ? RUN + query.get("run") : query.get("experiment") || "digits",
  );
  figures.fill(
    byId("precision"),
    [["", "as configured"], ...choices.precisions.map(name => [name, name])],
    query.get("precision") || "",
  );
  for (const name of ["batch", "images", "epochs"]) byId(name).value = query.get(name) || "";
  const [kind, limit] = (query.get("objective") || "value").split("=");
  figures.fill(byId("objective"), OBJECTIVES, kind);
  byId("limit").value = limit || "";
  const showLimit = () => {
    const kind = byId("objective").value,
      has = kind === "deadline" || kind === "budget";
    byId("limit-part").hidden = !has;
    byId("limit-name").textContent = kind === "deadline" ? "Deadline" : "Budget";
    byId("limit").placeholder = kind === "deadline" ? "such as 6h" : "such as 20";
  };
  const request = () => {
    const experiment = byId("experiment").value,
      kind = byId("objective").value;
    const limit = byId("limit").value.trim(),
      has = !byId("limit-part").hidden;
    return {
      experiment: experiment.startsWith(RUN) ? "" : experiment,
      run: experiment.startsWith(RUN) ? experiment.slice(RUN.length) : "",
      batch: byId("batch").value.trim(),
      images: byId("images").value.trim(),
      epochs: byId("epochs").value.trim(),
      precision: byId("precision").value,
      objective: has ? `${kind}=${limit}` : kind === "value" ? "" : kind,
    };
  };

  const rank = row => answer.order.indexOf(answer.forecast.machines.indexOf(row));
  const columns = () => [
    { name: "machine", title: "Machine", key: r => r.name, cell: r => `${isBest(r) ? "★ " : ""}${r.name}` },
    { name: "processor", title: "Processor", key: r => r.processor, cell: r => r.processor },
    { name: "rank", title: "Rank", n: true, key: r => rank(r) + 1, cell: r => String(rank(r) + 1) },
    { name: "batch", title: "Batch", n: true, key: r => r.batch, cell: r => String(r.batch) },
    { name: "precision", title: "Precision", key: r => r.precision, cell: r => r.precision },
    {
      name: "step",
      title: "Step, ms",
      n: true,
      key: r => r.step_s,
      cell: r =>
        `${figures.short(1e3 * r.step_s)} (${figures.short(1e3 * r.low_s)}–${figures.short(1e3 * r.high_s)})`,
    },
    {
      name: "speed",
      title: "Images/s",
      n: true,
      key: r => r.images_per_second,
      cell: r => fixed(r.images_per_second, 0),
    },
    { name: "epoch", title: "Epoch", n: true, key: r => r.epoch_s, cell: r => dash(r.epoch_s, duration) },
    { name: "total", title: "Total", n: true, key: r => r.total_s, cell: r => dash(r.total_s, duration) },
    {
      name: "high",
      title: "Total, up to",
      n: true,
      key: r => r.total_high_s,
      cell: r => dash(r.total_high_s, duration),
    },
    { name: "price", title: "Price", n: true, key: r => r.price, cell: money },
    {
      name: "price_high",
      title: "Price, up to",
      n: true,
      key: r => r.price_high,
      cell: r => dash(r.price_high, v => `${fixed(v, 2)} ${r.currency}`),
    },
    {
      name: "date",
      title: "Price as of",
      key: r => r.price_date,
      cell: r => (r.price_date ? r.price_date + (isOld(r) ? "*" : "") : "–"),
    },
    {
      name: "device",
      title: "Device memory",
      n: true,
      key: r => r.device_bytes,
      cell: r => bytes(r.device_bytes),
    },
    {
      name: "free",
      title: "Free memory",
      n: true,
      key: r => r.spare_bytes,
      cell: r => dash(r.spare_bytes, bytes),
    },
    {
      name: "largest",
      title: "Largest batch",
      n: true,
      key: r => r.largest_batch,
      cell: r => dash(r.largest_batch, String),
    },
    { name: "limit", title: "Bound by", key: r => r.limit, cell: r => String(r.limit).replaceAll("_", " ") },
    { name: "source", title: "Source", key: r => r.source, cell: r => String(r.source).replaceAll("_", " ") },
  ];
  const isOld = row => answer.old_prices[answer.forecast.machines.indexOf(row)];
  const isBest = row => answer.best !== null && answer.forecast.machines[answer.best] === row;

  // Horizontal bars from the lower to the upper end of the interval, on a logarithmic axis.
  const drawIntervals = rows => {
    const drawn = rows.filter(r => r.total_s !== null).slice(0, MAX_DRAWN),
      hasTotal = drawn.length > 0;
    const values = hasTotal
      ? drawn.map(r => [r.name, r.batch, r.total_low_s / 3600, r.total_s / 3600, r.total_high_s / 3600, r])
      : rows
          .slice(0, MAX_DRAWN)
          .map(r => [r.name, r.batch, 1e3 * r.low_s, 1e3 * r.step_s, 1e3 * r.high_s, r]);
    const title = hasTotal
      ? "Total time, hours, with intervals of 80 %"
      : "Time of a step, ms, with intervals of 80 %";
    byId("intervals-title").textContent = title;
    byId("intervals-note").textContent =
      rows.length > values.length
        ? `The first ${values.length} of ${rows.length} rows, in the order of the table. ` +
          "The axis is logarithmic."
        : "The axis is logarithmic.";
    const batches = new Set(values.map(v => v[1])).size > 1;
    const names = values.map(
      ([name, batch, , , , row]) => `${isBest(row) ? "★ " : ""}${name}${batches ? ` ×${batch}` : ""}`,
    );
    const longest = Math.max(0, ...names.map(name => name.length));
    const line = 22,
      left = Math.min(24 + 7.2 * longest, 360),
      right = 90,
      width = left + 640,
      height = line * values.length + 34;
    const low = Math.log10(Math.min(...values.map(v => v[2]))),
      high = Math.log10(Math.max(...values.map(v => v[4])));
    const x = v => left + (high > low ? (Math.log10(v) - low) / (high - low) : 0.5) * (width - left - right);
    const drawing = svg("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      class: "intervals",
      role: "img",
      "aria-label": `${title}, of ${values.length} machines. The table below has the values.`,
    });
    const text = (content, attributes) => {
      const made = svg("text", attributes);
      made.textContent = content;
      drawing.append(made);
    };
    for (const part of values.length ? [0, 0.25, 0.5, 0.75, 1] : []) {
      const at = 10 ** (low + part * (high - low));
      drawing.append(svg("line", { x1: x(at), x2: x(at), y1: 4, y2: height - 24, class: "grid" }));
      text(figures.short(at), { x: x(at), y: height - 8, class: "tick", "text-anchor": "middle" });
      if (high === low) break;
    }
    values.forEach(([name, batch, from, at, to, row], i) => {
      const y = 14 + line * i,
        best = isBest(row);
      text(names[i], { x: left - 12, y: y + 4, "text-anchor": "end", class: best ? "strong" : "" });
      const bar = svg("rect", {
        x: x(from),
        y: y - 5,
        width: Math.max(x(to) - x(from), 1),
        height: 10,
        class: best ? "update" : "forward",
        "fill-opacity": 0.35,
      });
      const said = svg("title", {});
      const [low, middle, high] = [from, at, to].map(figures.short);
      said.textContent = `${name}, batch ${batch}: ${middle} (${low} to ${high})`;
      bar.append(said);
      drawing.append(bar, svg("circle", { cx: x(at), cy: y, r: 4, class: best ? "update" : "forward" }));
      text(hasTotal ? money(row) : "", { x: x(to) + 6, y: y + 4, class: "tick" });
    });
    byId("intervals").replaceChildren(drawing);
    figures.addCsv(byId("intervals").closest("figure"), () => [
      ["machine", "batch", "low", "expected", "high"],
      ...values.map(v => v.slice(0, 5)),
    ]);
  };
  const drawMachines = () => {
    const usable = answer.forecast.machines.filter((_, i) => !answer.reasons[i]),
      all = columns();
    const rows = figures.sorted(usable, all, sort);
    drawIntervals(rows);
    figures.replace(
      byId("machines"),
      figures.table({
        caption: "Machines of the catalogue that can run it",
        columns: all,
        rows,
        sort,
        onSort: chosen => {
          sort = chosen;
          ui.setAddress({ sort: sort === "rank" ? "" : sort });
          drawMachines();
        },
        empty: "No machine of the catalogue can run it.",
      }),
    );
    figures.addCsv(byId("machines").querySelector("table"), () => [
      all.map(c => c.title),
      ...rows.map(r => all.map(c => c.key(r) ?? "")),
    ]);
  };

  const say = text => {
    byId("notice").textContent = text;
    byId("notice").hidden = !text;
  };
  const show = () => {
    const { forecast } = answer;
    const images = forecast.images ?? "an unknown number of";
    byId("state").textContent =
      `${forecast.network}, ${forecast.epochs} epochs of ${images} images` +
      (forecast.images === null ? ": set the number of images for total times and prices" : "");
    byId("choice").replaceChildren(
      ...answer.choice
        .trimEnd()
        .split("\n")
        .map((line, i) => element("p", { class: i ? "note" : "headline" }, line)),
    );
    byId("command").textContent = answer.command;
    const best = answer.best === null ? null : forecast.machines[answer.best],
      bill = best ? best.bill : [];
    byId("bill").replaceChildren(
      ...(bill.length
        ? [
            figures.table({
              caption: `Bill of ${best.name}`,
              sort: "",
              rows: bill,
              columns: [
                { title: "Part", cell: part => String(part.part).replaceAll("_", " ") },
                {
                  title: "Count",
                  n: true,
                  cell: part => dash(part.count, v => fixed(v, Number.isInteger(v) ? 0 : 1)),
                },
                { title: "Time", n: true, cell: part => dash(part.hours, v => duration(3600 * v)) },
                {
                  title: `Price, ${best.currency || "unknown"}`,
                  n: true,
                  cell: part => dash(part.price, v => fixed(v, 2)),
                },
              ],
            }),
          ]
        : []),
    );
    const uncounted = bill
      .filter(part => part.hours === null)
      .map(part => String(part.part).replaceAll("_", " "));
    if (bill.length) {
      byId("bill").append(
        element(
          "p",
          { class: "note" },
          `Not counted: ${
            [...uncounted, ...(best.currency ? ["the start of the machine", "storage"] : [])].join(", ") ||
            "nothing"
          }.`,
        ),
      );
    }
    drawMachines();
    const left = [
      ...forecast.machines
        .map((row, i) => [row.name, row.batch, answer.reasons[i]])
        .filter(([, , reason]) => reason),
      ...answer.left_out.map(([name, reason]) => [name, null, reason]),
    ];
    byId("left-out-part").hidden = !left.length;
    byId("left-out").replaceChildren(
      figures.table({
        caption: "Machines that cannot run it",
        sort: "",
        rows: left,
        columns: [
          { title: "Machine", cell: ([name]) => name },
          { title: "Batch", n: true, cell: ([, batch]) => dash(batch, String) },
          { title: "Reason", cell: ([, , reason]) => reason },
        ],
      }),
    );
    const warned = new Map();
    for (const row of forecast.machines) {
      for (const warning of row.warnings)
        warned.set(warning, (warned.get(warning) || new Set()).add(row.name));
    }
    const notes = [
      ...answer.notes,
      ...[...warned].map(
        ([warning, names]) =>
          `${[...names].slice(0, 6).join(", ")}${
            names.size > 6 ? ` and ${names.size - 6} more` : ""
          }: ${warning}`,
      ),
      ...(answer.old_prices.some(old => old)
        ? ["* These prices are older than 90 days: check before you pay."]
        : []),
    ];
    byId("notes-part").hidden = !notes.length;
    byId("notes").replaceChildren(...notes.map(note => element("li", {}, note)));
    byId("result").hidden = false;
  };
  const ask = async () => {
    const wanted = request(),
      turn = ++asked;
    ui.setAddress(Object.assign({ sort: sort === "rank" ? "" : sort }, wanted));
    say("");
    byId("state").textContent = "Computing …";
    const parameters = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value !== ""));
    try {
      const response = await fetch(`/api/forecast?${parameters}`, { cache: "no-store" });
      const kind = response.headers.get("content-type") || "";
      const made = kind.startsWith("application/json") ? await response.json() : {};
      if (turn !== asked) return;
      if (!response.ok)
        throw new Error(
          made.error ||
            (response.status === 503
              ? "Other forecasts are being computed: try again soon."
              : "This experiment or run was not found."),
        );
      answer = made;
      show();
    } catch (error) {
      if (turn !== asked) return;
      byId("state").textContent = "";
      byId("result").hidden = true;
      say(
        error instanceof TypeError ? "The server does not answer: is `stratus ui` running?" : error.message,
      );
    }
  };
  showLimit();
  byId("objective").addEventListener("change", showLimit);
  byId("request").addEventListener("submit", event => {
    event.preventDefault();
    ask();
  });
  if (!choices.is_available) {
    say("This server computes no forecasts.");
    return;
  }
  if (choices.more_runs)
    byId("state").textContent = `${choices.more_runs} more runs can be forecast from a terminal.`;
  ask();
})();
