"use strict";
// Shared by the pages of sweeps, launches and forecasts: tables that can be sorted, colours of values, data
// as CSV, and a document that is asked for again whenever something changes.
const figures = (() => {
  const { byId, element } = ui,
    { fixed } = formats;

  // A number with as many digits as are useful, without an exponent where that is readable.
  const short = value => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
    return fixed(value, size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 4);
  };
  // A configured value as it is in the file.
  const numberOf = text => (text.trim() === "" || !Number.isFinite(Number(text)) ? null : Number(text));

  const toCsv = rows => rows.map(row => row.map(formats.csvCell).join(",") + "\n").join("");
  // Buttons beside the caption of a figure: the data to the clipboard, or to a file.
  const addCsv = (figure, rows) => {
    figure.csv = rows;
    if (figure.querySelector(".downloads")) return;
    const caption = figure.querySelector("figcaption, caption");
    const place = element("span", { class: "downloads" });
    const add = (name, label, work) => {
      const button = element("button", { type: "button" }, name);
      const title = () => caption.firstChild.textContent;
      button.addEventListener("focus", () => button.setAttribute("aria-label", `${label}: ${title()}`));
      button.setAttribute("aria-label", `${label}: ${title()}`);
      button.addEventListener("click", () => work(button, toCsv(figure.csv()), title()));
      place.append(button);
    };
    add("Copy", "Copy as CSV", async (button, text) => {
      let done = "Copied";
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        // Browsers give it to pages of this machine and to encrypted ones only.
        done = "Use CSV";
      }
      button.textContent = done;
      setTimeout(() => {
        button.textContent = "Copy";
      }, 1500);
    });
    add("CSV", "Save as CSV", (_, text, title) =>
      formats.download(new Blob([text], { type: "text/csv" }), `${formats.fileName(title)}.csv`),
    );
    if (caption.tagName === "CAPTION") caption.append(place);
    else caption.after(place);
  };

  // Cividis: from dark blue to yellow, in even steps of brightness, for those who see fewer colours too.
  const STOPS = [
    [0, 34, 78],
    [53, 69, 108],
    [102, 105, 112],
    [148, 142, 119],
    [200, 184, 102],
    [254, 232, 56],
  ];
  const colourOf = part => {
    const at = Math.min(Math.max(part, 0), 1) * (STOPS.length - 1),
      i = Math.min(Math.floor(at), STOPS.length - 2);
    return STOPS[i].map((from, k) => Math.round(from + (at - i) * (STOPS[i + 1][k] - from)));
  };
  const css = rgb => `rgb(${rgb.join(" ")})`;
  // The colour of a line, which stands out from the page.
  const lineColour = part => {
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    return css(colourOf(isDark ? 0.35 + 0.65 * part : 0.8 * part));
  };
  // Black or white, whichever is easier to read on a colour.
  const inkOn = rgb => {
    const [r, g, b] = rgb
      .map(v => v / 255)
      .map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
  };

  // A table with a caption; heads are sorted by clicking, and the order is kept by `onSort`. A column has a
  // name, a title, `cell` (text, an element or a list of both), `key` to sort by, and `n` if it is a number.
  const table = ({ caption, columns, rows, sort, onSort, empty }) => {
    const down = sort.startsWith("-"),
      name = sort.replace(/^-/, "");
    const head = element(
      "tr",
      {},
      ...columns.map(column => {
        const isSorted = column.name === name;
        const cell = element("th", {
          scope: "col",
          class: column.n && "n",
          "aria-sort": isSorted && (down ? "descending" : "ascending"),
        });
        if (!onSort || !column.key) {
          cell.append(column.title);
          return cell;
        }
        const button = element("button", { type: "button", "data-sort": column.name }, column.title);
        // Numbers begin with the greatest.
        const next = isSorted ? !down : Boolean(column.n);
        button.addEventListener("click", () => onSort((next ? "-" : "") + column.name, column.name));
        cell.append(button);
        return cell;
      }),
    );
    const lines = rows.map(row =>
      element(
        "tr",
        {},
        ...columns.map((column, i) => {
          const content = column.cell(row),
            parts = Array.isArray(content) ? content : [content];
          return element(i ? "td" : "th", { scope: i ? null : "row", class: column.n && "n" }, ...parts);
        }),
      ),
    );
    if (!lines.length && empty) {
      lines.push(element("tr", {}, element("td", { colspan: columns.length, class: "muted" }, empty)));
    }
    return element(
      "table",
      { class: "plain" },
      element("caption", {}, caption),
      element("thead", {}, head),
      element("tbody", {}, ...lines),
    );
  };
  // The rows in the order of a column; unknown values are last in either direction.
  const sorted = (rows, columns, sort) => {
    const down = sort.startsWith("-"),
      column = columns.find(c => c.name === sort.replace(/^-/, ""));
    if (!column || !column.key) return rows;
    const none = v => v === null || v === undefined || v === "";
    return rows
      .map((row, at) => [row, at, column.key(row)])
      .sort(([, i, x], [, j, y]) => {
        if (none(x) || none(y)) return none(x) - none(y) || i - j;
        const order =
          typeof x === "number" && typeof y === "number"
            ? x - y
            : String(x).localeCompare(String(y), undefined, { numeric: true });
        return (down ? -order : order) || i - j;
      })
      .map(([row]) => row);
  };
  // Replaces the content of a place by a table; the focus stays on the head that was clicked.
  const replace = (place, made) => {
    const focused =
      document.activeElement && place.contains(document.activeElement) ? document.activeElement : null;
    const head = focused && focused.dataset.sort,
      link = focused && focused.getAttribute("href");
    place.replaceChildren(made);
    const again = head
      ? place.querySelector(`[data-sort="${CSS.escape(head)}"]`)
      : link && place.querySelector(`a[href="${CSS.escape(link)}"]`);
    if (again) again.focus({ preventScroll: true });
  };
  // Links to pages of a table of many rows. Returns the first row of the shown page, the end, and the page.
  const PAGE_ROWS = 100;
  const pager = (place, count, page, go) => {
    const pages = Math.max(Math.ceil(count / PAGE_ROWS), 1),
      at = Math.min(Math.max(page, 1), pages);
    const button = (text, to) => {
      const made = element(
        "button",
        { type: "button", class: "button", disabled: to < 1 || to > pages },
        text,
      );
      made.addEventListener("click", () => go(to));
      return made;
    };
    place.hidden = pages < 2;
    place.replaceChildren(
      button("Previous", at - 1),
      element("span", {}, `page ${at} of ${pages}`),
      button("Next", at + 1),
    );
    return [(at - 1) * PAGE_ROWS, at * PAGE_ROWS, at];
  };
  const fill = (select, choices, chosen) => {
    const text = JSON.stringify(choices);
    if (select.choices !== text) {
      select.choices = text;
      select.replaceChildren(...choices.map(([value, title]) => element("option", { value }, title)));
    }
    select.value = choices.some(([value]) => value === chosen) ? chosen : (choices[0] || [""])[0];
    return select.value;
  };

  // Calls `ask` whenever something in the folders has changed, and when a hidden page is shown again.
  const follow = ask => {
    ui.stream(() => "/changes", "changed", ui.paced(ask, 1000));
  };
  // Shows a document, and again whenever it has another version. One that is gone stays as it was.
  const document_ = (address, show, notice) => {
    let version = null;
    const take = made => {
      version = made.version;
      show(made);
    };
    take(JSON.parse(byId("data").textContent));
    follow(async () => {
      try {
        const made = await ui.fetchJson(`${address}?version=${version}`);
        notice("");
        if (!made.is_same) take(made);
      } catch (error) {
        if (error.status !== 404) throw error;
        notice("It was moved or deleted. What was read of it remains on this page.");
      }
    });
  };

  // The value of a best cell, with its measure and unit.
  const measured = ({ measure, value, places }) =>
    `${measure.replace(/, %$/, "")} ${fixed(value, places)}${measure.endsWith("%") ? " %" : ""}`;

  // The value of a validation measure, in percent or, like R², a number.
  const score = (value, unit) => (unit === "%" ? `${fixed(100 * value, 2)} %` : fixed(value, 4));

  // Money spent, of a budget if there is one.
  const money = (spent, budget) =>
    spent === null ? "–" : fixed(spent, 2) + (budget === null ? "" : ` of ${fixed(budget, 2)}`);

  return {
    short,
    measured,
    score,
    money,
    numberOf,
    addCsv,
    colourOf,
    lineColour,
    css,
    inkOn,
    table,
    sorted,
    replace,
    pager,
    fill,
    follow,
    document: document_,
  };
})();
