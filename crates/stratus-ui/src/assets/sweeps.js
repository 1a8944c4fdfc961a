"use strict";
// The list of sweeps. Its order is in the address.
(() => {
  const { byId, element } = ui;
  let listing = JSON.parse(byId("data").textContent);
  let sort = new URLSearchParams(location.search).get("sort") || "";

  const states = sweep =>
    Object.entries(sweep.statuses).map(([status, count]) =>
      element("span", { class: `state ${status}` }, `${count} ${status.replaceAll("_", " ")}`),
    );
  const spaced = parts => parts.flatMap((part, i) => (i ? [", ", part] : [part]));
  const done = sweep =>
    Object.entries(sweep.statuses).reduce(
      (sum, [status, count]) =>
        sum + (["completed", "failed", "does_not_fit", "stopped_early"].includes(status) ? count : 0),
      0,
    );
  const columns = [
    {
      name: "sweep",
      title: "Sweep",
      key: s => s.label,
      cell: s => element("a", { href: `/sweeps/${s.id}` }, s.label),
    },
    { name: "keys", title: "Keys", key: s => s.keys.length, cell: s => s.keys.join(", ") || "–" },
    { name: "method", title: "Method", key: s => s.method, cell: s => s.method || "–" },
    {
      name: "cells",
      title: "Cells",
      n: true,
      key: s => s.cells[1],
      cell: s =>
        s.problem ? "–" : s.cells[0] === s.cells[1] ? String(s.cells[0]) : `${s.cells[0]} of ${s.cells[1]}`,
    },
    {
      name: "runs",
      title: "Runs",
      key: done,
      cell: s => (s.problem ? element("span", { class: "problem" }, `⚠ ${s.problem}`) : spaced(states(s))),
    },
    {
      name: "best",
      title: "Best cell",
      key: s => s.best && s.best.value,
      cell: s => (s.best ? `${s.best.name}: ${figures.measured(s.best)}` : "–"),
    },
  ];

  const show = () => {
    const { sweeps, problems, folders } = listing;
    byId("problems").replaceChildren(...problems.map(p => element("p", {}, `${p.folder}: ${p.reason}`)));
    byId("count").textContent = sweeps.length === 1 ? "1 sweep" : `${sweeps.length} sweeps`;
    byId("list").hidden = !sweeps.length;
    byId("empty").hidden = Boolean(sweeps.length);
    byId("empty").replaceChildren(
      element("p", {}, `No sweeps in ${folders.join(", ")}.`),
      element(
        "p",
        {},
        "A sweep trains an experiment for every combination of some keys. Start one, and serve its folder:",
      ),
      element("pre", {}, "stratus sweep digits-batch-filters\nstratus ui runs sweeps"),
    );
    figures.replace(
      byId("list"),
      figures.table({
        caption: "Sweeps in the folders",
        columns,
        sort,
        rows: figures.sorted(sweeps, columns, sort),
        onSort: chosen => {
          sort = chosen;
          ui.setAddress({ sort });
          show();
        },
      }),
    );
  };
  show();
  figures.follow(async () => {
    listing = await ui.fetchJson("/api/sweeps");
    show();
  });
})();
