import { useState } from "preact/hooks";
import { api, query, session, useData } from "../api.js";
import { bytes, count, plural } from "../format.js";
import { Badge, Change, Chart, Dialog, Field, Loading, Problem, Table, Title } from "../parts.jsx";

const STEPS = { none: "", "under way": "warning", done: "good", failed: "bad" };

export function Coordination() {
  const found = useData("coordination", 2000);
  const [open, setOpen] = useState("");
  const data = found.data;
  const store = data?.store;
  const move = data?.move;
  const running = move?.state === "under way";
  return (
    <>
      <Title actions={data?.isParley && <>{running ? <Change danger onClick={() => setOpen("abort")}>Abort the move…</Change> : <Change onClick={() => setOpen("move")}>Move to another store…</Change>}</>}>Coordination</Title>
      <Loading of={found} />
      {data && found.error && <Problem error={found.error} />}
      {data && !data.isParley && <p>This is not a Parley cluster: Apache Kafka keeps its metadata in a quorum of its own controllers. <a href="#/features">Features</a> shows its level.</p>}
      {move && <section class="card" aria-live="polite">
        <p>The cluster uses <strong class="mono">{move.store}</strong>.</p>
        {move.state !== "none" && <p><Badge kind={STEPS[move.state]}>{move.state}</Badge> {running ? "A move is in progress: " : "Latest move: "}{move.step} <span class="quiet">{move.detail}</span></p>}
      </section>}
      {data?.storeError && <Problem error={new Error(data.storeError)} />}
      {data?.isParley && !store && !data.storeError && <p class="quiet">Start the console with --config server.properties or --coordination-url to see sessions, epochs and keys.</p>}
      {store && <>
        <p class="quiet">State <Badge kind={store.state === "in charge" || store.state === "active" ? "good" : ""}>{store.state}</Badge> · term {store.term} · cluster {store.clusterId} · controller {store.controller ?? "none"}, epoch {store.controllerEpoch} · {plural(store.sessions.length, "session")} · {store.watches.count === null ? "watches unknown" : plural(store.watches.count, "watch").replace("watchs", "watches")} ({store.watches.source})</p>
        <section class="charts"><Chart title="Latency of a read" unit="ms" values={data.latency.map((one) => ({ at: one.at, y: one.ms }))} /></section>
        <h2>Members</h2>
        <Table label="Members" head={["Broker", { number: "Epoch" }, "Session", "Listeners"]}>
          {store.members.map((one) => <tr><td>Broker {one.broker} {one.broker === store.controller && <Badge>controller</Badge>}</td><td class="number">{one.epoch}</td><td class="mono">{one.session}</td><td class="mono">{one.endpoints.join(" ")}</td></tr>)}
        </Table>
        <h2>What is stored</h2>
        <Table label="Sizes" head={["Kind", { number: "Keys" }, { number: "Size" }]}>
          {Object.entries(store.keys).map(([kind, one]) => <tr><td class="mono">{kind}</td><td class="number">{count(one.count)}</td><td class="number">{bytes(one.bytes)}</td></tr>)}
        </Table>
        <h2>Keys</h2>
        <ul class="tree"><Branch prefix="" /></ul>
      </>}
      {open === "move" && <Dialog title="Move to another store" submit="Begin the move" onClose={() => setOpen("")} onSubmit={async (form) => { await api("coordination/move", { method: "POST", body: { url: form.get("url") } }); setOpen(""); found.reload(); }}>
        <p>Clients are not interrupted. The new store must be empty, and every broker must reach it. The old store stays in charge until the move is done.</p>
        <Field label="URL of the new store" hint="As etcd://db1:2379/kafka, zookeeper://zk1:2181/kafka, consul://c1:8500/kafka or local:///var/lib/parley/new."><input name="url" required autofocus autocomplete="off" /></Field>
      </Dialog>}
      {open === "abort" && <Dialog title="Abort the move?" submit="Abort" danger onClose={() => setOpen("")} onSubmit={async () => { await api("coordination/move", { method: "POST", body: { abort: true } }); setOpen(""); found.reload(); }}><p>The old store stays in charge.</p></Dialog>}
    </>
  );
}

function Branch({ prefix }) {
  const [after, setAfter] = useState([""]);
  return after.map((from, at) => <Part prefix={prefix} from={from} onMore={at === after.length - 1 ? (next) => setAfter([...after, next]) : null} />);
}

function Part({ prefix, from, onMore }) {
  const found = useData(`coordination/tree${query({ prefix, after: from })}`);
  if (!found.data) return <li><Loading of={found} /></li>;
  return (
    <>
      {found.data.children.map((one) => (one.folder ? <Folder key={one.key} path={one.key} prefix={prefix} /> : <Key key={one.key} one={one} prefix={prefix} />))}
      {!found.data.children.length && <li class="quiet">no keys</li>}
      {found.data.after && onMore && <li><button type="button" class="plain" onClick={() => onMore(found.data.after)}>more…</button></li>}
    </>
  );
}

function Folder({ path, prefix }) {
  const [open, setOpen] = useState(false);
  return <li><button type="button" class="plain mono" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "▾" : "▸"} {path.slice(prefix.length)}</button>{open && <ul class="tree"><Branch prefix={path} /></ul>}</li>;
}

function Key({ one, prefix }) {
  const [open, setOpen] = useState(false);
  return (
    <li><button type="button" class="plain mono" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "▾" : "▸"} {one.key.slice(prefix.length) || "(here)"}</button> <span class="quiet small">{bytes(one.bytes)}{one.session && ` · session ${one.session}`}</span>
      {open && <pre tabindex="0">{one.value === null ? "not shown" : JSON.stringify(one.value, null, 2)}</pre>}</li>
  );
}
