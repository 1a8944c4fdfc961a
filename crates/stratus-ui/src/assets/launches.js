"use strict";
// The list of launches. Its order is in the address.
(() => {
  const { byId, element } = ui,
    { duration } = formats;
  let listing = JSON.parse(byId("data").textContent);
  let sort = new URLSearchParams(location.search).get("sort") || "-launched";
  const time = seconds => formats.time(seconds, true);

  const states = launch =>
    Object.entries(launch.statuses).flatMap(([status, count], i) => [
      i ? ", " : "",
      element("span", { class: `state ${status}` }, `${count} ${status}`),
    ]);
  const columns = [
    {
      name: "launch",
      title: "Launch",
      key: l => l.name,
      cell: l => element("a", { href: `/launches/${l.id}` }, l.name),
    },
    { name: "target", title: "Target", key: l => l.target, cell: l => l.target || "–" },
    { name: "launched", title: "Launched, UTC", key: l => l.launched, cell: l => time(l.launched) },
    {
      name: "state",
      title: "Repetitions",
      key: l => l.statuses.completed || 0,
      cell: l => (l.problem ? element("span", { class: "problem" }, `⚠ ${l.problem}`) : states(l)),
    },
    {
      name: "asked",
      title: "Last asked, UTC",
      key: l => l.asked,
      cell: l =>
        l.unreachable
          ? [time(l.asked), element("span", { class: "problem" }, " ⚠ no answer")]
          : time(l.asked),
    },
    {
      name: "time",
      title: "Training time",
      n: true,
      key: l => l.elapsed_s,
      cell: l => (l.elapsed_s ? duration(l.elapsed_s) : "–"),
    },
    { name: "retries", title: "Restarts", n: true, key: l => l.retries, cell: l => String(l.retries) },
    {
      name: "spent",
      title: "Spent, of the budget",
      n: true,
      key: l => l.spent,
      cell: l => figures.money(l.spent, l.budget),
    },
    {
      name: "lease",
      title: "Lease ends, UTC",
      key: l => l.lease_ends,
      cell: l => (l.released ? `released ${time(l.released)}` : time(l.lease_ends)),
    },
  ];

  const show = () => {
    const { launches, problems, folders } = listing;
    byId("problems").replaceChildren(...problems.map(p => element("p", {}, `${p.folder}: ${p.reason}`)));
    const count = launches.length === 1 ? "1 launch" : `${launches.length} launches`;
    byId("count").textContent =
      `${count}, as of the last answers of their targets: ` +
      "`stratus launch list` and `stratus launch fetch` ask them again";
    byId("list").hidden = !launches.length;
    byId("empty").hidden = Boolean(launches.length);
    byId("empty").replaceChildren(
      element("p", {}, `No launches in ${folders.join(", ")}.`),
      element(
        "p",
        {},
        "A launch trains on another machine, and its runs are fetched as they grow. " +
          "Start one from the folder that has `runs`:",
      ),
      element("pre", {}, "stratus launch TARGET EXPERIMENT\nstratus launch fetch --follow"),
    );
    figures.replace(
      byId("list"),
      figures.table({
        caption: "Launches from this machine",
        columns,
        sort,
        rows: figures.sorted(launches, columns, sort),
        onSort: chosen => {
          sort = chosen;
          ui.setAddress({ sort: sort === "-launched" ? "" : sort });
          show();
        },
      }),
    );
  };
  show();
  figures.follow(async () => {
    listing = await ui.fetchJson("/api/launches");
    show();
  });
})();
