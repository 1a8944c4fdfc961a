"use strict";
// The page of a run: appends points to its curves, and renews the sections that change.
(() => {
  const id = location.pathname.split("/").pop();
  const shown = stratus.data();
  const live = ui.series(id),
    renew = ui.renewer(ui.byId("sections"));
  const notice = ui.byId("notice"),
    progress = ui.byId("progress");
  let content = shown.content,
    wanted = content;

  const say = text => {
    notice.textContent = text;
    notice.hidden = !text;
  };
  const drawLive = () => {
    const run = stratus.data().runs[0];
    if (live.curves) Object.assign(run.curves, live.curves);
    stratus.drawCharts(ui.byId("sections"));
  };
  const append = ui.paced(async () => {
    await live.fetch();
    // The first rows of a run: there is no chart yet.
    if (live.curves.iteration.length && !document.querySelector('[data-chart="loss"]')) renewSections();
    else drawLive();
  }, 500);
  const renewSections = ui.paced(async () => {
    const renewed = await ui.fetchJson(`/api/runs/${id}/sections`);
    content = renewed.content;
    stratus.setData(renewed.data);
    renew(renewed.html);
    drawLive();
    // The server keeps a report for a while if reading it takes long.
    if (content < wanted) setTimeout(renewSections, 3000);
  }, 2000);

  let last = null;
  const acted = (_, action) => {
    last = Object.assign({}, last, { action });
    showAction();
  };
  const showAction = () => {
    const place = ui.byId("action"),
      shown = actions.show(last, acted);
    if (place.innerHTML === (shown.outerHTML || "")) return;
    const isFocused = place.contains(document.activeElement);
    place.replaceChildren(shown);
    if (isFocused)
      (place.querySelector("button") || document.querySelector("nav a")).focus({ preventScroll: true });
  };
  const renewDetails = details.show(id);
  const show = row => {
    last = row;
    showAction();
    const parts = [row.state];
    if (row.of_epochs) parts.push(`epoch ${row.epochs} of ${row.of_epochs}`);
    if (row.state === "running" && row.percent !== null) parts.push(`${formats.fixed(row.percent, 1)} %`);
    if (row.left_s !== null) parts.push(`${formats.duration(row.left_s)} left`);
    progress.textContent = parts.join(", ");
    say(row.problem || "");
    append();
    renewDetails();
    if (row.content > content) {
      wanted = row.content;
      renewSections();
    }
  };
  ui.listen({ runs: id }, null, rows => {
    const row = rows.runs.find(row => row.id === id);
    if (row) show(row);
    else if (rows.is_all || rows.removed.includes(id)) {
      progress.textContent = "";
      say("This run was moved or deleted. What was read of it remains on this page.");
    }
  });
})();
