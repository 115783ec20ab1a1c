import { useEffect, useRef, useState } from "preact/hooks";
import { api, part, query, useData } from "../api.js";
import { bytes, count, plural, when } from "../format.js";
import { Badge, Change, Dialog, Field, Loading, Pages, Problem, Search, Table, Title, useSettled } from "../parts.jsx";
import { Settings } from "./settings.jsx";

export function Topics() {
  const [search, setSearch] = useState("");
  const [internal, setInternal] = useState(false);
  const [troubled, setTroubled] = useState(false);
  const [sort, setSort] = useState("name");
  const [page, setPage] = useState(0);
  const [creating, setCreating] = useState(false);
  const settled = useSettled(search);
  const topics = useData(`topics${query({ search: settled, internal: internal && 1, troubled: troubled && 1, sort, page })}`, 5000);
  async function create(form) {
    const configs = Object.fromEntries((form.get("configs") || "").split("\n").map((one) => one.trim()).filter(Boolean).map((one) => { const at = one.indexOf("="); return [one.slice(0, at), one.slice(at + 1)]; }));
    const name = form.get("name");
    await api("topics", { method: "POST", body: { name, partitions: Number(form.get("partitions") || -1), replicas: Number(form.get("replicas") || -1), configs } });
    location.hash = `#/topic/${part(name)}`;
  }
  return (
    <>
      <Title actions={<Change onClick={() => setCreating(true)}>Create a topic…</Change>}>Topics</Title>
      <div class="tools">
        <Search label="Search topics" value={search} onInput={(text) => { setSearch(text); setPage(0); }} />
        <label><input type="checkbox" checked={internal} onChange={() => { setInternal(!internal); setPage(0); }} /> internal</label>
        <label><input type="checkbox" checked={troubled} onChange={() => { setTroubled(!troubled); setPage(0); }} /> only with problems</label>
        <label>Sort by <select value={sort} onChange={(e) => setSort(e.currentTarget.value)}><option value="name">name</option><option value="partitions">partitions</option><option value="records">records</option></select></label>
      </div>
      <Loading of={topics} />
      {topics.error && topics.data && <Problem error={topics.error} />}
      {topics.data && <Table label="Topics" head={["Topic", { number: "Partitions" }, { number: "Replicas" }, { number: "Records ever" }, "State"]} empty="No topic fits.">
        {topics.data.items.map((one) => <tr>
          <td><a href={`#/topic/${part(one.name)}`}>{one.name}</a> {one.internal && <Badge>internal</Badge>}</td>
          <td class="number">{count(one.partitions)}</td><td class="number">{one.replicas}</td><td class="number">{count(one.ends)}</td>
          <td>{one.offline ? <Badge kind="bad">{one.offline} without leader</Badge> : one.underReplicated ? <Badge kind="warning">{one.underReplicated} under-replicated</Badge> : <Badge kind="good">in sync</Badge>}</td>
        </tr>)}
      </Table>}
      <Pages data={topics.data} onPage={setPage} />
      {creating && <Dialog title="Create a topic" submit="Create" onClose={() => setCreating(false)} onSubmit={create}>
        <Field label="Name"><input name="name" required pattern="[a-zA-Z0-9._\-]+" maxlength="249" autofocus /></Field>
        <Field label="Partitions" hint="Empty: the cluster's default."><input name="partitions" type="number" min="1" /></Field>
        <Field label="Replicas of each" hint="Empty: the cluster's default."><input name="replicas" type="number" min="1" /></Field>
        <Field label="Settings" hint="A line key=value for each, as retention.ms=604800000."><textarea name="configs" rows="3" /></Field>
      </Dialog>}
    </>
  );
}

const TABS = [["partitions", "Partitions"], ["messages", "Messages"], ["settings", "Settings"]];

export function Topic({ name, tab = "partitions" }) {
  const topic = useData(`topics/${part(name)}`, 5000);
  const [open, setOpen] = useState("");
  const data = topic.data;
  const done = async () => { setOpen(""); await topic.reload(); };
  return (
    <>
      <Title actions={<><Change onClick={() => setOpen("produce")}>Produce…</Change><Change onClick={() => setOpen("grow")}>Add partitions…</Change><Change onClick={() => setOpen("trim")}>Delete records…</Change><Change danger onClick={() => setOpen("delete")}>Delete…</Change></>}>{name}</Title>
      <nav class="tabs" aria-label="Parts of the topic">{TABS.map(([id, title]) => <a href={`#/topic/${part(name)}/${id}`} aria-current={id === tab ? "page" : undefined}>{title}</a>)}</nav>
      <Loading of={topic} />
      {data && tab === "partitions" && <Partitions data={data} />}
      {data && tab === "messages" && <Messages name={name} partitions={data.partitions.length} />}
      {tab === "settings" && <Settings kind="topic" name={name} />}
      {open === "produce" && <Dialog title={`Produce to ${name}`} submit="Send" onClose={done} onSubmit={async (form) => { await api(`topics/${part(name)}/messages`, { method: "POST", body: { partition: Number(form.get("partition") || 0), key: form.get("key") || null, value: form.get("value") } }); await done(); }}>
        <Field label="Partition"><input name="partition" type="number" min="0" value="0" /></Field><Field label="Key" hint="Empty: no key."><input name="key" /></Field><Field label="Value"><textarea name="value" rows="6" autofocus /></Field>
      </Dialog>}
      {open === "grow" && <Dialog title="Add partitions" submit="Add" onClose={done} onSubmit={async (form) => { await api(`topics/${part(name)}/partitions`, { method: "POST", body: { count: Number(form.get("count")) } }); await done(); }}>
        <p>Records of a key go to another partition from then on. Partitions cannot be removed.</p><Field label="Partitions in all"><input name="count" type="number" min={(data?.partitions.length ?? 0) + 1} required autofocus /></Field>
      </Dialog>}
      {open === "trim" && <Dialog title="Delete records" submit="Delete" danger onClose={done} onSubmit={async (form) => { await api(`topics/${part(name)}/delete-records`, { method: "POST", body: { partition: Number(form.get("partition")), offset: Number(form.get("offset")) } }); await done(); }}>
        <Field label="Partition"><input name="partition" type="number" min="0" value="0" required /></Field><Field label="Before this offset" hint="-1: all records that are there now."><input name="offset" type="number" min="-1" required /></Field>
      </Dialog>}
      {open === "delete" && <Dialog title={`Delete ${name}?`} submit="Delete the topic" danger onClose={() => setOpen("")} onSubmit={async (form) => { if (form.get("name") !== name) throw new Error("The name is another."); await api(`topics/${part(name)}`, { method: "DELETE" }); location.hash = "#/topics"; }}>
        <p>All its records are lost.</p><Field label="Type the topic's name"><input name="name" required autocomplete="off" /></Field>
      </Dialog>}
    </>
  );
}

function Partitions({ data }) {
  const alive = new Set(data.alive);
  return (
    <>
      <p class="quiet">{plural(data.partitions.length, "partition")} · {count(data.partitions.reduce((sum, one) => sum + Math.max((one.end ?? 0) - (one.first ?? 0), 0), 0))} offsets held · id <span class="mono">{data.id}</span></p>
      <h2>Where the replicas lie</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Where the replicas lie">
        <table class="map">
          <thead><tr><th scope="col">Partition</th>{data.brokers.map((id) => <th scope="col" class={alive.has(id) ? "" : "down"}>{id}{!alive.has(id) && " (down)"}</th>)}<th scope="col" class="number">Size</th><th scope="col" class="number">First</th><th scope="col" class="number">End</th><th scope="col">In sync</th></tr></thead>
          <tbody>{data.partitions.slice(0, 1000).map((one) => <tr>
            <th scope="row">{one.index}</th>
            {data.brokers.map((id) => {
              if (!one.replicas.includes(id)) return <td />;
              const kind = one.leader === id ? "leader" : one.isr.includes(id) ? "follower" : "behind";
              const text = one.leader === id ? "leads" : one.isr.includes(id) ? "in sync" : one.adding.includes(id) ? "joining" : "behind";
              return <td><span class={`cell ${kind}`} title={`Broker ${id} ${text}`}>{text}</span></td>;
            })}
            <td class="number">{bytes(one.bytes)}</td><td class="number">{count(one.first)}</td><td class="number">{count(one.end)}</td>
            <td>{one.leader < 0 ? <Badge kind="bad">no leader</Badge> : one.isr.length < one.replicas.length ? <Badge kind="warning">{one.isr.length} of {one.replicas.length}</Badge> : <Badge kind="good">{one.isr.length} of {one.replicas.length}</Badge>}</td>
          </tr>)}</tbody>
        </table>
      </div>
    </>
  );
}

function shown(data) {
  if (data.kind === "null") return <em class="quiet">null</em>;
  if (data.kind === "binary") return <span class="mono quiet">{data.problem && <Badge kind="warning">not decoded</Badge>} {data.schema && `${data.schema} · `}{bytes(data.bytes)} · {data.base64.slice(0, 80)}</span>;
  return <span class="mono">{data.text.slice(0, 300)}{data.text.length > 300 && "…"}</span>;
}

function whole(data) {
  if (data.kind !== "json") return data.text ?? data.base64 ?? "null";
  try { return JSON.stringify(JSON.parse(data.text), null, 2); } catch { return data.text; }
}

function Part({ name, data }) {
  return (
    <>
      <h3>{name} ({bytes(data.bytes)}{data.schema && `, ${data.schema}`}{data.cut && ", cut off"})</h3>
      {data.problem && <p class="problem">{data.problem}</p>}
      <pre tabindex="0">{whole(data)}</pre>
    </>
  );
}

function Row({ one }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      <tr>
        <td><button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)} aria-label={`Record ${one.partition}-${one.offset}`}>{open ? "▾" : "▸"} {one.partition}</button></td>
        <td class="number">{count(one.offset)}</td><td class="nowrap">{when(one.timestamp)}</td><td>{shown(one.key)}</td><td>{shown(one.value)}</td>
      </tr>
      {open && <tr class="open"><td colSpan={5}>
        {one.headers.length > 0 && <><h3>Headers</h3><dl>{one.headers.map((each) => <div><dt>{each.name}</dt><dd>{shown(each.value)}</dd></div>)}</dl></>}
        <Part name="Key" data={one.key} /><Part name="Value" data={one.value} />
      </td></tr>}
    </>
  );
}

function Messages({ name, partitions }) {
  const [asked, setAsked] = useState({ from: "latest", limit: 50 });
  const [from, setFrom] = useState("latest");
  const [tailing, setTailing] = useState(null);
  const [live, setLive] = useState([]);
  const [problem, setProblem] = useState(null);
  const stream = useRef(null);
  const found = useData(tailing ? "" : `topics/${part(name)}/messages${query(asked)}`);
  useEffect(() => () => stream.current?.close(), []);
  const stop = () => { stream.current?.close(); setTailing(null); };
  function wanted(form) {
    const value = form.get("value");
    return { from, value: from === "time" ? Date.parse(`${value}Z`) : value, partition: form.get("partition"), limit: form.get("limit"), filter: form.get("filter") };
  }
  function search(event) {
    event.preventDefault();
    stop();
    setProblem(null);
    setAsked({ ...wanted(new FormData(event.currentTarget)), again: Date.now() });
  }
  function tail(event) {
    if (tailing) return stop();
    setLive([]);
    setProblem(null);
    const { partition, filter } = wanted(new FormData(event.currentTarget.form));
    stream.current = new EventSource(`/api/topics/${part(name)}/tail${query({ partition, filter })}`);
    setTailing("connecting");
    stream.current.onmessage = (message) => { setTailing("live"); const { records } = JSON.parse(message.data); if (records.length) setLive((old) => [...records.reverse(), ...old].slice(0, 500)); };
    stream.current.addEventListener("failed", (message) => { setProblem(new Error(JSON.parse(message.data).error)); stop(); });
  }
  const records = tailing ? live : found.data?.records || [];
  return (
    <>
      <form class="tools" onSubmit={search}>
        <label>From <select value={from} onChange={(e) => setFrom(e.currentTarget.value)}><option value="latest">the latest</option><option value="earliest">the earliest</option><option value="offset">an offset</option><option value="time">a time (UTC)</option></select></label>
        {from === "offset" && <label>Offset <input name="value" type="number" min="0" required /></label>}
        {from === "time" && <label>Time <input name="value" type="datetime-local" step="1" required /></label>}
        <label>Partition <select name="partition"><option value="">all</option>{Array.from({ length: Math.min(partitions, 1000) }, (_, at) => <option>{at}</option>)}</select></label>
        <label>Show <select name="limit"><option>50</option><option>200</option><option>500</option></select></label>
        <label class="grow">Filter <input name="filter" class="search mono" placeholder='value.amount > 100 and contains(key, "a")' /></label>
        <button type="submit" class="primary">Search</button>
        <button type="button" aria-pressed={!!tailing} onClick={tail}>{tailing ? "Stop" : "Follow live"}</button>
      </form>
      <Problem error={problem || found.error} />
      <p class="quiet small" role="status">{tailing ? `Live: ${plural(live.length, "record")} so far` : found.data ? `${plural(records.length, "record")}, ${count(found.data.scanned)} read${found.data.complete ? "" : "; more are there"}` : "Loading…"}</p>
      <Table label="Records" head={["Partition", { number: "Offset" }, "Time (UTC)", "Key", "Value"]} empty={tailing ? "Waiting for new records." : "No record fits."}>
        {records.map((one) => <Row key={`${one.partition}-${one.offset}`} one={one} />)}
      </Table>
    </>
  );
}
