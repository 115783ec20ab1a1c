import { useState } from "preact/hooks";
import { api, query, useData } from "../api.js";
import { Badge, Change, Dialog, Field, Loading, Pages, Problem, Search, Table, Title, useSettled } from "../parts.jsx";

const RESOURCES = ["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"];
const OPERATIONS = ["READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE", "ALL"];
const words = (text) => text.toLowerCase().replaceAll("_", " ");
const Options = ({ of }) => of.map((one) => <option value={one}>{words(one)}</option>);

function Why() {
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState(null);
  async function ask(event) {
    event.preventDefault();
    setError(null);
    try { setAnswer(await api(`acls/why${query(Object.fromEntries(new FormData(event.currentTarget)))}`)); } catch (problem) { setAnswer(null); setError(problem); }
  }
  return (
    <section class="card" aria-label="Why may X do Y?">
      <h2>Why may X do Y?</h2>
      <form class="tools" onSubmit={ask}>
        <label>May <input name="principal" placeholder="User:alice" required /></label>
        <label>do <select name="operation"><Options of={OPERATIONS} /></select></label>
        <label>on <select name="resourceType"><Options of={RESOURCES} /></select></label>
        <label>named <input name="name" placeholder="orders" required /></label>
        <button type="submit" class="primary">Ask</button>
      </form>
      <Problem error={error} />
      <div aria-live="polite">{answer && <><p><Badge kind={answer.allowed ? "good" : "bad"}>{answer.allowed ? "yes" : "no"}</Badge> {answer.sentence}</p>{answer.acls.length > 0 && <ul>{answer.acls.map((one) => <li>{words(one.permission)} {one.principal} {words(one.operation)} on {words(one.resourceType)} {one.patternType === "PREFIXED" ? `${one.name}…` : one.name} from {one.host}</li>)}</ul>}</>}</div>
    </section>
  );
}

// The ACLs of a page as a matrix: a line for each principal and resource, a column for each operation.
function Matrix({ items, onRemove }) {
  const columns = OPERATIONS.filter((name) => items.some((one) => one.operation === name));
  const rows = new Map();
  for (const one of items) {
    const key = JSON.stringify([one.principal, one.resourceType, one.patternType, one.name, one.host]);
    if (!rows.has(key)) rows.set(key, { ...one, cells: {} });
    rows.get(key).cells[one.operation] = one;
  }
  return (
    <Table label="ACLs" head={["Principal", "Resource", "Host", ...columns.map(words)]} empty="There are no ACLs.">
      {[...rows.values()].map((row) => <tr>
        <td>{row.principal}</td><td>{words(row.resourceType)} <span class="mono">{row.name}{row.patternType === "PREFIXED" && "…"}</span></td><td class="mono">{row.host}</td>
        {columns.map((name) => { const one = row.cells[name]; return <td>{one && <><Badge kind={one.permission === "ALLOW" ? "good" : "bad"}>{one.permission === "ALLOW" ? "allow" : "deny"}</Badge> <Change class="plain" aria-label={`Remove: ${words(one.permission)} ${one.principal} ${words(name)}`} onClick={() => onRemove(one)}>×</Change></>}</td>; })}
      </tr>)}
    </Table>
  );
}

function Acls() {
  const [search, setSearch] = useState("");
  const [page, setPage] = useState(0);
  const [open, setOpen] = useState(null);
  const acls = useData(`acls${query({ search: useSettled(search), page, size: 200 })}`);
  const close = () => { setOpen(null); acls.reload(); };
  return (
    <>
      <Title actions={<Change onClick={() => setOpen("add")}>Add an ACL…</Change>}>ACLs</Title>
      <div class="tools"><Search label="Search ACLs" value={search} onInput={setSearch} /></div>
      <Loading of={acls} />
      {acls.data && !acls.data.hasAuthorizer && <p class="quiet">The cluster has no authorizer: each client may do everything. ACLs need <span class="mono">authorizer.class.name</span> in the configuration of all brokers.</p>}
      {acls.data?.hasAuthorizer && <Matrix items={acls.data.items} onRemove={setOpen} />}
      <Pages data={acls.data} onPage={setPage} />
      {open === "add" && <Dialog title="Add an ACL" submit="Add" onClose={close} onSubmit={async (form) => { await api("acls", { method: "POST", body: Object.fromEntries(form) }); close(); }}>
        <Field label="Principal"><input name="principal" placeholder="User:alice" required autofocus /></Field>
        <Field label="Permission"><select name="permission"><Options of={["ALLOW", "DENY"]} /></select></Field>
        <Field label="Operation"><select name="operation"><Options of={OPERATIONS} /></select></Field>
        <Field label="Resource"><select name="resourceType"><Options of={RESOURCES} /></select></Field>
        <Field label="Name" hint="* for all; kafka-cluster for the cluster."><input name="name" required /></Field>
        <Field label="The name is"><select name="patternType"><option value="LITERAL">the whole name</option><option value="PREFIXED">the begin of names</option></select></Field>
        <Field label="From host"><input name="host" value="*" required /></Field>
      </Dialog>}
      {open && open !== "add" && <Dialog title="Remove this ACL?" submit="Remove" danger onClose={close} onSubmit={async () => { await api("acls/remove", { method: "POST", body: open }); close(); }}><p>{words(open.permission)} {open.principal} {words(open.operation)} on {words(open.resourceType)} {open.name} from {open.host}</p></Dialog>}
    </>
  );
}

function Users() {
  const users = useData("users");
  const [open, setOpen] = useState(null);
  const close = () => { setOpen(null); users.reload(); };
  return (
    <>
      <Title actions={<Change onClick={() => setOpen({})}>Add a user…</Change>}>Users with passwords (SCRAM)</Title>
      <Loading of={users} />
      {users.data && <Table label="Users" head={["User", "Mechanisms", ""]} empty="There are none in the cluster's metadata.">
        {users.data.items.map((one) => <tr><td>{one.user}</td><td>{one.mechanisms.map((each) => <Badge>{each}</Badge>)}</td><td><Change onClick={() => setOpen({ user: one.user })}>New password…</Change></td></tr>)}
      </Table>}
      {open && <Dialog title={open.user ? `New password of ${open.user}` : "Add a user"} submit="Set" onClose={close} onSubmit={async (form) => { await api("users", { method: "POST", body: { user: open.user, ...Object.fromEntries(form) } }); close(); }}>
        {!open.user && <Field label="User"><input name="user" required autofocus autocomplete="off" /></Field>}
        <Field label="Mechanism"><select name="mechanism"><option>SCRAM-SHA-512</option><option>SCRAM-SHA-256</option></select></Field>
        <Field label="Password"><input name="password" type="password" required autocomplete="new-password" /></Field>
      </Dialog>}
    </>
  );
}

function Quotas() {
  const quotas = useData("quotas");
  const [open, setOpen] = useState(false);
  const close = () => { setOpen(false); quotas.reload(); };
  return (
    <>
      <Title actions={<Change onClick={() => setOpen(true)}>Set a quota…</Change>}>Quotas</Title>
      <Loading of={quotas} />
      {quotas.data && <Table label="Quotas" head={["Of", "Quotas"]} empty="There are no quotas.">
        {quotas.data.items.map((one) => <tr><td>{one.entity.map((each) => `${each.type} ${each.name || "(default)"}`).join(", ")}</td><td>{Object.entries(one.quotas).map(([key, value]) => <div><span class="mono">{key}</span> = {value.toLocaleString("en")}</div>)}</td></tr>)}
      </Table>}
      {open && <Dialog title="Set a quota" submit="Set" onClose={close} onSubmit={async (form) => { const value = form.get("value"); await api("quotas", { method: "POST", body: { entity: [{ type: form.get("type"), name: form.get("name") }], quotas: { [form.get("key")]: value === "" ? null : Number(value) } } }); close(); }}>
        <Field label="Of"><select name="type"><option value="user">user</option><option value="client-id">client id</option><option value="ip">IP address</option></select></Field>
        <Field label="Name" hint="Empty: the default of all others."><input name="name" autofocus /></Field>
        <Field label="Quota"><select name="key">{["producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate", "connection_creation_rate"].map((one) => <option>{one}</option>)}</select></Field>
        <Field label="Value" hint="Per second; empty removes the quota."><input name="value" type="number" min="0" step="any" /></Field>
      </Dialog>}
    </>
  );
}

export function Access() {
  return <><Why /><Acls /><Users /><Quotas /></>;
}
