"use strict";
// What all pages share: elements, and the stream of changes. Names of runs are always text.
const ui = (() => {
  const byId = id => document.getElementById(id);

  // Attributes that are read by people.
  const TEXTS = ["aria-label", "placeholder", "title"];
  // An element with attributes and children; strings become text, as HTML from the server shows it.
  const element = (name, attributes, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === true) made.setAttribute(key, "");
      else if (value !== null && value !== undefined && value !== false)
        made.setAttribute(key, TEXTS.includes(key) ? formats.shown(value) : value);
    }
    made.append(...children.map(child => (child instanceof Node ? child : formats.shown(child))));
    return made;
  };
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  const fetchJson = async address => {
    const response = await fetch(address, { cache: "no-store" });
    if (!response.ok) throw Object.assign(new Error(`${response.status}`), { status: response.status });
    return response.json();
  };

  // Replaces parameters of the address without a new entry in the history; empty ones are removed.
  const setAddress = parameters => {
    const query = new URLSearchParams(location.search);
    for (const [key, value] of Object.entries(parameters)) {
      if (value === "" || value === null || value === undefined) query.delete(key);
      else query.set(key, value);
    }
    // Commas and colons need no escapes in a query.
    const text = query.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
    history.replaceState(null, "", text ? `?${text}` : location.pathname);
  };

  // Calls `receive` with the events of a name, from the address that `addressNow` returns when the stream is
  // opened. A hidden page receives nothing, since browsers allow few connections to a server; the stream is
  // opened again when the page is shown. Returns a function that opens it again, at another address.
  const stream = (addressNow, name, receive) => {
    let source = null,
      timer = 0;
    const say = text => {
      const place = byId("connection");
      if (place) place.textContent = text;
    };
    const close = () => {
      clearTimeout(timer);
      if (source) source.close();
      source = null;
    };
    const open = () => {
      close();
      if (document.hidden) return;
      source = new EventSource(addressNow());
      source.onopen = () => say("live");
      source.onerror = () => {
        say("not connected: is `stratus ui` running?");
        // A refused connection is not tried again by the browser.
        if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, 3000);
      };
      source.addEventListener(name, receive);
    };
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
    open();
    return open;
  };
  // Calls `receive` with the rows of changed runs; what a hidden page missed, when it is shown again.
  const listen = (parameters, since, receive) => {
    let last = since;
    const open = stream(
      () => {
        const query = new URLSearchParams(parameters);
        if (last) query.set("since", last);
        return `/events?${query}`;
      },
      "runs",
      event => {
        last = event.lastEventId;
        receive(JSON.parse(event.data));
      },
    );
    return {
      again: (changed, from) => {
        parameters = changed;
        last = from;
        open();
      },
    };
  };

  // Replaces the parts of the sections that differ. Charts move to their new places, so that zoom and hidden
  // lines stay; so do open details, the order of tables, how far they are scrolled, the epochs of sliders and
  // the focus.
  const sourceOf = part => {
    const copy = part.cloneNode(true);
    copy.querySelectorAll("[data-chart]").forEach(chart => chart.replaceChildren());
    copy.querySelectorAll(".downloads").forEach(buttons => buttons.remove());
    return copy.innerHTML;
  };
  const renewer = root => {
    const sources = new Map();
    root.querySelectorAll("[data-part]").forEach(part => sources.set(part.dataset.part, sourceOf(part)));
    const focusable = part => [...part.querySelectorAll("a, button, summary, input, select")];
    return html => {
      const template = document.createElement("template");
      template.innerHTML = html;
      template.content.querySelectorAll("[data-part]").forEach(part => {
        const name = part.dataset.part,
          old = root.querySelector(`[data-part="${name}"]`);
        const source = sourceOf(part);
        if (!old || sources.get(name) === source) return;
        sources.set(name, source);
        const focused = focusable(old).indexOf(document.activeElement);
        const epochs = stratus.chosenEpochs(old);
        const scrolled = [...old.querySelectorAll(".scroll")].map(box => box.scrollLeft);
        const open = new Set([...old.querySelectorAll("details[open] > summary")].map(s => s.textContent));
        const sorted = [...old.querySelectorAll("table.sortable")].map(table => {
          const heads = [...table.tHead.rows[0].cells];
          const column = heads.findIndex(head => head.hasAttribute("aria-sort"));
          return [
            heads[column] && heads[column].textContent,
            column,
            column >= 0 && heads[column].getAttribute("aria-sort") === "descending",
          ];
        });
        part.querySelectorAll("[data-chart]").forEach(place => {
          const kept = old.querySelector(`[data-chart="${place.dataset.chart}"]`);
          if (kept && kept.chart) {
            const buttons = kept.closest("figure").querySelector(".downloads");
            if (buttons) place.closest("figure").querySelector("figcaption").after(buttons);
            place.replaceWith(kept);
          }
        });
        stratus.removeCharts(old);
        old.replaceWith(part);
        stratus.setUp(part);
        stratus.chooseEpochs(part, epochs);
        part.querySelectorAll("summary").forEach(s => {
          s.parentElement.open = open.has(s.textContent);
        });
        part.querySelectorAll("table.sortable").forEach((table, i) => {
          const [title, column, down] = sorted[i] || [];
          const head = table.tHead.rows[0].cells[column];
          if (head && head.textContent === title) stratus.sort(table, column, down);
        });
        [...part.querySelectorAll(".scroll")].forEach((box, i) => {
          if (scrolled[i]) box.scrollLeft = scrolled[i];
        });
        if (focused >= 0 && focusable(part)[focused]) focusable(part)[focused].focus({ preventScroll: true });
      });
    };
  };

  // The arrays of the curves that new points are appended to.
  const POINTS = [
    "iteration",
    "loss",
    "loss_min",
    "loss_max",
    "accuracy",
    "learning_rate",
    "data_ms",
    "iteration_ms",
    "elapsed_s",
  ];
  // The live curves of a run: fetches what is new, and keeps all points.
  const series = id => {
    const state = { generation: 0, curves: null };
    state.fetch = async () => {
      const from = state.curves ? Math.max(state.curves.iteration.length - 1, 0) : 0;
      const query = new URLSearchParams({ generation: state.generation, from });
      const points = await fetchJson(`/api/runs/${id}/series?${query}`);
      if (!state.curves || points.first === 0)
        state.curves = Object.fromEntries(POINTS.map(key => [key, []]));
      for (const key of POINTS) state.curves[key].splice(points.first, Infinity, ...points[key]);
      state.curves.iterations_per_point = points.iterations_per_point;
      state.curves.non_finite_losses = points.non_finite_losses;
      state.generation = points.generation;
      return state.curves;
    };
    return state;
  };

  // A page is busy for at most this part of the time, so that it takes little from a training beside it.
  const MAX_BUSY_PART = 1 / 20;
  // The longest pause that this makes: with a scan a second, a row is on the screen within two seconds. Work
  // of more than 45 ms therefore takes a larger part.
  const MAX_BUSY_PAUSE_MS = 900;
  const painted = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  // Runs `work` at once, but never twice at the same time, nor within `pause` milliseconds of its end, or
  // longer if it and drawing what it changed took long.
  const paced = (work, pause) => {
    let isBusy = false,
      isWanted = false;
    const start = async () => {
      if (isBusy) {
        isWanted = true;
        return;
      }
      isBusy = true;
      const begun = performance.now();
      try {
        await work();
        await painted();
      } catch (error) {
        // The server may have ended, or the run been deleted: the stream of changes reports it.
        if (!(error instanceof TypeError) && !error.status) throw error;
      } finally {
        const took = performance.now() - begun;
        const rest = Math.max(pause, Math.min(took / MAX_BUSY_PART, MAX_BUSY_PAUSE_MS));
        setTimeout(() => {
          isBusy = false;
          if (isWanted) {
            isWanted = false;
            start();
          }
        }, rest);
      }
    };
    return start;
  };

  return {
    byId,
    element,
    svg,
    fetchJson,
    setAddress,
    stream,
    listen,
    renewer,
    series,
    paced,
  };
})();
