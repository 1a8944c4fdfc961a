"use strict";
// The page of a launch, from the files that `stratus launch` keeps on this machine.
(() => {
  // Repetitions of the queue that are named.
  const MAX_WAITING = 50;
  const { byId, element } = ui,
    { duration } = formats;
  const id = location.pathname.split("/").pop();
  const query = new URLSearchParams(location.search);
  let sort = query.get("sort") || "repetition",
    page = Math.max(Number.parseInt(query.get("page"), 10) || 1, 1);
  let launch = null,
    damage = "";
  const time = seconds => (seconds ? `${formats.time(seconds)} UTC` : "–");
  const ago = seconds => duration(Math.max(Date.now() / 1000 - seconds, 0)) + " ago";
  const columns = () => [
    { name: "repetition", title: "Repetition", key: r => r.repetition, cell: r => String(r.repetition) },
    {
      name: "status",
      title: "Status",
      key: r => r.status,
      cell: r =>
        element("span", { class: `state ${r.status}` }, r.status + (r.exit ? `, exit code ${r.exit}` : "")),
    },
    { name: "host", title: "Host", key: r => r.host, cell: r => r.host || "–" },
    ...(launch.rows.some(r => r.queue)
      ? [{ name: "queue", title: "State in the queue", key: r => r.queue, cell: r => r.queue || "–" }]
      : []),
    ...(launch.rows.some(r => r.goal)
      ? [{ name: "goal", title: "Until epoch", key: r => r.goal, cell: r => r.goal || "–" }]
      : []),
    {
      name: "epochs",
      title: "Epochs",
      n: true,
      key: r => r.epochs,
      cell: r => (r.epochs === null ? "–" : `${r.epochs}${r.of_epochs ? ` of ${r.of_epochs}` : ""}`),
    },
    {
      name: "best",
      title: "Best",
      n: true,
      key: r => r.best,
      cell: r => (r.best === null ? "–" : figures.score(r.best, r.score_unit)),
    },
    {
      name: "time",
      title: "Training time",
      n: true,
      key: r => r.elapsed_s,
      cell: r => (r.elapsed_s === null ? "–" : duration(r.elapsed_s)),
    },
    {
      name: "spent",
      title: "Spent, of the budget",
      n: true,
      key: r => r.spent,
      cell: r => figures.money(r.spent, r.budget),
    },
    {
      name: "run",
      title: "Run",
      key: r => r.path,
      cell: r => (r.run ? element("a", { href: `/run/${r.run}` }, r.path) : `${r.path} (not fetched)`),
    },
    {
      name: "fetched",
      title: "Fetched",
      key: r => r.fetched,
      cell: r => (r.is_done ? "complete" : r.fetched ? time(r.fetched) : "–"),
    },
    { name: "last", title: "Last line of its log", key: r => r.last_line, cell: r => r.last_line || "–" },
  ];
  const drawRows = () => {
    const all = columns(),
      rows = figures.sorted(launch.rows, all, sort);
    const keep = () => ui.setAddress({ sort: sort === "repetition" ? "" : sort, page: page > 1 ? page : "" });
    const [from, to] = figures.pager(byId("pager"), rows.length, page, next => {
      page = next;
      keep();
      drawRows();
    });
    figures.replace(
      byId("repetitions"),
      figures.table({
        caption: "Repetitions of the launch",
        columns: all,
        sort,
        rows: rows.slice(from, to),
        onSort: chosen => {
          sort = chosen;
          page = 1;
          keep();
          drawRows();
        },
        empty: "The launch has no repetitions.",
      }),
    );
    figures.addCsv(byId("repetitions").querySelector("table"), () => [
      all.map(c => c.title),
      ...rows.map(r => all.map(c => c.key(r) ?? "")),
    ]);
  };

  const say = text => {
    byId("notice").textContent = text;
    byId("notice").hidden = !text;
  };
  const show = made => {
    damage = made.problem ? `This launch cannot be read: ${made.problem}` : "";
    say(damage);
    if (damage && launch) return;
    launch = made;
    byId("problems").replaceChildren(...launch.problems.map(p => element("p", {}, p)));
    const place = launch.target ? `on ${launch.target}, launched ${time(launch.launched)}` : "";
    byId("facts").replaceChildren(
      place,
      ...Object.entries(launch.statuses).map(([status, count]) =>
        element(
          "span",
          { class: "status" },
          element("span", { class: `state ${status}` }, `${count} ${status}`),
        ),
      ),
      ...(launch.sweep ? [element("a", { href: `/sweeps/${launch.sweep}` }, "the sweep of its runs")] : []),
    );
    const command = text => element("code", {}, text);
    const answered = launch.answered
      ? [`The state is that of ${time(launch.answered)} (${ago(launch.answered)}). `]
      : [
          launch.rows.some(r => r.fetched)
            ? "The state is that of the fetched runs. "
            : "Nobody has asked the target for its state yet. ",
        ];
    const lost = launch.unreachable
      ? [element("span", { class: "problem" }, `No answer at ${time(launch.asked)}: ${launch.unreachable}. `)]
      : [];
    byId("asked").replaceChildren(
      ...(made.problem
        ? []
        : [
            ...answered,
            ...lost,
            "This page asks no other machine: ",
            command(`stratus launch status ${launch.name}`),
            " asks it, ",
            command(`stratus launch fetch ${launch.name}`),
            " fetches the runs too, and with ",
            command("--follow"),
            " until the launch ends.",
          ]),
    );
    const done = launch.rows.filter(r => r.status === "completed").length;
    const beat = launch.heartbeat_s === null ? "" : `, heartbeat ${launch.heartbeat_s} s before`;
    const tiles = [
      ["Completed", `${done} of ${launch.repetitions}`],
      [
        "Running",
        launch.is_running
          ? launch.owner
            ? `${launch.owner}${beat}`
            : "yes"
          : launch.is_stopping
            ? "stopped"
            : launch.answered
              ? "no"
              : "–",
      ],
      ["Training time", launch.elapsed_s ? duration(launch.elapsed_s) : "–"],
      ["Forecast of a repetition", launch.expected_s === null ? "–" : duration(launch.expected_s)],
      ["Spent, of the budget", figures.money(launch.spent, launch.budget)],
      ["Restarts", String(launch.retries)],
      [
        "Lease",
        launch.released
          ? `released ${time(launch.released)}`
          : launch.lease_ends
            ? `ends ${time(launch.lease_ends)}`
            : "none",
      ],
    ];
    byId("tiles").replaceChildren(
      ...tiles.map(([title, text]) => element("div", {}, element("dt", {}, title), element("dd", {}, text))),
    );
    byId("tiles").title =
      launch.spent === null ? "The price needs train.price_per_hour in the experiment." : "";
    byId("hosts-part").hidden = !launch.hosts.length;
    byId("hosts").replaceChildren(
      figures.table({
        caption: "Hosts of the target",
        sort: "",
        rows: launch.hosts,
        columns: [
          { title: "Host", cell: h => h.name },
          {
            title: "State",
            cell: h =>
              h.lost === null
                ? h.running.length
                  ? "training"
                  : "idle"
                : element("span", { class: "problem" }, `⚠ not reached: ${h.lost || "no answer"}`),
          },
          { title: "Trains repetition", cell: h => h.running.join(", ") || "–" },
          { title: "Waiting", n: true, cell: h => String(h.waiting) },
          { title: "Completed", n: true, cell: h => String(h.completed) },
          { title: "Assigned", n: true, cell: h => String(h.assigned) },
        ],
      }),
    );
    const waiting = launch.rows.filter(r => r.status === "waiting").map(r => r.repetition);
    const more = waiting.length > MAX_WAITING ? ` and ${waiting.length - MAX_WAITING} more` : "";
    byId("queue").textContent = waiting.length
      ? `Waiting, in this order: ${waiting.slice(0, MAX_WAITING).join(", ")}${more}.`
      : "";
    drawRows();
    byId("events").replaceChildren(
      figures.table({
        caption: "Events, the newest first",
        sort: "",
        rows: [...launch.events].reverse().slice(0, 200),
        columns: [
          { title: "Time", cell: e => time(e.at) },
          { title: "Kind", cell: e => e.kind },
          { title: "Event", cell: e => e.text },
        ],
        empty: "No events. `stratus launch fetch --follow` records lost hosts and restarts.",
      }),
    );
  };
  figures.document(`/api/launches/${id}`, show, text => say(text || damage));
})();
