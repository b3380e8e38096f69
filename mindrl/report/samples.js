"use strict";
// What the model said: filters, groups side by side, tokens in colours, one prompt through the steps.

(() => {
  const PAGE = 20;

  const KINDS = { step: "training", evaluation: "evaluation" };
  const SHADES = {
    "log-prob gap": (row) => row.logprobs && row.logprobs.map((value, at) => (value === null ? null : value - row.rollout_logprobs[at])),
    "log-prob": (row) => row.rollout_logprobs,
    advantage: (row) => row.advantages,
  };

  function field(title, node) {
    return make("label", {}, title, node);
  }

  function select(values, everything) {
    return make("select", {}, everything ? make("option", { value: "" }, everything) : null, values.map((value) => make("option", { value }, KINDS[value] ?? value)));
  }

  // Groups: the answers of a run to one prompt in one step, in the order of the samples.
  function grouped(rows) {
    const groups = new Map();
    for (const row of rows) {
      const key = JSON.stringify([row.run, row.kind, row.step, row.prompt]);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(row);
    }
    return [...groups.values()];
  }

  function shade(value, most) {
    if (value === undefined || value === null || !most) return null;
    const share = Math.min(1, Math.abs(value) / most).toFixed(2);
    return `background:rgba(${value < 0 ? "179,84,30" : "31,90,150"},${share * 0.75})`;
  }

  function text(row, shading) {
    const values = row.tokens && shading && SHADES[shading](row);
    if (!values) return make("pre", {}, row.response);
    const most = values.reduce((found, value) => Math.max(found, Math.abs(value ?? 0)), 0);
    // As nodes: a joiner that is a token alone stays as its neighbours want it.
    const tokens = shownParts(row.tokens).map((token) => document.createTextNode(token));
    return make("pre", {}, tokens.map((token, at) => make("span", { style: shade(values[at], most), title: `${shading} ${number(values[at])}` }, token)));
  }

  function answer(row, shading) {
    const parts = Object.entries(row.parts ?? {}).map(([name, value]) => `${name} ${number(value, 3)}`).join(", ");
    const facts = [`reward ${number(row.reward, 3)}${parts && ` (${parts})`}`, row.advantages && `advantage ${number(row.advantages[0], 3)}`, `${row.response_tokens} tokens`, row.finished ? null : "cut off"];
    return make("div", { class: "answer" }, make("div", { class: "facts" }, facts.filter(Boolean).join(", ")), text(row, shading));
  }

  function group(rows, several, shading, follow) {
    const first = rows[0], source = first.data_source ? `, ${first.data_source}` : "";
    const head = `${several ? `${first.run}, ` : ""}step ${first.step}, ${KINDS[first.kind] ?? first.kind}${source}`;
    return make("div", { class: "group" },
      make("div", {}, make("strong", {}, head), " ", make("button", { onclick: () => follow(first.prompt) }, "this prompt through the steps")),
      make("pre", { class: "prompt" }, first.prompt),
      first.reference ? make("div", { class: "help" }, `reference: ${first.reference}`) : null,
      make("div", { class: "answers" }, rows.map((row) => answer(row, shading))));
  }

  window.sampleBrowser = (data) => {
    const all = data.runs.flatMap((run) => run.samples.map((row) => ({ ...row, run: run.name })));
    const total = data.runs.reduce((sum, run) => sum + run.samples_total, 0);
    const sources = [...new Set(all.map((row) => row.data_source).filter(Boolean))].sort();
    const kinds = [...new Set(all.map((row) => row.kind))];
    const inputs = {
      run: select(data.runs.map((run) => run.name), "all runs"),
      kind: select(kinds, "training and evaluation"),
      source: select(sources, "all data sets"),
      from: make("input", { type: "number", min: 0 }), to: make("input", { type: "number", min: 0 }),
      least: make("input", { type: "number", step: "any" }), most: make("input", { type: "number", step: "any" }),
      ended: select(["ended", "cut off"], "ended or cut off"),
      words: make("input", { type: "search", placeholder: "in prompt or response" }),
      shading: select(Object.keys(SHADES).filter((name) => all.some((row) => row.tokens && SHADES[name](row))), "none"),
    };
    const list = make("div", { id: "samples-list" }), count = make("p", { class: "help", id: "samples-count" });
    const more = make("button", { onclick: () => render(shownGroups + PAGE) }, "more");
    let prompt = null, shownGroups = PAGE;

    const between = (value, low, high) => (low.value === "" || value >= Number(low.value)) && (high.value === "" || value <= Number(high.value));
    function kept(row) {
      const words = inputs.words.value.toLowerCase();
      return (!inputs.run.value || row.run === inputs.run.value) && (!inputs.kind.value || row.kind === inputs.kind.value)
        && (!inputs.source.value || row.data_source === inputs.source.value) && between(row.step, inputs.from, inputs.to)
        && between(row.reward, inputs.least, inputs.most) && (!inputs.ended.value || row.finished === (inputs.ended.value === "ended"))
        && (!words || row.prompt.toLowerCase().includes(words) || row.response.toLowerCase().includes(words)) && (prompt === null || row.prompt === prompt);
    }

    function render(groups) {
      shownGroups = groups;
      const found = grouped(all.filter(kept));
      // The newest first; one prompt reads from the first step on.
      if (prompt === null) found.reverse();
      const follow = (text) => { prompt = text; render(PAGE); document.getElementById("samples").scrollIntoView(); };
      list.replaceChildren(...found.slice(0, groups).map((rows) => group(rows, data.runs.length > 1, inputs.shading.value, follow)));
      if (!found.length) list.append(make("p", { class: "empty" }, "No sample is like that."));
      const answers = found.reduce((sum, rows) => sum + rows.length, 0);
      count.textContent = `${answers.toLocaleString("en")} of ${all.length.toLocaleString("en")} samples in this page; the run folder has ${total.toLocaleString("en")}${all.length < total ? ": whole steps are left out, evenly, to keep the page small" : ""}`;
      more.hidden = found.length <= groups;
      all_prompts.hidden = prompt === null;
    }

    const all_prompts = make("button", { onclick: () => { prompt = null; render(PAGE); } }, "all prompts again");
    for (const input of Object.values(inputs)) input.addEventListener("input", () => render(PAGE));
    const titles = { run: "run", kind: "of", source: "data set", from: "from step", to: "to step", least: "reward from", most: "reward to", ended: "end", words: "text", shading: "colour tokens by" };
    const shownFields = Object.entries(inputs).filter(([name, input]) => !({ run: data.runs.length < 2, source: !sources.length, shading: input.options?.length < 2 })[name]);
    section("Samples", make("div", { class: "filters" }, shownFields.map(([name, input]) => { input.id = `filter-${name}`; return field(titles[name], input); }), all_prompts), count, list, more);
    render(PAGE);
  };

  const embedded = JSON.parse(document.getElementById("data").textContent);
  if (embedded) show(embedded);
  else follow();

  // Served live: asks again now and then, and draws anew where there is something new.
  async function follow() {
    let before = null;
    for (;;) {
      try {
        const answer = await fetch(`data.json${location.search}`);
        const data = await answer.json(), state = JSON.stringify(data.runs.map((run) => [run.step, run.status, run.faults.length]));
        if (state !== before) { const at = window.scrollY; show(data); window.scrollTo(0, at); before = state; }
      } catch (error) {
        document.getElementById("when").textContent = `no answer from the run's server: ${error}`;
      }
      await new Promise((done) => setTimeout(done, REFRESH_SECONDS * 1000));
    }
  }
})();
