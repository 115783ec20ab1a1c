import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { session } from "./api.js";

export function Problem({ error }) {
  if (!error) return null;
  const about = error.status === 403 ? "Not permitted. " : "";
  return <p class="problem" role="alert">{about}{error.message}</p>;
}

export function Loading({ of }) {
  if (of.error && !of.data) return <Problem error={of.error} />;
  return of.data ? null : <p class="quiet" role="status">Loading…</p>;
}

export function Title({ children, actions }) {
  return <header class="title"><h1>{children}</h1>{actions && <div class="actions">{actions}</div>}</header>;
}

// A change is offered only if the console permits changes.
export function Change({ children, onClick, danger, ...rest }) {
  if (session.readOnly) return null;
  return <button type="button" class={danger ? "danger" : ""} onClick={onClick} {...rest}>{children}</button>;
}

export function Table({ head, children, label, empty = "Nothing here." }) {
  const rows = [].concat(children).flat().filter(Boolean);
  return (
    <div class="scroll" tabindex="0" role="region" aria-label={label}>
      <table>
        <thead><tr>{head.map((name) => (typeof name === "string" ? <th scope="col">{name || <span class="hidden">Actions</span>}</th> : <th scope="col" class="number">{name.number}</th>))}</tr></thead>
        <tbody>{rows.length ? rows : <tr><td class="quiet" colSpan={head.length}>{empty}</td></tr>}</tbody>
      </table>
    </div>
  );
}

export function Pages({ data, onPage }) {
  if (!data || data.pages < 2) return data ? <p class="quiet small">{data.total.toLocaleString("en")} in all</p> : null;
  return (
    <nav class="pages" aria-label="Pages">
      <button type="button" disabled={data.page === 0} onClick={() => onPage(data.page - 1)}>Previous</button>
      <span>Page {data.page + 1} of {data.pages} · {data.total.toLocaleString("en")} in all</span>
      <button type="button" disabled={data.page + 1 >= data.pages} onClick={() => onPage(data.page + 1)}>Next</button>
    </nav>
  );
}

export function Search({ value, onInput, label }) {
  return <input type="search" class="search" placeholder={`${label} ( / )`} aria-label={label} value={value} onInput={(e) => onInput(e.currentTarget.value)} />;
}

// A value that settles: it changes only when its source has been still for a moment.
export function useSettled(value, ms = 200) {
  const [settled, setSettled] = useState(value);
  useEffect(() => { const timer = setTimeout(() => setSettled(value), ms); return () => clearTimeout(timer); }, [value, ms]);
  return settled;
}

export function Dialog({ title, children, onClose, onSubmit, submit, danger }) {
  const ref = useRef(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => { ref.current.showModal(); }, []);
  async function send(event) {
    event.preventDefault();
    setBusy(true);
    try { await onSubmit(new FormData(event.currentTarget)); } catch (problem) { setError(problem); }
    setBusy(false);
  }
  return (
    <dialog ref={ref} onClose={onClose} aria-label={title}>
      <form onSubmit={send}>
        <h2>{title}</h2>
        {children}
        <Problem error={error} />
        <div class="actions">
          <button type="button" onClick={() => ref.current.close()}>Cancel</button>
          {submit && <button type="submit" class={danger ? "danger" : "primary"} disabled={busy}>{submit}</button>}
        </div>
      </form>
    </dialog>
  );
}

export function Field({ label, hint, children }) {
  return <label class="field"><span>{label}</span>{children}{hint && <small>{hint}</small>}</label>;
}

export function Badge({ kind, children }) {
  return <span class={`badge ${kind || ""}`}>{children}</span>;
}

const SHORTEST_S = 60; // what a chart shows at least
const now = () => Date.now() / 1000;

// The values with a gap wherever none was taken for longer than `gapMs`, so that no line leads across it.
function withGaps(values, gapMs) {
  return values.flatMap((one, n) => (n && one.at - values[n - 1].at > gapMs ? [{ at: one.at - 1, y: null }, one] : [one]));
}

// A chart of one number over time. `values` are {at, y}.
export function Chart({ title, values: taken, unit, gapMs = Infinity }) {
  const values = useMemo(() => withGaps(taken, gapMs), [taken, gapMs]);
  const box = useRef(null);
  const plot = useRef(null);
  const latest = values.length ? values[values.length - 1].y : null;
  useEffect(() => {
    if (values.length < 2) return; // a line needs two points
    const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: () => color("--quiet"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const data = [values.map((v) => v.at / 1000), values.map((v) => v.y)];
    if (!plot.current) {
      plot.current = new uPlot({
        width: box.current.clientWidth || 300, height: 130, cursor: { y: false }, legend: { show: false },
        scales: { x: { range: (_, low, high) => [Math.min(low ?? now(), (high ?? now()) - SHORTEST_S), high ?? now()] }, y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.1] } },
        axes: [axis, { ...axis, size: 48, values: (_, ticks) => ticks.map((n) => (n >= 1e6 ? `${n / 1e6}M` : n >= 1e3 ? `${n / 1e3}k` : n)) }],
        series: [{}, { stroke: () => color("--accent"), width: 1.5, fill: () => color("--wash"), points: { show: false } }],
      }, data, box.current);
    } else plot.current.setData(data);
  }, [values]);
  useEffect(() => {
    const element = box.current;
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: 130 }));
    watch.observe(element);
    const redraw = () => plot.current?.redraw();
    window.addEventListener("theme", redraw);
    return () => { watch.disconnect(); window.removeEventListener("theme", redraw); plot.current?.destroy(); plot.current = null; };
  }, []);
  const shown = latest === null || latest === undefined ? "–" : latest.toLocaleString("en", { maximumFractionDigits: 1 });
  return (
    <figure class="chart">
      <figcaption>{title} <strong>{shown}</strong> <span class="quiet">{unit}</span></figcaption>
      <div ref={box} role="img" aria-label={`${title}: ${shown} ${unit} now`} />
    </figure>
  );
}
