import { useState } from "preact/hooks";
import { api, part, session, useData } from "../api.js";
import { Badge, Change, Dialog, Field, Loading, Problem, Search } from "../parts.jsx";

export function Settings({ kind, name }) {
  const path = `configs/${kind}/${part(name)}`;
  const settings = useData(path);
  const [search, setSearch] = useState("");
  const [own, setOwn] = useState(false);
  const [editing, setEditing] = useState(null);
  const [warnings, setWarnings] = useState([]);
  const found = (settings.data?.settings || []).filter((one) => (!own || one.own) && (one.name + one.documentation).toLowerCase().includes(search.toLowerCase()));
  async function save(body) {
    const answer = await api(path, { method: "PATCH", body });
    setWarnings(answer.warnings);
    setEditing(null);
    settings.reload();
  }
  return (
    <>
      <div class="tools"><Search label="Search settings" value={search} onInput={setSearch} /><label><input type="checkbox" checked={own} onChange={() => setOwn(!own)} /> only changed ones</label></div>
      <Loading of={settings} />
      {warnings.map((text) => <Problem error={new Error(text)} />)}
      <ul class="settings">
        {found.map((one) => (
          <li>
            <div class="setting"><span class="mono name">{one.name}</span> <span class="mono value">{one.sensitive ? "hidden" : one.value === null || one.value === "" ? "(empty)" : one.value}</span>
              {one.own && <Badge kind="accent">changed</Badge>}{one.readOnly && <Badge>at start only</Badge>}
              <span class="space" />
              {!one.readOnly && <Change aria-label={`Change ${one.name}`} onClick={() => setEditing(one)}>Change…</Change>}
            </div>
            <p class="quiet">{one.documentation}{one.default !== null && one.default !== undefined && <> <span class="nowrap">Default: <span class="mono">{one.default === "" ? "(empty)" : one.default}</span>.</span></>}</p>
          </li>
        ))}
      </ul>
      {settings.data && !found.length && <p class="quiet">No setting fits.</p>}
      {editing && !session.readOnly && <Dialog title={editing.name} submit="Set" onClose={() => setEditing(null)} onSubmit={(form) => save({ set: { [editing.name]: form.get("value") } })}>
        <p class="quiet">{editing.documentation}</p>
        <Field label="Value" hint={editing.default !== null ? `Default: ${editing.default || "(empty)"}` : undefined}><input name="value" type={editing.sensitive ? "password" : "text"} value={editing.sensitive ? "" : editing.value} autofocus autocomplete="off" /></Field>
        {editing.own && <Change onClick={() => save({ remove: [editing.name] }).catch((error) => setWarnings([error.message]))}>Back to the default</Change>}
      </Dialog>}
    </>
  );
}
