import { useState } from "preact/hooks";
import { api, part, query, useData } from "../api.js";
import { count, plural } from "../format.js";
import { Badge, Change, Dialog, Loading, Pages, Problem, Search, Table, Title, useSettled } from "../parts.jsx";

const KINDS = { RUNNING: "good", FAILED: "bad", PAUSED: "warning", STOPPED: "warning", UNASSIGNED: "warning" };
const State = ({ state }) => <Badge kind={KINDS[state] || ""}>{state.toLowerCase()}</Badge>;
const ACTIONS = { pause: "Pause", resume: "Resume", restart: "Restart", "restart-failed": "Restart failed tasks" };

// The last line of the first trace: the error itself, whether the worker is Python's or Java's.
function reason(one) {
  const trace = [one, ...one.tasks].find((each) => each.state === "FAILED" && each.trace)?.trace || "";
  const lines = trace.trim().split("\n").filter((line) => !line.startsWith("\tat ") && !line.trim().startsWith("..."));
  return (lines.length ? lines[lines.length - 1] : "").slice(0, 200);
}

function Connector({ one, url, onChange }) {
  const [open, setOpen] = useState(false);
  const [asked, setAsked] = useState("");
  const failed = one.failed > 0 || one.state === "FAILED";
  async function send() {
    await api(`connectors/${one.worker}/${part(one.name)}/${asked}`, { method: "POST", body: {} });
    setAsked("");
    await onChange();
  }
  return (
    <>
      <tr>
        <td><button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)} aria-label={`Connector ${one.name}`}>{open ? "▾" : "▸"} {one.name}</button></td>
        <td>{one.type}</td><td><State state={one.state} /></td>
        <td>{one.failed ? <Badge kind="bad">{one.failed} of {plural(one.tasks.length, "task")} failed</Badge> : plural(one.tasks.length, "task")}{failed && <div class="quiet small">{reason(one)}</div>}</td>
        <td class="number">{count(one.lag)}</td>
        <td><div class="actions">
          {one.state === "PAUSED" ? <Change onClick={() => setAsked("resume")}>Resume…</Change> : <Change onClick={() => setAsked("pause")}>Pause…</Change>}
          <Change onClick={() => setAsked(failed ? "restart-failed" : "restart")}>Restart…</Change>
        </div></td>
      </tr>
      {open && <tr class="open"><td colSpan={6}>
        <p class="quiet">{one.class} · worker {url}{one.workerId && ` · runs at ${one.workerId}`}</p>
        {one.trace && <pre tabindex="0">{one.trace}</pre>}
        {one.tasks.map((task) => <div key={task.id}><h3>Task {task.id} <State state={task.state} /> {task.workerId}</h3>{task.trace && <pre tabindex="0">{task.trace}</pre>}</div>)}
      </td></tr>}
      {asked && <Dialog title={`${ACTIONS[asked]}: ${one.name}?`} submit={ACTIONS[asked]} danger={asked === "pause"} onClose={() => setAsked("")} onSubmit={send}>
        <p>{asked === "pause" ? "Its tasks stop until it is resumed; its offsets stay." : asked === "resume" ? "Its tasks continue where they were." : "Its tasks are started again where they were."}</p>
      </Dialog>}
    </>
  );
}

export function Connectors() {
  const [search, setSearch] = useState("");
  const [troubled, setTroubled] = useState(false);
  const [page, setPage] = useState(0);
  const found = useData(`connectors${query({ search: useSettled(search), troubled: troubled && 1, page })}`, 5000);
  const data = found.data;
  return (
    <>
      <Title>Connectors</Title>
      <div class="tools"><Search label="Search connectors" value={search} onInput={(text) => { setSearch(text); setPage(0); }} /><label><input type="checkbox" checked={troubled} onChange={() => { setTroubled(!troubled); setPage(0); }} /> only failed ones</label></div>
      <Loading of={found} />
      {found.error && data && <Problem error={found.error} />}
      {data && data.workers.filter((one) => one.error).map((one) => <p class="problem" role="alert" key={one.url}>{one.error}</p>)}
      {data && <Table label="Connectors" head={["Connector", "Type", "State", "Tasks", { number: "Lag" }, ""]} empty="There are no connectors.">
        {data.items.map((one) => <Connector key={`${one.worker}-${one.name}`} one={one} url={data.workers[one.worker].url} onChange={found.reload} />)}
      </Table>}
      <Pages data={data} onPage={setPage} />
    </>
  );
}
