"use strict";
// The log and the files of a run, below its sections. They are read while they are open.
const details = (() => {
  const { byId, element } = ui,
    { bytes, time } = formats;
  // The number of lines that the server sends at once.
  const MAX_LINES = 200;

  const log = id => {
    const place = byId("log"),
      note = byId("log-note");
    let cursor = "",
      lines = [],
      hasEarlier = false;
    return async () => {
      const part = await ui.fetchJson(`/api/runs/${id}/log?${new URLSearchParams({ after: cursor })}`);
      cursor = part.cursor;
      if (part.is_new) {
        lines = [];
        hasEarlier = false;
      }
      if (!part.text && !part.is_new) return;
      lines = lines.concat(part.text.match(/[^\n]*\n|[^\n]+$/g) || []);
      hasEarlier = hasEarlier || part.has_earlier || lines.length > MAX_LINES;
      lines = lines.slice(-MAX_LINES);
      // It follows the end, unless the reader scrolled up.
      const follows = place.scrollTop + place.clientHeight >= place.scrollHeight - 4;
      place.textContent = lines.join("");
      if (follows) place.scrollTop = place.scrollHeight;
      note.textContent = lines.length
        ? hasEarlier
          ? `The last ${lines.length} lines of log.txt.`
          : "All of log.txt."
        : "There is no log yet.";
    };
  };

  const files = id => async () => {
    const listed = await ui.fetchJson(`/api/runs/${id}/files`);
    byId("files-note").textContent =
      `${listed.has_more ? "The first " : ""}${listed.files.length} files, ` +
      `${bytes(listed.bytes)}, in ${listed.folder}`;
    const lines = listed.files.map(file =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, file.name),
        element("td", { class: "n" }, bytes(file.bytes)),
        element("td", {}, time(file.modified)),
      ),
    );
    byId("files").tBodies[0].replaceChildren(...lines);
  };

  // Returns a function to be called when the run changed.
  const show = id => {
    const parts = [
      ["log-part", ui.paced(log(id), 1000)],
      ["files-part", ui.paced(files(id), 5000)],
    ];
    for (const [name, read] of parts)
      byId(name).addEventListener("toggle", () => {
        if (byId(name).open) read();
      });
    return () => {
      for (const [name, read] of parts) if (byId(name).open) read();
    };
  };
  return { show };
})();
