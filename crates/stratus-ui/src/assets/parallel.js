"use strict";
// Parallel coordinates: an axis for each key and one for the result, a line for each cell. Limits of the axes
// choose cells: by dragging along an axis, or by the fields below the drawing, with the keyboard.
const parallel = (() => {
  const { element, svg } = ui;
  const HEIGHT = 300,
    TOP = 46,
    BOTTOM = 22,
    MIN_STEP = 150,
    MAX_STEP = 260,
    SIDE = 70;
  const MAX_TICKS = 12,
    MAX_LABEL = 16;
  const cut = text => (text.length > MAX_LABEL ? text.slice(0, MAX_LABEL - 1) + "…" : text);

  // An axis of values: numbers on a linear or logarithmic scale, or a list of texts.
  const axisOf = (name, title, values) => {
    const known = values.filter(v => v !== null && v !== undefined);
    const isNumber = known.every(v => typeof v === "number");
    if (!isNumber) {
      const list = [...new Set(known.map(String))].sort((a, b) =>
        a.localeCompare(b, undefined, { numeric: true }),
      );
      return {
        name,
        title,
        isNumber,
        list,
        at: v => (list.length < 2 ? 0.5 : list.indexOf(String(v)) / (list.length - 1)),
        ticks: list.length > MAX_TICKS ? [list[0], list[list.length - 1]] : list,
      };
    }
    const distinct = [...new Set(known)].sort((a, b) => a - b),
      low = distinct[0],
      high = distinct[distinct.length - 1];
    const isLog = low > 0 && high / low >= 50,
      scale = isLog ? Math.log10 : v => v;
    const range = scale(high) - scale(low);
    const back = part => {
      const v = scale(low) + part * range;
      return isLog ? 10 ** v : v;
    };
    const ticks = distinct.length <= 6 ? distinct : [0, 0.25, 0.5, 0.75, 1].map(back);
    return {
      name,
      title: isLog ? `${title}, logarithmic` : title,
      isNumber,
      low,
      high,
      back,
      ticks,
      at: v => (range ? (scale(v) - scale(low)) / range : 0.5),
    };
  };

  // Limits in an address: `KEY:LOW..HIGH` or `KEY:=TEXT`, between semicolons.
  const decoded = text => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  const parse = text =>
    new Map(
      (text || "")
        .split(";")
        .filter(part => part.includes(":"))
        .map(part => {
          const at = part.indexOf(":"),
            name = part.slice(0, at),
            limits = part.slice(at + 1);
          if (limits.startsWith("=")) return [name, { text: decoded(limits.slice(1)) }];
          const [low, high] = limits.split("..").map(figures.numberOf);
          return [name, { low: low ?? null, high: high ?? null }];
        }),
    );
  const format = limits =>
    [...limits]
      .map(([name, one]) =>
        one.text !== undefined
          ? `${name}:=${encodeURIComponent(one.text)}`
          : `${name}:${one.low ?? ""}..${one.high ?? ""}`,
      )
      .join(";");
  const passes = (limits, valueOf) =>
    [...limits].every(([name, one]) => {
      const value = valueOf(name);
      if (one.text !== undefined) return String(value) === one.text;
      if (one.low === null && one.high === null) return true;
      return typeof value === "number" && value >= (one.low ?? -Infinity) && value <= (one.high ?? Infinity);
    });

  // Draws lines: `rows` with `values` by axis, `colour`, `isChosen`, `title`.
  const draw = (place, title, axes, rows, limits, onLimit) => {
    const room = (place.clientWidth - 2 * SIDE) / Math.max(axes.length - 1, 1);
    const step = Math.max(MIN_STEP, Math.min(MAX_STEP, room));
    const width = 2 * SIDE + step * (axes.length - 1),
      y = part => HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM);
    const x = i => SIDE + step * i;
    const drawing = svg("svg", {
      viewBox: `0 0 ${width} ${HEIGHT}`,
      width,
      height: HEIGHT,
      class: "parallel",
      role: "img",
      "aria-label":
        `${title}: ${rows.filter(row => row.isChosen).length} of ${rows.length} cells are chosen. ` +
        "The table of cells has the values.",
    });
    const text = (content, attributes) => {
      const made = svg("text", attributes);
      made.textContent = content;
      return made;
    };
    for (const row of [...rows].sort((a, b) => a.isChosen - b.isChosen)) {
      const points = axes
        .map((axis, i) => {
          const value = row.values[i];
          return value === null || value === undefined ? null : `${x(i)},${y(axis.at(value)).toFixed(1)}`;
        })
        .filter(point => point);
      if (points.length < 2) continue;
      const line = svg("polyline", { points: points.join(" "), class: row.isChosen ? "chosen" : "left-out" });
      if (row.isChosen && row.colour) line.style.stroke = row.colour;
      const name = svg("title", {});
      name.textContent = row.title;
      line.append(name);
      drawing.append(line);
    }
    axes.forEach((axis, i) => {
      drawing.append(svg("line", { x1: x(i), x2: x(i), y1: y(0), y2: y(1), class: "axis" }));
      const parts = axis.title.split(/(?<=\.|, )/),
        half = parts.length > 1 ? parts.length - 1 : 1;
      [parts.slice(0, half).join(""), parts.slice(half).join("")]
        .filter(part => part)
        .forEach((part, line, all) =>
          drawing.append(
            text(cut(part), {
              x: x(i),
              y: 14 + 14 * line + (all.length < 2 ? 14 : 0),
              "text-anchor": "middle",
            }),
          ),
        );
      for (const tick of axis.ticks) {
        drawing.append(
          text(typeof tick === "number" ? figures.short(tick) : cut(tick), {
            x: x(i) + 5,
            y: y(axis.at(tick)) + 4,
            class: "tick",
          }),
        );
      }
      const one = limits.get(axis.name);
      if (!axis.isNumber || axis.low === undefined) return;
      const within = v => Math.min(Math.max(v, axis.low), axis.high);
      if (one && (one.low !== null || one.high !== null)) {
        const [a, b] = [y(axis.at(within(one.high ?? axis.high))), y(axis.at(within(one.low ?? axis.low)))];
        drawing.append(
          svg("rect", { x: x(i) - 8, y: a, width: 16, height: Math.max(b - a, 2), class: "limits" }),
        );
      }
      const handle = svg("rect", {
        x: x(i) - 14,
        y: y(1) - 4,
        width: 28,
        height: y(0) - y(1) + 8,
        class: "handle",
      });
      const partAt = event => {
        const box = drawing.getBoundingClientRect();
        return Math.min(
          Math.max((y(0) - ((event.clientY - box.top) * HEIGHT) / box.height) / (y(0) - y(1)), 0),
          1,
        );
      };
      handle.addEventListener("pointerdown", event => {
        event.preventDefault();
        const from = partAt(event);
        place.isDragging = true;
        const shade = svg("rect", { x: x(i) - 8, width: 16, y: y(from), height: 0, class: "limits" });
        drawing.append(shade);
        const move = moved => {
          const to = partAt(moved);
          shade.setAttribute("y", y(Math.max(from, to)));
          shade.setAttribute("height", Math.abs(y(from) - y(to)));
        };
        const end = ended => {
          removeEventListener("pointermove", move);
          removeEventListener("pointerup", end);
          removeEventListener("pointercancel", end);
          place.isDragging = false;
          const to = partAt(ended),
            digits = v => Number(axis.back(v).toPrecision(4));
          // A click removes the limits.
          onLimit(
            axis.name,
            Math.abs(to - from) < 0.02
              ? null
              : { low: digits(Math.min(from, to)), high: digits(Math.max(from, to)) },
          );
        };
        addEventListener("pointermove", move);
        addEventListener("pointerup", end);
        addEventListener("pointercancel", end);
      });
      drawing.append(handle);
    });
    place.replaceChildren(drawing);
  };

  // Fields for the limits of every axis. They are replaced only if the axes differ, so that typing is not
  // interrupted.
  const fields = (place, axes, limits, onLimit) => {
    const shape = JSON.stringify(axes.map(axis => [axis.name, axis.label, axis.isNumber, axis.list]));
    if (place.shape !== shape) {
      place.shape = shape;
      place.replaceChildren(
        ...axes.map(axis => {
          if (!axis.isNumber) {
            const select = element(
              "select",
              { "data-axis": axis.name },
              element("option", { value: "" }, "all"),
              ...axis.list.map(value => element("option", { value: `=${value}` }, value)),
            );
            select.addEventListener("change", () =>
              onLimit(axis.name, select.value ? { text: select.value.slice(1) } : null),
            );
            return element("label", {}, `${axis.label} `, select);
          }
          const input = (end, label) =>
            element("input", {
              type: "number",
              step: "any",
              "data-axis": axis.name,
              "data-end": end,
              "aria-label": `${axis.label}, ${label}`,
              placeholder: label,
            });
          const low = input("low", "at least"),
            high = input("high", "at most");
          for (const one of [low, high]) {
            one.addEventListener("change", () => {
              const ends = { low: figures.numberOf(low.value), high: figures.numberOf(high.value) };
              onLimit(axis.name, ends.low === null && ends.high === null ? null : ends);
            });
          }
          return element("fieldset", {}, element("legend", {}, axis.label), low, " to ", high);
        }),
        element("button", { type: "button", class: "button", id: "no-limits" }, "All cells"),
      );
      place.querySelector("#no-limits").addEventListener("click", () => onLimit(null, null));
    }
    for (const field of place.querySelectorAll("[data-axis]")) {
      const one = limits.get(field.dataset.axis);
      const value = !one
        ? ""
        : field.tagName === "SELECT"
          ? one.text === undefined
            ? ""
            : `=${one.text}`
          : (one[field.dataset.end] ?? "");
      if (field !== document.activeElement) field.value = value;
    }
    place.querySelector("#no-limits").disabled = !limits.size;
  };

  return { axisOf, parse, format, passes, draw, fields };
})();
