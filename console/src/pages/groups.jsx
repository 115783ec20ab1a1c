import { useEffect, useRef, useState } from "preact/hooks";
import { api, part, query, useData } from "../api.js";
import { count } from "../format.js";
import { Badge, Change, Chart, Dialog, Field, Loading, Pages, Problem, Search, Table, Title, useSettled } from "../parts.jsx";

const good = { Stable: "good", Empty: "", Dead: "bad" };

export function Groups() {
  const [search, setSearch] = useState("");
  const [type, setType] = useState("");
  const [page, setPage] = useState(0);
  const settled = useSettled(search);
  const groups = useData(`groups${query({ search: settled, type, page })}`, 5000);
  return (
    <>
      <Title>Groups</Title>
      <div class="tools">
        <Search label="Search groups" value={search} onInput={(text) => { setSearch(text); setPage(0); }} />
        <label>Type <select value={type} onChange={(e) => { setType(e.currentTarget.value); setPage(0); }}>
          <option value="">all</option>{["Consumer", "Classic", "Share", "Streams"].map((one) => <option>{one}</option>)}
        </select></label>
      </div>
      <Loading of={groups} />
      {groups.data && <Table label="Groups" head={["Group", "Type", "State", "Protocol"]} empty="No group fits.">
        {groups.data.items.map((one) => <tr><td><a href={`#/group/${part(one.name)}`}>{one.name}</a></td><td>{one.type}</td><td><Badge kind={good[one.state] ?? "warning"}>{one.state}</Badge></td><td>{one.protocol_type || "–"}</td></tr>)}
      </Table>}
      <Pages data={groups.data} onPage={setPage} />
    </>
  );
}

function Reset({ name, onClose }) {
  const [preview, setPreview] = useState(null);
  const [target, setTarget] = useState("to_earliest");
  const sent = useRef(null);
  async function submit(form) {
    const value = form.get("value");
    const body = preview ? { ...sent.current, execute: true } : {
      target, topics: (form.get("topics") || "").split(/\s+/).filter(Boolean),
      ...(target === "to_datetime" ? { value } : target === "to_offset" || target === "shift_by" ? { value: Number(value) } : {}),
    };
    sent.current = body;
    const found = await api(`groups/${part(name)}/reset`, { method: "POST", body });
    if (body.execute) onClose(); else setPreview(found.offsets);
  }
  return (
    <Dialog title={`Reset offsets of ${name}`} onClose={onClose} onSubmit={submit} submit={preview ? "Commit these offsets" : "Preview"} danger={!!preview}>
      {!preview && <>
        <Field label="New offsets"><select value={target} onChange={(e) => setTarget(e.currentTarget.value)}>
          <option value="to_earliest">the earliest</option><option value="to_latest">the latest</option><option value="to_offset">a number</option>
          <option value="shift_by">shifted by</option><option value="to_datetime">those at a time (UTC)</option>
        </select></Field>
        {["to_offset", "shift_by"].includes(target) && <Field label="Number"><input name="value" type="number" required /></Field>}
        {target === "to_datetime" && <Field label="Time, as 2026-01-31T08:30:00.000"><input name="value" required /></Field>}
        <Field label="Topics" hint="Separated by spaces, as orders or orders:0,1. Empty: all that the group has read."><input name="topics" /></Field>
      </>}
      {preview && <Table label="New offsets" head={["Partition", { number: "New offset" }]} empty="No offset would change.">
        {preview.slice(0, 500).map((one) => <tr><td>{one.topic}-{one.partition}</td><td class="number">{count(one.offset)}</td></tr>)}
      </Table>}
    </Dialog>
  );
}

const lagOf = (data) => (data.offsets || []).reduce((sum, one) => sum + Math.max(one.lag || 0, 0), 0);

export function Group({ name }) {
  const group = useData(`groups/${part(name)}/detail`, 4000);
  const [open, setOpen] = useState("");
  const [lags, setLags] = useState([]);
  const data = group.data;
  useEffect(() => { if (data) setLags((old) => [...old.slice(-900), { at: Date.now(), y: lagOf(data) }]); }, [data]);
  const offsets = data?.offsets || [];
  return (
    <>
      <Title actions={<><Change onClick={() => setOpen("reset")}>Reset offsets…</Change><Change danger onClick={() => setOpen("delete")}>Delete…</Change></>}>{name}</Title>
      <Loading of={group} />
      {data && <>
        {group.error && <Problem error={group.error} />}
        <p class="quiet">{data.type} group · <Badge kind={good[data.state] ?? "warning"}>{data.state}</Badge> {data.assignmentStrategy && `· ${data.assignmentStrategy} `}{data.coordinator && `· coordinated by broker ${data.coordinator.id}`}{data.groupEpoch !== null && data.groupEpoch !== undefined && ` · epoch ${data.groupEpoch}`}</p>
        <section class="charts"><Chart title="Lag" unit="records" values={lags} /></section>
        <h2>Members</h2>
        <Table label="Members" head={["Member", "Client", "Host", "Assignment"]} empty="The group has no members.">
          {(data.members || []).map((one) => <tr>
            <td class="mono">{one.groupInstanceId || one.consumerId || one.memberId}</td><td>{one.clientId}</td><td class="mono">{one.host}</td>
            <td>{Object.entries(one.assignment || {}).map(([topic, list]) => <div>{topic}: {Array.isArray(list) ? list.join(", ") : JSON.stringify(list)}</div>)}</td>
          </tr>)}
        </Table>
        <h2>Offsets</h2>
        <Table label="Offsets" head={["Partition", { number: "Committed" }, { number: "End" }, { number: "Lag" }, "Read by"]} empty="The group has committed nothing.">
          {offsets.slice(0, 1000).map((one) => <tr><td><a href={`#/topic/${part(one.topic)}`}>{one.topic}</a>-{one.partition}</td><td class="number">{count(one.currentOffset ?? one.startOffset)}</td><td class="number">{count(one.logEndOffset)}</td><td class="number">{one.lag > 0 ? <strong>{count(one.lag)}</strong> : count(one.lag)}</td><td class="mono">{one.consumerId || "–"}</td></tr>)}
        </Table>
      </>}
      {open === "reset" && <Reset name={name} onClose={() => { setOpen(""); group.reload(); }} />}
      {open === "delete" && <Dialog title={`Delete ${name}?`} submit="Delete the group" danger onClose={() => setOpen("")} onSubmit={async () => { await api(`groups/${part(name)}/delete`, { method: "POST" }); location.hash = "#/groups"; }}><p>Its committed offsets are lost.</p></Dialog>}
    </>
  );
}
