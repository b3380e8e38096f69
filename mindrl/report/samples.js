"use strict";
// Responses of the model: filters, groups side by side, coloured tokens, one prompt over the steps.

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

  // Thumbnails by the names of their pictures, as addresses that hold their content.
  const thumbnails = {};
  const picturesOf = (row) => (Array.isArray(row.pictures) ? row.pictures : []).filter((name) => /^[0-9a-f]{16}$/.test(name));
  // Equal texts may be about other pictures.
  const questionOf = (row) => [row.prompt, ...picturesOf(row)].join(" ");

  function pictures(row) {
    const names = picturesOf(row);
    if (!names.length) return null;
    return make("div", { class: "pictures" }, names.map((name, at) => (thumbnails[name] ? make("img", { src: thumbnails[name], alt: `picture ${at + 1}`, title: `picture ${at + 1}: ${name}` }) : make("span", { class: "help" }, `picture ${at + 1}: no thumbnail`))));
  }

  // Groups: a run's responses to one prompt in one step, in the order of the samples.
  function grouped(rows) {
    const groups = new Map();
    for (const row of rows) {
      const key = JSON.stringify([row.run, row.kind, row.step, questionOf(row)]);
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

  const largest = (values) => values.reduce((found, value) => Math.max(found, Math.abs(value ?? 0)), 0);

  function coloured(tokens, values, most, shading) {
    // Text nodes, because a joiner that is a token of its own must stay in its word.
    return tokens.map((token, at) => make("span", { style: shade(values[at], most), title: `${shading} ${number(values[at])}` }, document.createTextNode(token)));
  }

  function text(row, shading) {
    const values = row.tokens && shading && SHADES[shading](row);
    if (!values) return make("pre", {}, row.response);
    return make("pre", {}, coloured(shownParts(row.tokens), values, largest(values), shading));
  }

  const ENDINGS = { done: "the environment ended it", turns: "it had its last turn", turn_tokens: "a turn reached its most tokens", tokens: "no tokens were left", pictures: "no pictures were left", failed: "its environment failed" };
  const piecesOf = (row) => row.conversation?.pieces ?? [];
  const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

  // The stored tokens follow the prompt, to which an environment's first text belongs.
  function conversation(row, shading) {
    const tokens = shownParts(row.tokens ?? []), values = row.tokens && shading && SHADES[shading](row);
    let at = 0, turns = 0;
    const shownPieces = piecesOf(row).map((piece) => {
      const isWritten = piece.by === "policy", start = at;
      turns += isWritten ? 1 : 0;
      if (turns) at += piece.tokens;
      const facts = [plural(piece.tokens, "token"), piece.masked && "not trained on", piece.calls && plural(piece.calls, "call"), piece.reward !== undefined && `reward ${number(piece.reward, 3)}`, piece.seconds !== undefined && `answered in ${number(piece.seconds, 3)} s`];
      const body = values && isWritten ? make("pre", {}, coloured(tokens.slice(start, at), values.slice(start, at), largest(values), shading)) : make("pre", {}, piece.text);
      const head = make("div", { class: "facts" }, make("strong", {}, isWritten ? `turn ${turns}` : piece.by), ` ${facts.filter(Boolean).join(", ")}`);
      return make("li", { class: piece.masked ? "masked" : "written" }, head, body, pictures(piece));
    });
    const ending = row.conversation.ending;
    return [make("ol", { class: "pieces" }, shownPieces), make("div", { class: "facts ending" }, `ended: ${ENDINGS[ending] ?? ending}`)];
  }

  function answer(row, shading) {
    const parts = Object.entries(row.parts ?? {}).map(([name, value]) => `${name} ${number(value, 3)}`).join(", ");
    const facts = [`reward ${number(row.reward, 3)}${parts && ` (${parts})`}`, row.advantages && `advantage ${number(row.advantages[0], 3)}`, `${row.response_tokens} tokens`, row.finished ? null : "cut off"];
    const body = row.conversation ? conversation(row, shading) : text(row, shading);
    return make("div", { class: "answer" }, make("div", { class: "facts" }, facts.filter(Boolean).join(", ")), body);
  }

  function group(rows, several, shading, follow) {
    const first = rows[0], source = first.data_source ? `, ${first.data_source}` : "";
    const head = `${several ? `${first.run}, ` : ""}step ${first.step}, ${KINDS[first.kind] ?? first.kind}${source}`;
    return make("div", { class: "group" },
      make("div", {}, make("strong", {}, head), " ", make("button", { onclick: () => follow(questionOf(first)) }, "this prompt over the steps")),
      make("pre", { class: "prompt" }, first.prompt),
      pictures(first),
      first.reference ? make("div", { class: "help" }, `reference: ${first.reference}`) : null,
      make("div", { class: "answers" }, rows.map((row) => answer(row, shading))));
  }

  // Each source finds groups that match the filters, from an offset: in the samples of this page, or
  // through the server in all samples of the runs.
  function embeddedSource(data) {
    for (const run of data.runs) Object.assign(thumbnails, run.thumbnails);
    const all = data.runs.flatMap((run) => run.samples.map((row) => ({ ...row, run: run.name })));
    const between = (value, low, high) => (low === "" || value >= Number(low)) && (high === "" || value <= Number(high));
    const fits = (row, asked) => (!asked.run || row.run === asked.run) && (!asked.kind || row.kind === asked.kind)
      && (!asked.source || row.data_source === asked.source) && between(row.step, asked.from, asked.to)
      && between(row.reward, asked.least, asked.most) && (!asked.ended || row.finished === (asked.ended === "ended"))
      && [row.prompt, row.response, ...piecesOf(row).map((piece) => piece.text)].some((text) => text.toLowerCase().includes(asked.words.toLowerCase()))
      && (asked.prompt === null || questionOf(row) === asked.prompt);
    return {
      find: (asked) => {
        const found = grouped(all.filter((row) => fits(row, asked))), from = asked.at ?? 0;
        // The newest step first; a single prompt starts with the first step.
        if (asked.prompt === null) found.reverse();
        return { groups: found.slice(from, from + PAGE), next: from + PAGE < found.length ? from + PAGE : null, fitting: found.flat().length };
      },
      said: (total, found) => `${found.fitting.toLocaleString("en")} of ${all.length.toLocaleString("en")} samples in this page; the run folder has ${total.toLocaleString("en")}${all.length < total ? ": evenly spaced steps are omitted to keep the page small" : ""}`,
      kinds: [...new Set(all.map((row) => row.kind))],
      sources: [...new Set(all.map((row) => row.data_source).filter(Boolean))].sort(),
      shadings: Object.keys(SHADES).filter((name) => all.some((row) => row.tokens && SHADES[name](row))),
    };
  }

  function askedSource(data) {
    let looked = 0;
    const of_runs = (name) => [...new Set(data.runs.flatMap((run) => run[name]))];
    return {
      find: async (asked) => {
        const answer = await fetch(`samples.json${location.search}`, { method: "POST", body: JSON.stringify(asked) });
        if (!answer.ok) throw new Error(await answer.text());
        const found = await answer.json();
        looked = found.looked + (asked.at ? looked : 0);
        Object.assign(thumbnails, found.thumbnails);
        return found;
      },
      said: (total) => `searched ${looked.toLocaleString("en")} of ${total.toLocaleString("en")} samples`,
      kinds: of_runs("sample_kinds"),
      sources: of_runs("sample_sources").sort(),
      shadings: data.runs.some((run) => run.has_tokens) ? Object.keys(SHADES) : [],
      delay: 300,
    };
  }

  // Called on a live page when the runs have new samples.
  window.moreSamples = () => {};

  window.sampleBrowser = (data) => {
    const source = data.runs.every((run) => run.samples) ? embeddedSource(data) : askedSource(data);
    const inputs = {
      run: select(data.runs.map((run) => run.name), "all runs"),
      kind: select(source.kinds, "training and evaluation"),
      source: select(source.sources, "all data sets"),
      from: make("input", { type: "number", min: 0 }), to: make("input", { type: "number", min: 0 }),
      least: make("input", { type: "number", step: "any" }), most: make("input", { type: "number", step: "any" }),
      ended: select(["ended", "cut off"], "ended or cut off"),
      words: make("input", { type: "search", placeholder: "in prompt or response" }),
      shading: select(source.shadings, "none"),
    };
    const list = make("div", { id: "samples-list" }), count = make("p", { class: "help", id: "samples-count" });
    const more = make("button", { onclick: () => extend(next) }, "more"), allPrompts = make("button", { onclick: () => choose(null) }, "all prompts");
    let prompt = null, next = null, asks = 0, waiting = null;

    const total = () => data.runs.reduce((sum, run) => sum + run.samples_total, 0);
    function choose(text) {
      prompt = text;
      extend(null);
      document.getElementById("samples").scrollIntoView();
    }

    // Appends matching groups from an offset; null replaces the list.
    async function extend(at) {
      asks += 1;
      list.setAttribute("aria-busy", "true");
      const mine = asks, { shading, ...filters } = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value]));
      let found = { groups: [], next: at };
      try {
        // The server searches a part of a long run per request.
        do {
          const asked = source.find({ ...filters, prompt, at: found.next });
          found = asked instanceof Promise ? await asked : asked;
          if (mine !== asks) return;
          count.textContent = source.said(total(), found);
        } while (!found.groups.length && found.next !== null);
      } catch (error) {
        count.textContent = `cannot read samples: ${error.message}`;
        list.setAttribute("aria-busy", "false");
        return;
      }
      const groups = found.groups.map((rows) => group(rows, data.runs.length > 1, shading, choose));
      if (at === null) list.replaceChildren(...groups);
      else list.append(...groups);
      if (!list.children.length) list.append(make("p", { class: "empty" }, "No sample matches."));
      next = found.next;
      more.hidden = next === null;
      allPrompts.hidden = prompt === null;
      list.setAttribute("aria-busy", "false");
    }

    for (const input of Object.values(inputs)) {
      input.addEventListener("input", () => {
        clearTimeout(waiting);
        list.setAttribute("aria-busy", "true");
        if (source.delay) waiting = setTimeout(() => extend(null), source.delay);
        else extend(null);
      });
    }
    // Do not replace a list that the reader filtered, extended or scrolled.
    const isAtRest = () => prompt === null && list.children.length <= PAGE && Object.values(inputs).every((input) => !input.value) && list.getBoundingClientRect().top > 0;
    window.moreSamples = () => { if (isAtRest()) extend(null); };
    const titles = { run: "run", kind: "kind", source: "data set", from: "from step", to: "to step", least: "reward from", most: "reward to", ended: "ending", words: "text", shading: "colour tokens by" };
    const shownFields = Object.entries(inputs).filter(([name, input]) => !({ run: data.runs.length < 2, source: !source.sources.length, shading: input.options?.length < 2 })[name]);
    extend(null);
    return section("Samples", make("div", { class: "filters" }, shownFields.map(([name, input]) => { input.id = `filter-${name}`; return field(titles[name], input); }), allPrompts), count, list, more);
  };

  const embedded = JSON.parse(document.getElementById("data").textContent);
  if (embedded) {
    for (const run of embedded.runs) { const { curves, memory, ...parts } = run; Object.assign(run, empty()); learn(run, { curves, memory, ...parts }); }
    show(embedded);
  } else follow();

  // Live page: requests news regularly and draws them.
  async function follow() {
    let data = null;
    for (;;) {
      try {
        const since = data ? `&since=${data.position}` : "", answer = await fetch(`data.json${location.search}${since}`);
        if (!answer.ok) throw new Error(await answer.text());
        const { runs, whole, ...rest } = await answer.json();
        // A run that continues in the same folder may have less data than before.
        if (whole) data = { runs: runs.map(empty) };
        Object.assign(data, rest);
        runs.forEach((news, at) => learn(data.runs[at], news));
        const changed = new Set(runs.flatMap((news) => Object.keys(news)));
        const filters = ["sample_kinds", "sample_sources", "has_tokens"].some((name) => changed.has(name));
        if (filters) changed.add("samples");
        show(data, whole ? null : changed);
        if (changed.has("samples_total") && !filters) window.moreSamples();
      } catch (error) {
        document.getElementById("when").textContent = `no response from the run's server: ${error.message}`;
      }
      await new Promise((done) => setTimeout(done, REFRESH_SECONDS * 1000));
    }
  }
})();
