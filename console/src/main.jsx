import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { api, openSession, session } from "./api.js";
import { Field, Problem } from "./parts.jsx";
import { Overview } from "./pages/overview.jsx";
import { Topics, Topic } from "./pages/topics.jsx";
import { Groups, Group } from "./pages/groups.jsx";
import { Coordination } from "./pages/coordination.jsx";
import { Access } from "./pages/access.jsx";
import { Connectors } from "./pages/connectors.jsx";
import { Work, Transactions, Features, Disks, Broker } from "./pages/operations.jsx";

const PAGES = [
  ["overview", "Overview", Overview, "o"], ["topics", "Topics", Topics, "t"], ["groups", "Groups", Groups, "g"],
  ["coordination", "Coordination", Coordination, "c"], ["access", "Users and rights", Access, "u"],
  ["transactions", "Transactions", Transactions, "x"], ["work", "Work in progress", Work, "w"],
  ["connectors", "Connectors", Connectors, "n"], ["disks", "Log directories", Disks, "d"], ["features", "Features", Features, "f"],
];
const DETAILS = { topic: [Topic, "topics"], group: [Group, "groups"], broker: [Broker, "overview"] };

const place = () => location.hash.replace(/^#\/?/, "").split("?")[0].split("/").map(decodeURIComponent);

function theme() { return localStorage.getItem("theme") || "system"; }
function applyTheme(name) {
  localStorage.setItem("theme", name);
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  window.dispatchEvent(new Event("theme"));
}

function Login({ onDone }) {
  const [error, setError] = useState(null);
  async function send(event) {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    try {
      Object.assign(session, await api("login", { method: "POST", body: { user: form.get("user"), password: form.get("password") } }));
      onDone();
    } catch (problem) { setError(problem); if (problem.status === 403) openSession(); }
  }
  return (
    <main class="login">
      <form onSubmit={send}>
        <h1>Parley console</h1>
        <p class="quiet">Log in as a user of the cluster at {session.bootstrap} ({session.mechanism}). You have that user's rights.</p>
        <Field label="User"><input name="user" autocomplete="username" required autofocus /></Field>
        <Field label="Password"><input name="password" type="password" autocomplete="current-password" required /></Field>
        <Problem error={error} />
        <button type="submit" class="primary">Log in</button>
      </form>
    </main>
  );
}

function Keys({ onClose }) {
  useEffect(() => { document.getElementById("keys").showModal(); }, []);
  return (
    <dialog id="keys" onClose={onClose} aria-label="Keyboard shortcuts">
      <h2>Keyboard shortcuts</h2>
      <dl class="keys">
        <div><dt><kbd>g</kbd> then a letter</dt><dd>go to a page</dd></div>
        {PAGES.map(([, name, , key]) => <div><dt><kbd>g</kbd> <kbd>{key}</kbd></dt><dd>{name}</dd></div>)}
        <div><dt><kbd>/</kbd></dt><dd>search</dd></div><div><dt><kbd>?</kbd></dt><dd>this list</dd></div>
      </dl>
      <form method="dialog"><button type="submit">Close</button></form>
    </dialog>
  );
}

function App() {
  const [ready, setReady] = useState(false);
  const [failed, setFailed] = useState(null);
  const [at, setAt] = useState(place());
  const [keys, setKeys] = useState(false);
  const [look, setLook] = useState(theme());
  const [, again] = useState(0);
  const load = () => openSession().then(() => { setReady(true); setFailed(null); again((n) => n + 1); }, setFailed);
  useEffect(() => {
    load();
    applyTheme(theme());
    const moved = () => { setAt(place()); document.querySelector("main")?.focus({ preventScroll: true }); window.scrollTo(0, 0); };
    let going = 0;
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
      if (event.key === "/") { event.preventDefault(); document.querySelector(".search")?.focus(); }
      else if (event.key === "?") setKeys(true);
      else if (event.timeStamp - going < 1500) {
        const page = PAGES.find((one) => one[3] === event.key);
        going = 0;
        if (page) location.hash = `#/${page[0]}`;
      } else if (event.key === "g") going = event.timeStamp;
    };
    window.addEventListener("hashchange", moved);
    setAt(place()); // the address may have changed before the listener was there
    window.addEventListener("keydown", pressed);
    window.addEventListener("logged-out", load);
    return () => { window.removeEventListener("hashchange", moved); window.removeEventListener("keydown", pressed); window.removeEventListener("logged-out", load); };
  }, []);
  if (failed) return <main class="login"><Problem error={failed} /><button type="button" onClick={load}>Try again</button></main>;
  if (!ready) return null;
  if (session.loginRequired) return <Login onDone={() => again((n) => n + 1)} />;
  const [name, ...rest] = at;
  const detail = DETAILS[name];
  const current = detail ? detail[1] : PAGES.some((one) => one[0] === name) ? name : "overview";
  const Page = detail ? detail[0] : PAGES.find((one) => one[0] === current)[2];
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.querySelector("main").focus(); }}>Skip to content</a>
      <header class="bar">
        <a class="brand" href="#/overview">Parley</a>
        <span class="quiet place">{session.bootstrap}</span>
        {session.readOnly && <span class="badge">read-only</span>}
        <span class="space" />
        {session.user && <span>{session.user}</span>}
        <label class="small">Theme{" "}
          <select value={look} onChange={(e) => { setLook(e.currentTarget.value); applyTheme(e.currentTarget.value); }}>
            <option value="system">system</option><option value="light">light</option><option value="dark">dark</option>
          </select>
        </label>
        <button type="button" onClick={() => setKeys(true)} aria-label="Keyboard shortcuts">?</button>
        {session.canLogOut && <button type="button" onClick={async () => { Object.assign(session, await api("logout", { method: "POST" })); again((n) => n + 1); }}>Log out</button>}
      </header>
      <nav class="side" aria-label="Pages of the console">
        {PAGES.filter(([id]) => id !== "connectors" || session.connectors).map(([id, title]) => <a href={`#/${id}`} aria-current={id === current ? "page" : undefined}>{title}</a>)}
      </nav>
      <main id="main" tabindex="-1"><Page key={at.join("/")} name={rest[0]} tab={rest[1]} /></main>
      {keys && <Keys onClose={() => setKeys(false)} />}
    </div>
  );
}

render(<App />, document.getElementById("app"));
