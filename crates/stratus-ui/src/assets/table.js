"use strict";
// The table of runs. What it shows is in the address: filter, order, group, columns, page.
(() => {
  const { byId, element } = ui,
    { fixed, duration } = formats;
  const MAX_COMPARED = 50,
    MAX_KEYS = 32;
  let listing = JSON.parse(byId("data").textContent);
  const rows = new Map();
  const selected = new Set();

  const number = (value, places, unit) =>
    value === null ? "–" : fixed(value, places) + (unit ? ` ${unit}` : "");
  const sparkline = row => {
    if (row.curve.length < 2) return "";
    const low = Math.min(...row.curve),
      range = Math.max(...row.curve) - low || 1;
    const step = 76 / (row.curve.length - 1);
    const points = row.curve.map(
      (v, i) => `${(2 + i * step).toFixed(1)},${(16 - (14 * (v - low)) / range).toFixed(1)}`,
    );
    const drawing = ui.svg("svg", {
      viewBox: "0 0 80 18",
      width: 80,
      height: 18,
      class: "spark",
      role: "img",
      "aria-label": `from ${figures.score(row.curve[0], row.score_unit)} to ${figures.score(
        row.curve.at(-1),
        row.score_unit,
      )}`,
    });
    drawing.append(ui.svg("polyline", { points: points.join(" ") }));
    return drawing;
  };
  const progress = row => {
    const of = row.of_epochs === null ? "" : ` of ${row.of_epochs}`;
    const text = `${row.epochs}${of}`;
    if (row.percent === null) return text;
    const bar = element("progress", {
      max: 100,
      value: row.percent,
      "aria-label": `${fixed(row.percent, 0)} %`,
    });
    return element("span", { class: "pair-inline" }, bar, ` ${text}`);
  };
  const state = row => {
    const mark = element("span", { class: `state ${row.state}` }, row.state);
    if (row.problem)
      mark.append(element("span", { class: "problem", title: row.problem }, ` ⚠ ${row.problem}`));
    return mark;
  };
  const started = row => (row.started ? row.started.slice(0, 16).replace("T", " ") : "–");

  // Name, title, cell, key to sort by; n: a number; class: that of its cells; shown: without a choice in the
  // address.
  const columns = [
    { name: "state", title: "State", cell: state, key: r => r.state, shown: true },
    { name: "name", title: "Name", cell: r => r.name ?? "–", key: r => r.name },
    {
      name: "tags",
      title: "Tags",
      cell: r => (r.tags ?? []).join(", ") || "–",
      key: r => (r.tags ?? []).join(", "),
    },
    {
      name: "note",
      title: "Note",
      cell: r => (r.note ? element("span", { title: r.note }, r.note) : "–"),
      key: r => r.note,
    },
    { name: "commit", title: "Commit", cell: r => r.commit ?? "–", key: r => r.commit },
    { name: "experiment", title: "Experiment", cell: r => r.experiment, key: r => r.experiment, shown: true },
    { name: "network", title: "Network", cell: r => r.network, key: r => r.network, shown: true },
    { name: "data", title: "Data", cell: r => r.data, key: r => r.data },
    {
      name: "progress",
      title: "Epochs",
      cell: progress,
      key: r => r.percent ?? r.epochs,
      shown: true,
      n: true,
    },
    {
      name: "iteration",
      title: "Iteration",
      cell: r => number(r.iteration, 0),
      key: r => r.iteration,
      n: true,
    },
    {
      name: "left",
      title: "Time left",
      cell: r => (r.left_s === null ? "–" : duration(r.left_s)),
      key: r => r.left_s,
      shown: true,
      n: true,
    },
    {
      name: "best",
      title: "Best",
      key: r => r.best,
      shown: true,
      n: true,
      cell: r =>
        r.best === null
          ? "–"
          : element(
              "span",
              { class: "pair-inline", title: r.score },
              sparkline(r),
              ` ${figures.score(r.best, r.score_unit)}`,
            ),
    },
    {
      name: "loss",
      title: "Training loss",
      cell: r => number(r.train_loss, 4),
      key: r => r.train_loss,
      n: true,
    },
    {
      name: "speed",
      title: "Images/s",
      cell: r => number(r.images_per_second, 0),
      key: r => r.images_per_second,
      shown: true,
      n: true,
    },
    { name: "device", title: "Device", cell: r => r.device, key: r => r.device, shown: true },
    {
      name: "time",
      title: "Time",
      cell: r => (r.elapsed_s === null ? "–" : duration(r.elapsed_s)),
      key: r => r.elapsed_s,
      n: true,
    },
    {
      name: "price",
      title: "Price so far",
      cell: r => number(r.price, 2, r.currency),
      key: r => r.price,
      shown: true,
      n: true,
    },
    { name: "started", title: "Started, UTC", cell: started, key: r => r.started, shown: true },
    {
      name: "action",
      title: "Action",
      class: "action",
      cell: r => actions.show(r, acted),
      key: r => r.offer.kind,
      shown: actions.areOffered,
    },
  ];
  const KEY = "k:";
  const keyColumn = key => ({
    name: KEY + key,
    title: key,
    cell: r => valueOf(r, key) ?? "–",
    key: r => {
      const v = valueOf(r, key);
      return v === null || v === "" || isNaN(v) ? v : Number(v);
    },
  });
  const runColumn = {
    name: "run",
    title: "Run",
    key: r => r.position,
    cell: r => element("a", { href: `/run/${r.id}` }, r.label),
  };

  // The view, from the address.
  const query = new URLSearchParams(location.search);
  const view = {
    filter: query.get("q") || "",
    sort: query.get("sort") || "run",
    group: query.get("group") || "",
    columns: query.has("columns")
      ? query
          .get("columns")
          .split(",")
          .filter(name => name)
      : null,
    page: Math.max(Number.parseInt(query.get("page"), 10) || 1, 1),
  };
  const defaults = () => columns.filter(column => column.shown).map(column => column.name);
  const chosen = () => view.columns || defaults();
  const keysChosen = () => {
    const names = chosen()
      .concat(view.group)
      .filter(name => name.startsWith(KEY));
    return [...new Set(names.map(name => name.slice(KEY.length)))];
  };
  const keysOfView = () => keysChosen().slice(0, MAX_KEYS);
  let keys = [];
  const valueOf = (row, key) => {
    const i = keys.indexOf(key);
    return i < 0 ? null : (row.settings[i] ?? null);
  };
  const columnOf = name =>
    name === "run"
      ? runColumn
      : name.startsWith(KEY)
        ? keyColumn(name.slice(KEY.length))
        : columns.find(column => column.name === name);
  const columnsOfView = () =>
    [runColumn].concat(
      chosen()
        .map(columnOf)
        .filter(column => column),
    );
  const keepView = () =>
    ui.setAddress({
      q: view.filter,
      sort: view.sort === "run" ? "" : view.sort,
      group: view.group,
      columns: view.columns && view.columns.join() !== defaults().join() ? view.columns.join() || "," : "",
      page: view.page > 1 ? view.page : "",
    });

  const searched = row =>
    [
      row.label,
      row.state,
      row.experiment,
      row.network,
      row.data,
      row.device,
      row.name,
      row.note,
      row.commit,
      ...(row.tags ?? []),
      ...row.settings.map((value, i) => (value === null ? "" : `${keys[i]}=${value}`)),
    ]
      .join(" ")
      .toLowerCase();
  const visible = () => {
    const words = view.filter
      .toLowerCase()
      .split(/\s+/)
      .filter(word => word);
    const inOrder = [...rows.values()].sort((a, b) => a.position - b.position);
    const column = columnOf(view.sort.replace(/^-/, "")) || runColumn;
    const found = figures.sorted(
      inOrder.filter(row => !words.length || words.every(word => searched(row).includes(word))),
      [column],
      (view.sort.startsWith("-") ? "-" : "") + column.name,
    );
    const group = view.group && columnOf(view.group);
    if (!group) return [{ title: null, rows: found }];
    const groups = new Map();
    for (const row of found) {
      const value = group.key(row),
        title = value === null || value === undefined || value === "" ? "none" : String(value);
      if (!groups.has(title)) groups.set(title, []);
      groups.get(title).push(row);
    }
    const titles = [...groups.keys()].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    return titles.map(title => ({ title, rows: groups.get(title) }));
  };

  const table = byId("runs");
  const cellsOf = (row, shown) =>
    shown.map((column, i) => {
      const content = column.cell(row);
      return element(
        i ? "td" : "th",
        { class: column.n ? "n" : column.class, scope: i ? null : "row" },
        content instanceof Node ? content : String(content),
      );
    });
  const lineOf = (row, shown) => {
    const box = element("input", { type: "checkbox", "aria-label": `Select ${row.label}` });
    box.checked = selected.has(row.id);
    box.addEventListener("change", () => {
      if (box.checked) selected.add(row.id);
      else selected.delete(row.id);
      showSelection();
    });
    const line = element("tr", { "data-run": row.id }, element("td", {}, box));
    line.append(...cellsOf(row, shown));
    return line;
  };
  const showSelection = () => {
    const link = byId("compare"),
      isEnough = selected.size > 1 && selected.size <= MAX_COMPARED;
    link.textContent =
      selected.size > MAX_COMPARED
        ? `Compare: at most ${MAX_COMPARED} runs`
        : selected.size
          ? `Compare ${selected.size} runs`
          : "Compare: select runs";
    if (isEnough) link.href = `/compare?runs=${[...selected].join(",")}`;
    else link.removeAttribute("href");
    link.setAttribute("aria-disabled", String(!isEnough));
    byId("clear").hidden = !selected.size;
  };
  const drawHead = shown => {
    const down = view.sort.startsWith("-"),
      by = view.sort.replace(/^-/, "");
    const line = element("tr", {}, element("td", {}, element("span", { class: "hidden" }, "Selected")));
    for (const column of shown) {
      const button = element("button", { type: "button", "data-sort": column.name }, column.title);
      button.addEventListener("click", () => {
        // Numbers begin with the highest.
        const first = column.n ? `-${column.name}` : column.name,
          second = column.n ? column.name : `-${column.name}`;
        view.sort = view.sort === first ? second : first;
        view.page = 1;
        draw();
      });
      const sort = by === column.name ? (down ? "descending" : "ascending") : null;
      line.append(element("th", { scope: "col", "aria-sort": sort, class: column.n ? "n" : null }, button));
    }
    table.tHead.replaceChildren(line);
  };
  const drawEmpty = () => {
    const place = byId("empty");
    place.hidden = rows.size > 0;
    byId("runs").hidden = rows.size === 0;
    if (rows.size) return;
    place.replaceChildren(
      element("p", {}, `There are no runs in ${listing.folders.join(", ")} yet.`),
      element("p", {}, "Train a first network; it appears here while it trains:"),
      element("pre", {}, "stratus train digits"),
    );
  };

  let order = "";
  const draw = () => {
    const shown = columnsOfView(),
      groups = visible();
    const count = groups.reduce((sum, group) => sum + group.rows.length, 0);
    const [first, end, page] = figures.pager(byId("pager"), count, view.page, wanted => {
      view.page = wanted;
      draw();
      scrollTo(0, 0);
    });
    view.page = page;
    keepView();
    showProblems();
    const focused = document.activeElement,
      sorted = focused && focused.dataset.sort;
    const line = focused && focused.closest("tr[data-run]"),
      isBox = focused && focused.type === "checkbox";
    drawHead(shown);
    let from = first,
      left = end - first;
    const bodies = [],
      ids = [];
    for (const group of groups) {
      const part = group.rows.slice(from, from + left);
      from = Math.max(from - group.rows.length, 0);
      left -= part.length;
      if (!part.length) continue;
      const body = element("tbody");
      if (group.title !== null) {
        const known = group.rows.filter(row => row.best !== null),
          best = Math.max(...known.map(row => row.best)),
          // Scores of different measures cannot be compared.
          isComparable = known.length > 0 && known.every(row => row.score === known[0].score),
          shownBest = isComparable ? ` · best ${figures.score(best, known[0].score_unit)}` : "";
        const runs = group.rows.length === 1 ? "1 run" : `${group.rows.length} runs`;
        const text = `${group.title} · ${runs}${shownBest}`;
        body.append(
          element(
            "tr",
            { class: "group" },
            element("th", { scope: "rowgroup", colspan: shown.length + 1 }, text),
          ),
        );
      }
      body.append(...part.map(row => lineOf(row, shown)));
      ids.push(...part.map(row => row.id));
      bodies.push(body);
    }
    [...table.tBodies].forEach(body => body.remove());
    table.append(...bodies);
    order = orderOf(groups);
    const running = [...rows.values()].filter(row => row.state === "running").length;
    byId("count").textContent =
      (count === rows.size ? "" : `${count} of `) +
      `${rows.size} ${rows.size === 1 ? "run" : "runs"}, ${running} running`;
    drawEmpty();
    showSelection();
    const again = sorted
      ? table.querySelector(`button[data-sort="${CSS.escape(sorted)}"]`)
      : line && table.querySelector(`tr[data-run="${line.dataset.run}"] ${isBox ? "input" : "a"}`);
    if (again) again.focus({ preventScroll: true });
  };
  const orderOf = groups =>
    groups.map(group => `${group.title}:${group.rows.map(row => row.id).join()}`).join(";");
  // Patches the lines of changed runs; if lines move, draws all.
  const patch = ids => {
    if (orderOf(visible()) !== order) {
      draw();
      return;
    }
    const shown = columnsOfView();
    for (const id of ids) {
      const line = table.querySelector(`tr[data-run="${id}"]`);
      if (!line) continue;
      cellsOf(rows.get(id), shown).forEach((cell, i) => {
        const old = line.cells[i + 1];
        if (old.innerHTML === cell.innerHTML) return;
        const isFocused = old.contains(document.activeElement);
        old.replaceWith(cell);
        // The button of an action may be gone: the focus stays in the line.
        if (isFocused)
          (cell.querySelector("a, button") || line.querySelector("a")).focus({ preventScroll: true });
      });
    }
    const running = [...rows.values()].filter(row => row.state === "running").length;
    byId("count").textContent = byId("count").textContent.replace(/, \d+ running$/, `, ${running} running`);
  };

  // An action began, or ended.
  const acted = (id, progress) => {
    const row = rows.get(id);
    if (!row) return;
    rows.set(id, Object.assign({}, row, { action: progress }));
    byId("said").textContent = `${row.label}: ${progress.text}`;
    patch([id]);
  };

  const showProblems = () => {
    const texts = listing.problems.map(problem => `${problem.folder}: ${problem.reason}`);
    const excess = keysChosen().slice(MAX_KEYS).join(", ");
    if (excess) texts.push(`Only ${MAX_KEYS} keys can be shown; these have no values here: ${excess}`);
    byId("folders").replaceChildren(...texts.map(text => element("p", {}, text)));
  };
  const fillChoices = () => {
    const options = [
      ["", "nothing"],
      ...["state", "name", "tags", "commit", "experiment", "network", "data", "device"].map(name => [
        name,
        columnOf(name).title,
      ]),
      ...listing.keys.map(key => [KEY + key.name, key.name]),
    ];
    byId("group").replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
    if (!options.some(([value]) => value === view.group)) {
      byId("group").append(element("option", { value: view.group }, view.group.replace(KEY, "")));
    }
    byId("group").value = view.group;
    const choices = columns
      .map(column => [column.name, column.title])
      .concat(listing.keys.map(key => [KEY + key.name, key.name + (key.differs ? " (differs)" : "")]));
    byId("columns")
      .querySelector(".choice")
      .replaceChildren(
        ...choices.map(([name, text]) => {
          const box = element("input", { type: "checkbox", value: name });
          box.checked = chosen().includes(name);
          box.addEventListener("change", () => {
            const now = chosen().filter(other => other !== name);
            view.columns = box.checked ? now.concat(name) : now;
            needKeys();
          });
          return element("label", {}, box, ` ${text}`);
        }),
      );
  };

  const take = listed => {
    listing = listed;
    keys = listed.chosen;
    rows.clear();
    for (const row of listed.runs) rows.set(row.id, row);
    for (const id of selected) if (!rows.has(id)) selected.delete(id);
    fillChoices();
    draw();
  };
  const since = () => `${listing.instance}-${listing.revision}`;
  const parameters = () => (keysOfView().length ? { keys: keysOfView().join(",") } : {});
  const reload = ui.paced(async () => {
    const listed = await ui.fetchJson(`/api/runs?${new URLSearchParams(parameters())}`);
    take(listed);
    stream.again(parameters(), since());
  }, 1000);
  // Values of other keys are fetched; all else is here.
  const needKeys = () => {
    if (keysOfView().every(key => keys.includes(key))) draw();
    else {
      keepView();
      reload();
    }
  };

  byId("filter").value = view.filter;
  byId("filter").addEventListener("input", event => {
    view.filter = event.target.value;
    view.page = 1;
    draw();
  });
  byId("group").addEventListener("change", event => {
    view.group = event.target.value;
    view.page = 1;
    needKeys();
  });
  byId("clear").addEventListener("click", () => {
    selected.clear();
    draw();
  });
  document.addEventListener("keydown", event => {
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      byId("filter").focus();
    }
  });

  take(listing);
  const stream = ui.listen(keys.length ? { keys: keys.join(",") } : {}, since(), changes => {
    // New runs may have new keys, and move the others.
    const isNew = changes.runs.some(row => !rows.has(row.id));
    if (changes.is_all || isNew || changes.removed.length) {
      reload();
      return;
    }
    for (const row of changes.runs) {
      const before = rows.get(row.id).action,
        now = row.action;
      if (now && (!before || before.text !== now.text))
        byId("said").textContent = `${row.label}: ${now.text}`;
      rows.set(row.id, row);
    }
    patch(changes.runs.map(row => row.id));
  });
  needKeys();
})();
