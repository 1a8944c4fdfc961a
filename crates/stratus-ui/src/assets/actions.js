"use strict";
// Actions on runs: a button, a question before anything happens, and the progress in words.
const actions = (() => {
  const { element } = ui;
  const meta = document.querySelector('meta[name="stratus-page"]');
  // The token of this page; without it, the server offers no actions.
  const token = meta && meta.content;
  // Runs whose request is on its way.
  const sent = new Set();

  const TEXTS = {
    stop: {
      verb: "Stop",
      path: "stop",
      text: row => {
        if (row.offer.launch) {
          return (
            `It belongs to the launch ${row.offer.launch}: all of its runs save a checkpoint and stop, as ` +
            `with “stratus launch stop ${row.offer.launch}”.`
          );
        }
        const next = row.offer.is_of_sweep ? " Its sweep then trains the next run." : "";
        return `It saves a checkpoint and stops. It can be continued from there.${next}`;
      },
    },
    continue: {
      verb: "Continue",
      path: "continue",
      text: () => "It continues from its last checkpoint, in a new process on the machine of this server.",
    },
  };

  // Asks in a dialog; resolves to true if it is confirmed. Escape and Cancel say no.
  const ask = (title, text, verb) =>
    new Promise(resolve => {
      const cancel = element("button", { type: "button", class: "button", autofocus: true }, "Cancel");
      const confirm = element("button", { type: "button", class: "button strong" }, verb);
      const dialog = element(
        "dialog",
        { "aria-labelledby": "ask-title", "aria-describedby": "ask-text" },
        element("h2", { id: "ask-title" }, title),
        element("p", { id: "ask-text" }, text),
        element("div", { class: "tools" }, confirm, cancel),
      );
      let isConfirmed = false;
      confirm.addEventListener("click", () => {
        isConfirmed = true;
        dialog.close();
      });
      cancel.addEventListener("click", () => dialog.close());
      dialog.addEventListener("close", () => {
        dialog.remove();
        resolve(isConfirmed);
      });
      document.body.append(dialog);
      dialog.showModal();
    });

  const post = async (id, path, state) => {
    const response = await fetch(`/api/runs/${id}/${path}`, {
      method: "POST",
      cache: "no-store",
      body: JSON.stringify({ state }),
      headers: { "content-type": "application/json", "x-stratus-page": token },
    });
    const answer = await response.json();
    return response.ok ? answer : { stage: "failed", text: answer.error };
  };

  // Asks, then acts on a run. `changed` is called when its row has something new to show.
  const act = async (row, changed) => {
    const { verb, path, text } = TEXTS[row.offer.kind],
      state = row.state;
    if (sent.has(row.id) || !(await ask(`${verb} ${row.label}?`, text(row), verb))) return;
    sent.add(row.id);
    changed(row.id, { stage: "pending", text: verb === "Stop" ? "stopping…" : "continuing…" });
    let progress;
    try {
      progress = await post(row.id, path, state);
    } catch {
      progress = { stage: "failed", text: "the server does not answer" };
    }
    sent.delete(row.id);
    changed(row.id, progress);
  };

  // The button of a row, or the reason why it has none, and the progress of the last action.
  const show = (row, changed) => {
    const parts = [],
      said = row.action,
      isPending = said && said.stage === "pending";
    if (token && row.offer.kind && !isPending) {
      const { verb } = TEXTS[row.offer.kind];
      const button = element(
        "button",
        { type: "button", class: "button", "aria-label": `${verb} ${row.label}` },
        verb,
      );
      button.addEventListener("click", () => act(row, changed));
      parts.push(button);
    }
    if (said) parts.push(element("span", { class: `said ${said.stage}`, title: said.text }, said.text));
    else if (token && row.offer.refusal) {
      parts.push(element("span", { class: "muted", title: row.offer.refusal }, row.offer.refusal));
    }
    return parts.length ? element("span", { class: "pair-inline" }, ...parts) : "";
  };

  return { areOffered: Boolean(token), show };
})();
