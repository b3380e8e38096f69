"use strict";
// Draws the page from its embedded data or from its server. Texts of a run are set as text, never as
// markup.

const COLOURS = ["#1f5a96", "#b3541e", "#2e7d4f", "#7a5ba6", "#b0447f", "#17a2a2", "#8a6d00", "#4d4d4d", "#c0504d", "#5b9bd5"];
const REFRESH_SECONDS = 5;
// A chart with more curves is as wide as the page.
const MANY_CURVES = 5;
// Pixels above a chart for its buttons, which a touch screen always shows.
const BUTTONS = 32;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}\p{Cs}]/gu;

const scripts = (names) => names.split(" ").map((name) => `\\p{scx=${name}}`).join("");
const CURSIVE = scripts("Arab Syrc Mong Nkoo Adlm Rohg Mand"), INDIC = scripts("Devanagari Bengali Guru Gujr Orya Taml Telu Knda Mlym Sinh Khmr Mymr Tibt");
const EMOJI = "\\p{ExtPict}[\\ufe0f\\p{EMod}]*";
// Joiners and tags that the writing needs (UAX 31, UTS 51): emoji, flags, cursive and Indic words.
const WRITTEN = new RegExp(`${EMOJI}(?:\\u200d${EMOJI})+|\\u{1f3f4}[\\u{e0061}-\\u{e007a}]{3,6}\\u{e007f}|(?<=[${CURSIVE}])[\\u200c\\u200d](?=[${CURSIVE}])|(?<=[${INDIC}])[\\u200c\\u200d](?![\\u200c\\u200d])`, "gu");

const spelled = (char) => (char.length > 1 ? `\\u{${char.codePointAt(0).toString(16)}}` : `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);

// Escapes characters that hide or reorder text; the parts are read as one text.
function shownParts(parts) {
  const written = new Set();
  for (const found of parts.join("").matchAll(WRITTEN)) {
    for (let at = 0; at < found[0].length; at += 1) written.add(found.index + at);
  }
  let start = 0;
  return parts.map((part) => {
    const text = part.replace(HIDDEN, (char, at) => (written.has(start + at) ? char : spelled(char)));
    start += part.length;
    return text;
  });
}

const shown = (text) => shownParts([String(text)])[0];

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) node.append(child instanceof Node ? child : shown(child));
  }
  return node;
}

// Plotly interprets some tags in labels.
const label = (text) => shown(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");

function number(value, digits = 4) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  const whole = Math.round(seconds), two = (part) => String(part).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

function table(heads, rows) {
  const body = rows.map((row) => make("tr", {}, row.map((cell) => make("td", { class: typeof cell === "number" ? "number" : null }, cell instanceof Node ? cell : number(cell)))));
  const head = heads.length ? make("thead", {}, make("tr", {}, heads.map((title) => make("th", {}, title)))) : null;
  return make("div", { class: "scrolls" }, make("table", {}, head, make("tbody", {}, body)));
}

function section(title, ...children) {
  const id = title.toLowerCase().replace(/[^a-z]+/g, "-");
  return make("section", {}, make("h2", { id }, title), children);
}

// ---- curves

function fits(pattern) {
  const parts = pattern.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\/]/g, "\\$&"));
  return new RegExp(`^${parts.join(".+")}$`);
}

function namesOf(chart, run) {
  const found = Object.keys(run.curves).filter((name) => !/_(low|high)$/.test(name) && !chart.leaves_out.includes(name));
  return [...new Set(chart.names.flatMap((pattern) => found.filter((name) => fits(pattern).test(name))))];
}

function faint(colour, share) {
  const part = (at) => parseInt(colour.slice(at, at + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${share})`;
}

function band(curve, low, high, colour) {
  const x = [...curve.steps, ...[...curve.steps].reverse()];
  return { x, y: [...high, ...[...low].reverse()], fill: "toself", fillcolor: faint(colour, 0.15), line: { width: 0 }, hoverinfo: "skip", showlegend: false, type: "scatter", mode: "lines" };
}

function bandOf(chart, run, name, curve, colour) {
  const low = run.curves[`${name}_low`], high = run.curves[`${name}_high`];
  if (low && high) return [band(curve, low.values, high.values, colour)];
  const spread = name === chart.names[0] && chart.spread && run.curves[chart.spread];
  if (!spread) return [];
  const off = (sign) => curve.values.map((value, at) => (value === null ? null : value + sign * (spread.values[at] ?? 0)));
  return [band(curve, off(-1), off(1), colour)];
}

// Removes the common start of the curves' names, which the chart's title contains.
function shortened(names) {
  if (names.length < 2) return names;
  const split = names.map((name) => name.split(/(?<=[/])/));
  const same = (at) => split.every((parts) => parts.length > at + 1 && parts[at] === split[0][at]);
  let start = 0;
  while (same(start)) start += 1;
  return split.map((parts) => parts.slice(start).join("").replace(/_bytes$/, ""));
}

function lines(chart, runs) {
  const several = runs.length > 1, titles = new Map();
  const all = [...new Set(runs.flatMap((run) => namesOf(chart, run)))], size = chart.unit === "bytes" ? 2 ** 20 : 1;
  shortened(all).forEach((short, at) => titles.set(all[at], short));
  let count = 0;
  return runs.flatMap((run, place) => namesOf(chart, run).flatMap((name, nth) => {
    const curve = run.curves[name], colour = COLOURS[(several && chart.names.length === 1 ? place : count) % COLOURS.length];
    count += 1;
    const title = several ? `${run.name} ${all.length > 1 ? titles.get(name) : ""}` : titles.get(name);
    const few = curve.steps.length < 30;
    return [...bandOf(chart, run, name, curve, colour), {
      x: curve.steps, y: curve.values.map((value) => (value === null ? null : value / size)), name: label(title), type: "scatter", mode: few ? "lines+markers" : "lines",
      line: { color: colour, width: 1.6, dash: several && nth ? "dot" : "solid" }, marker: { size: 4 },
    }];
  }));
}

function stages(chart, runs) {
  const run = runs[0], whole = run.curves["seconds/step"];
  if (!whole) return [];
  const rest = new Map(whole.steps.map((step, at) => [step, whole.values[at]]));
  const stacked = (name, colour, x, y) => ({ x, y, name: label(name), type: "scatter", mode: "lines", stackgroup: "step", line: { width: 0.5, color: colour } });
  const drawn = namesOf(chart, run).map((name, at) => {
    const values = new Map(run.curves[name].steps.map((step, place) => [step, run.curves[name].values[place]]));
    for (const [step, seconds] of values) rest.set(step, (rest.get(step) ?? 0) - seconds);
    return stacked(name.replace("seconds/", ""), COLOURS[at % COLOURS.length], whole.steps, whole.steps.map((step) => values.get(step) ?? 0));
  });
  return [...drawn, stacked("other", "#b7bec8", whole.steps, whole.steps.map((step) => Math.max(0, rest.get(step))))];
}

function faultLines(runs) {
  return runs.flatMap((run) => run.faults.map((fault) => ({ type: "line", x0: fault.step, x1: fault.step, y0: 0, y1: 1, yref: "paper", line: { color: "#a3231f", width: 1, dash: "dash" } })));
}

function layout(chart, runs) {
  return {
    margin: { l: 58, r: 10, t: BUTTONS, b: 28 }, hovermode: "x unified", legend: { orientation: "h", y: -0.12, font: { size: 11 } },
    xaxis: { zeroline: false, hoverformat: "d", unifiedhovertitle: { text: "step %{x}" } }, shapes: faultLines(runs), font: { size: 11 },
    yaxis: {
      title: { text: label(chart.unit === "bytes" ? "MiB" : chart.unit), font: { size: 11 } }, zeroline: false, exponentformat: "power",
      type: chart.is_log ? "log" : "linear", rangemode: ["bytes", "s", "responses"].includes(chart.unit) ? "tozero" : "normal",
    },
  };
}

// Plotly's button that uploads a chart is off, and it has no address.
const OPTIONS = { displaylogo: false, responsive: true, showSendToCloud: false, plotlyServerURL: "", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
// Draws a chart when it becomes visible, so that a page with many charts opens fast.
const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
  if (!entry.isIntersecting) return;
  seen.unobserve(entry.target);
  entry.target.draw();
  entry.target.isDrawn = true;
}), { rootMargin: "300px" });

// A live page redraws an existing chart in place and keeps its zoom.
const plots = new Map();

function picture(title, help, wide, draw) {
  const plot = plots.get(title) ?? make("div", { class: "plot" });
  plot.draw = () => draw(plot);
  if (plot.isDrawn) plot.draw();
  else seen.observe(plot);
  plots.set(title, plot);
  return make("div", { class: wide ? "chart wide" : "chart" }, make("h3", {}, title), help ? make("p", {}, help) : null, plot);
}

function charts(data) {
  return [...new Set(data.charts.map((chart) => chart.section))].map((title) => {
    const cards = data.charts.filter((chart) => chart.section === title).flatMap((chart) => {
      const staged = chart.kind === "stages", groups = staged ? data.runs.map((run) => [run]) : [data.runs];
      return groups.filter((runs) => runs.some((run) => namesOf(chart, run).length)).map((runs) => {
        const name = staged && data.runs.length > 1 ? `${chart.title}: ${runs[0].name}` : chart.title;
        const wide = staged || new Set(runs.flatMap((run) => namesOf(chart, run))).size > MANY_CURVES;
        return picture(name, chart.help, wide, (plot) => Plotly.react(plot, staged ? stages(chart, runs) : lines(chart, runs), layout(chart, runs), OPTIONS));
      });
    });
    const extra = title === "Memory" ? data.runs.filter((run) => run.memory.length).map(memoryChart) : [];
    if (title === "Time") data.runs.filter((run) => run.traces.length).forEach((run) => extra.push(tracesOf(run)));
    return cards.length || extra.length ? section(title, make("div", { class: "charts" }, cards, extra)) : null;
  });
}

function tracesOf(run) {
  const where = `${run.folder}: ${run.traces.join(", ")}. Perfetto (ui.perfetto.dev) and chrome://tracing open them.`;
  return make("div", { class: "chart" }, make("h3", {}, "Timelines of steps"), make("p", {}, where));
}

// ---- device memory at each moment

function memoryChart(run) {
  const workers = [...new Set(run.memory.map((moment) => moment.worker))];
  const choice = make("select", {}, workers.map((worker) => make("option", { value: worker }, worker)));
  const card = picture(`Device memory at each moment: ${run.name}`, "All bars have the same width, although a move takes milliseconds and a phase minutes. Lines show the plan.", true, (plot) => {
    const draw = () => Plotly.react(plot, moments(run.memory.filter((moment) => moment.worker === choice.value)), {
      ...layout({ unit: "MiB" }, []), barmode: "stack", bargap: 0, hovermode: "closest", margin: { l: 58, r: 10, t: BUTTONS, b: 110 },
      xaxis: { tickangle: -60, automargin: true }, legend: { orientation: "v", x: 1.01, y: 1 },
    }, OPTIONS);
    choice.addEventListener("change", draw);
    draw();
  });
  card.insertBefore(choice, card.lastChild);
  return card;
}

function moments(found) {
  const x = found.map((moment) => `${moment.index} ${label(moment.label)}`), mib = (bytes) => bytes / 2 ** 20;
  const regions = [...new Set(found.flatMap((moment) => Object.keys(moment.region_bytes)))];
  const bars = regions.map((region, at) => ({ x, y: found.map((moment) => mib(moment.region_bytes[region] ?? 0)), name: label(region), type: "bar", marker: { color: COLOURS[at % COLOURS.length] } }));
  const marks = [["predicted_bytes", "predicted", "line-ew-open"], ["allocated_bytes", "allocator's peak", "x-thin-open"]];
  return [...bars, ...marks.filter(([key]) => found.some((moment) => moment[key] !== null)).map(([key, name, symbol]) => ({
    x, y: found.map((moment) => (moment[key] === null ? null : mib(moment[key]))), name, type: "scatter", mode: "markers", marker: { symbol, size: 14, color: "#111", line: { width: 2 } },
  }))];
}

// ---- overview

const last = (run, name) => { const curve = run.curves[name]; return curve ? curve.values[curve.values.length - 1] : null; };

function timeLeft(run) {
  const seconds = run.curves["seconds/step"];
  if (!seconds || run.summary || !run.steps) return null;
  const recent = seconds.values.slice(-20);
  return (recent.reduce((sum, each) => sum + each, 0) / recent.length) * (run.steps - run.step);
}

function overview(data) {
  const rows = [
    ["status", (run) => make("span", { class: `status-${run.status}` }, run.status)],
    ["step", (run) => `${run.step} of ${run.steps ?? "?"}`],
    ["accuracy", (run) => { const curve = run.curves["evaluation/accuracy"]; return curve ? `${number(curve.values[0], 3)} → ${number(last(run, "evaluation/accuracy"), 3)}` : "-"; }],
    ["reward of the newest step", (run) => last(run, "reward/mean")],
    ["duration", (run) => duration(run.summary?.seconds)],
    ["time left", (run) => duration(timeLeft(run))],
    ["response tokens per second", (run) => run.summary?.response_tokens_per_second ?? last(run, "throughput/response_tokens_per_second")],
    ["largest mean log-prob gap", (run) => run.summary?.logprob_gap_max_mean],
    ["restarts", (run) => run.summary?.restarts ?? run.faults.length],
    ["steps without signal", (run) => run.summary?.steps_without_signal],
    ["folder", (run) => run.folder],
    ["overrides", (run) => run.overrides.join(" ")],
  ];
  return section("Overview", table(["", ...data.runs.map((run) => run.name)], rows.map(([name, read]) => [name, ...data.runs.map(read)])), data.runs.flatMap((run) => (run.advice ?? []).map(adviceBox)));
}

function adviceBox(advice) {
  return make("div", { class: "advice" }, make("strong", {}, advice.title), make("div", {}, advice.evidence), make("ul", {}, advice.change.map((text) => make("li", {}, text))));
}

function faults(data) {
  const rows = data.runs.flatMap((run) => run.faults.map((fault) => [run.name, fault.step, new Date(fault.time * 1000).toLocaleString(), fault.kind, `after step ${fault.resumed_behind}`, make("details", {}, make("summary", {}, shown(fault.error).split("\n")[0]), make("pre", {}, fault.error))]));
  return rows.length && section("Faults and restarts", make("p", { class: "help" }, "Dashed red lines in the charts."), table(["run", "step", "time", "fault", "continued", ""], rows));
}

function configuration(data) {
  const names = data.runs.map((run) => run.name);
  const differing = data.differences.length ? table(["key", ...names], data.differences.map((row) => [row.key, ...row.values.map((value) => value ?? "-")])) : make("p", {}, "The runs have equal configurations.");
  const all = data.runs.map((run) => make("details", {}, make("summary", {}, `all keys of ${run.name}`), table([], Object.entries(run.config))));
  const follows = data.runs.filter((run) => Object.keys(run.numbers).length).map((run) => make("details", {}, make("summary", {}, `derived numbers of ${run.name}`), table([], Object.entries(run.numbers))));
  return section("Configuration", data.runs.length > 1 ? [make("h3", {}, "Differences"), differing] : null, follows, all);
}

function planned(data) {
  const mib = (bytes) => Number((bytes / 2 ** 20).toFixed(1)), several = data.runs.length > 1;
  const rows = data.runs.flatMap((run) => run.planned.map((each) => [several ? `${run.name} ${each.name}` : each.name, mib(each.planned), mib(each.median), mib(each.most)]));
  return rows.length && section("Plan", make("p", { class: "help" }, "MiB: memory of the worker with the largest value, or bytes copied by all workers in a step."), table(["", "planned", "measured median", "measured maximum"], rows));
}

// The parts of the page in order, each with the data of a run that it shows; without any it shows all.
const PARTS = [[overview], [charts, "curves", "memory", "faults", "traces"], [faults, "faults"], [planned, "planned"], [(data) => window.sampleBrowser(data), "samples"], [configuration, "config", "numbers"]];

// Draws the parts that show changed data; all parts if `changed` is null.
function show(data, changed = null) {
  const main = document.getElementById("main");
  if (changed === null) main.replaceChildren(...PARTS.map(() => make("div")));
  PARTS.forEach(([draw, ...about], at) => {
    if (changed === null || !about.length || about.some((name) => changed.has(name))) main.children[at].replaceChildren(...[draw(data)].flat().filter(Boolean));
  });
  const links = [...main.querySelectorAll("h2")].map((head) => make("a", { href: `#${head.id}` }, head.textContent));
  document.getElementById("contents").replaceChildren(...links);
  document.getElementById("title").textContent = shown(data.runs.map((run) => run.name).join(" | "));
  document.getElementById("when").textContent = `as of ${new Date(data.written * 1000).toLocaleString()}`;
  document.body.dataset.ready = "yes";
}

// Adds news from the server to the data of a run.
function learn(run, { curves = {}, memory, ...parts }) {
  Object.assign(run, parts);
  for (const [name, { start, steps, values }] of Object.entries(curves)) {
    const before = run.curves[name] ?? { steps: [], values: [] };
    run.curves[name] = { steps: [...before.steps.slice(0, start), ...steps], values: [...before.values.slice(0, start), ...values] };
  }
  if (memory) run.memory = [...run.memory, ...memory.rows].slice(-memory.kept);
}

const empty = () => ({ curves: {}, memory: [] });
