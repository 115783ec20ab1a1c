import { useState } from "preact/hooks";
import { part, query, useData } from "../api.js";
import { bytes, count, duration, plural } from "../format.js";
import { Badge, Loading, Pages, Problem, Search, Table, Title, useSettled } from "../parts.jsx";
import { Settings } from "./settings.jsx";

const Rate = ({ one }) => <td class="number">{one.rate === null ? "–" : `${bytes(one.rate)}/s`}</td>;

function Mirror({ one }) {
  const state = one.silent ? <Badge kind="bad">silent for {duration(one.ageMs)}</Badge> : <Badge kind="good">alive</Badge>;
  const left = one.lag === 0 ? "up to date" : one.remainingMs === null ? "–" : duration(one.remainingMs);
  return <tr><td>{one.source} → {one.target}</td><td>{state}</td><td class="number">{count(one.topics)}</td><td class="number">{count(one.records)} <span class="quiet">{one.bytes !== null && bytes(one.bytes)}</span></td><td class="number">{one.rate === null ? "–" : `${count(Math.round(one.rate))}/s`}</td><td class="number">{count(one.lag)}</td><td>{left}</td></tr>;
}

const KINDS = { compaction: "Compaction", verification: "Verification", healing: "Healing", recovery: "Recovery of logs" };
const amount = (one, n) => (one.unit === "bytes" ? bytes(n) : count(Math.round(n * 10) / 10));
const units = (one, n) => (one.unit === "bytes" ? bytes(n) : plural(n, one.unit.replace(/s$/, "")));

function BrokerWork({ one }) {
  const where = one.topic === null ? one.directory : `${one.topic}-${one.partition}`;
  return <tr><td>{KINDS[one.kind] || one.kind}</td><td>{one.broker}</td><td>{where === null ? "all logs" : one.topic === null ? <span class="mono">{where}</span> : where} {one.detail && <div class="quiet small">{one.detail}</div>}</td><td class="number">{amount(one, one.done)} of {units(one, one.total)}</td><td class="number">{one.rate === null ? "–" : `${amount(one, one.rate)}/s`}</td><td>{duration(one.remainingMs)}</td><td><progress max={Math.max(one.total, 1)} value={one.done} aria-label={`${KINDS[one.kind] || one.kind} on broker ${one.broker}, ${where || "all logs"}`} /></td></tr>;
}

const LOAD_STATES = { running: ["good", "running"], done: ["", "done"], failed: ["bad", "failed"] };

function Load({ one }) {
  const [kind, word] = LOAD_STATES[one.state] || ["bad", `silent for ${duration(one.ageMs)}`];
  const way = one.direction === "export" ? <>{one.topic} → <span class="mono">{one.place}</span></> : <><span class="mono">{one.place}</span> → {one.topic}</>;
  return <tr><td>{way}</td><td><Badge kind={kind}>{word}</Badge></td><td class="number">{count(one.done)}{one.wanted !== null && ` of ${count(one.wanted)}`}</td><td class="number">{one.rate === null ? "–" : `${count(Math.round(one.rate))}/s`}</td><td>{one.state === "running" ? duration(one.remainingMs) : "–"}</td><td>{one.wanted !== null && <progress max={Math.max(one.wanted, 1)} value={one.done} aria-label={`Load of ${one.topic}`} />}</td></tr>;
}

export function Work() {
  const work = useData("work", 2000);
  const data = work.data;
  return (
    <>
      <Title>Work in progress</Title>
      <Loading of={work} />
      {work.error && data && <Problem error={work.error} />}
      {data && <>
        <h2>Replicas on the move</h2>
        <Table label="Replicas on the move" head={["Partition", "Joins", "Leaves", { number: "Done" }, { number: "Rate" }, "Time left", "Progress"]} empty="No partition is being moved.">
          {data.items.map((one) => <tr><td>{one.topic}-{one.partition}</td><td>{one.adding.join(", ") || "–"}</td><td>{one.removing.join(", ") || "–"}</td><td class="number">{bytes(one.done)} of {bytes(one.size)}</td><Rate one={one} /><td>{duration(one.remainingMs)}</td><td><progress max={Math.max(one.size, 1)} value={one.done} aria-label={`${one.topic}-${one.partition}`} /></td></tr>)}
        </Table>
        <Pages data={data} onPage={() => {}} />
        <h2>Between log directories</h2>
        <Table label="Between log directories" head={["Partition", "Broker", "To", { number: "Done" }, { number: "Rate" }, { number: "Records left" }]} empty="No log moves to another directory.">
          {data.directories.map((one) => <tr><td>{one.topic}-{one.partition}</td><td>{one.broker}</td><td class="mono">{one.to}</td><td class="number">{bytes(one.done)}</td><Rate one={one} /><td class="number">{count(one.lag)}</td></tr>)}
        </Table>
        <h2>Work of the brokers</h2>
        <Table label="Work of the brokers" head={["Work", "Broker", "Log", { number: "Done" }, { number: "Rate" }, "Time left", "Progress"]} empty={data.brokers === null ? "These brokers do not report their work, or you may not see it." : "No log is being compacted, verified, healed or recovered."}>
          {(data.brokers || []).map((one) => <BrokerWork key={`${one.kind}-${one.broker}-${one.topic}-${one.partition}-${one.directory}`} one={one} />)}
        </Table>
        <h2>Loads</h2>
        <Table label="Loads" head={["Load", "State", { number: "Records" }, { number: "Rate" }, "Time left", "Progress"]} empty="No load of the last minutes has told its progress that you may read.">
          {data.loads.map((one) => <Load key={one.id} one={one} />)}
        </Table>
        <h2>Mirrors into this cluster</h2>
        <Table label="Mirrors into this cluster" head={["Flow", "State", { number: "Topics" }, { number: "Copied since its start" }, { number: "Rate" }, { number: "Lag" }, "Time left"]} empty="No mirror has written a heartbeat that you may read.">
          {data.mirrors.map((one) => <Mirror key={`${one.source}-${one.target}`} one={one} />)}
        </Table>
      </>}
    </>
  );
}

export function Transactions() {
  const [search, setSearch] = useState("");
  const [open, setOpen] = useState(true);
  const [page, setPage] = useState(0);
  const found = useData(`transactions${query({ search: useSettled(search), open: open && 1, page })}`, 4000);
  return (
    <>
      <Title>Transactions</Title>
      <div class="tools"><Search label="Search transactional ids" value={search} onInput={(text) => { setSearch(text); setPage(0); }} /><label><input type="checkbox" checked={open} onChange={() => setOpen(!open)} /> only open ones</label></div>
      <Loading of={found} />
      {found.data && <Table label="Transactions" head={["Transactional id", "State", { number: "Producer" }, { number: "Coordinator" }, "Open for", "Partitions"]} empty={open ? "No transaction is open." : "There are none."}>
        {found.data.items.map((one) => <tr><td>{one.id}</td><td><Badge kind={one.late ? "bad" : one.state === "Ongoing" ? "warning" : ""}>{one.late ? `${one.state}: hanging` : one.state}</Badge></td><td class="number">{one.producerId}</td><td class="number">{one.coordinator}</td><td>{duration(one.ageMs)}</td><td>{(one.partitions || []).slice(0, 10).map((each) => <div>{each.topic}-{each.partition}</div>)}</td></tr>)}
      </Table>}
      {found.data?.items.some((one) => one.late) && <p>A hanging transaction keeps read-committed consumers waiting. To end it: <span class="mono">parley transactions force-terminate --transactional-id ID</span></p>}
      <Pages data={found.data} onPage={setPage} />
    </>
  );
}

export function Features() {
  const found = useData("features");
  return (
    <>
      <Title>Features</Title>
      <Loading of={found} />
      {found.data && <Table label="Features" head={["Feature", { number: "Level" }, { number: "Least supported" }, { number: "Most supported" }]}>
        {found.data.features.map((one) => <tr><td class="mono">{one.feature}</td><td class="number">{one.level}</td><td class="number">{one.supportedMin}</td><td class="number">{one.supportedMax}</td></tr>)}
      </Table>}
    </>
  );
}

export function Disks() {
  const found = useData("log-dirs", 10000);
  return (
    <>
      <Title>Log directories</Title>
      <Loading of={found} />
      {found.data && <Table label="Log directories" head={["Broker", "Directory", { number: "Partitions" }, { number: "Used" }, { number: "Free" }, "Volume", "Largest"]}>
        {found.data.items.map((one) => <tr><td>{one.broker}</td><td class="mono">{one.path} {one.error ? <Badge kind="bad">offline</Badge> : null}</td><td class="number">{count(one.partitions)}</td><td class="number">{bytes(one.used)}</td><td class="number">{bytes(one.free)}</td><td>{one.size ? <meter min="0" max={one.size} low={one.size * 0.8} high={one.size * 0.9} optimum="0" value={one.size - one.free} aria-label={`Volume of ${one.path} on broker ${one.broker}`} /> : "–"}</td><td>{one.largest.slice(0, 3).map((each) => <div><a href={`#/topic/${part(each.topic)}`}>{each.topic}</a>-{each.partition} <span class="quiet">{bytes(each.bytes)}</span></div>)}</td></tr>)}
      </Table>}
    </>
  );
}

export function Broker({ name }) {
  return <><Title>Broker {name}</Title><Settings kind="broker" name={name} /></>;
}
