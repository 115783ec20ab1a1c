import { useEffect, useState } from "preact/hooks";
import { api, useData } from "../api.js";
import { bytes, count, plural } from "../format.js";
import { Badge, Chart, Loading, Problem, Table, Title } from "../parts.jsx";

const MARKS = { good: "✓", warning: "!", bad: "✕" };
const WORDS = { good: "Good", warning: "Warning", bad: "Serious" };

const RANGES = { hour: "last hour", day: "last day", week: "last week" };
const MINUTE_MS = 60_000;

// The samples of a range: those of the hour follow live, the minutes of a longer range are read again each minute.
function useHistory(range) {
  const [samples, setSamples] = useState([]);
  useEffect(() => {
    let stream;
    let timer;
    let over = false;
    const read = () => api(`history?range=${range}`).then((data) => { if (!over) setSamples(data.samples); });
    setSamples([]);
    read().then(() => {
      if (over) return;
      if (range !== "hour") { timer = setInterval(() => read().catch(() => {}), MINUTE_MS); return; }
      stream = new EventSource("/api/live");
      stream.onmessage = (event) => setSamples((old) => [...old.slice(-1199), JSON.parse(event.data)]);
    }, () => {});
    return () => { over = true; stream?.close(); clearInterval(timer); };
  }, [range]);
  return samples;
}

export function Overview() {
  const overview = useData("overview", 4000);
  const [range, setRange] = useState("hour");
  const samples = useHistory(range);
  const data = overview.data;
  const gap = range === "hour" ? MINUTE_MS : 5 * MINUTE_MS;
  const line = (name) => samples.map((one) => ({ at: one.at_ms, y: one[name] }));
  return (
    <>
      <Title>Overview</Title>
      <Loading of={overview} />
      {data && (
        <>
          {overview.error && <Problem error={overview.error} />}
          <p class="quiet">Cluster {data.clusterId} · {plural(data.topics, "topic")} · {plural(data.partitions, "partition")} · {plural(data.brokers.filter((b) => b.alive).length, "broker")} · controller {data.controller < 0 ? "none" : data.controller}</p>
          <section aria-label="Health" aria-live="polite">
            <ul class="health">
              {data.health.map((one) => (
                <li class={one.level}>
                  <span class="mark" role="img" aria-label={WORDS[one.level]}>{MARKS[one.level]}</span>
                  <div><p>{one.text}</p>{one.advice && <p class="quiet">{one.advice}</p>}</div>
                </li>
              ))}
            </ul>
          </section>
          <div class="tools"><label>Charts of the{" "}
            <select value={range} onChange={(event) => setRange(event.currentTarget.value)}>
              {Object.entries(RANGES).map(([name, words]) => <option value={name}>{words}</option>)}
            </select>
          </label>{range !== "hour" && <span class="quiet small">averages of minutes; of under-replicated partitions the most in a minute</span>}</div>
          <section class="charts" aria-label={`Charts of the ${RANGES[range]}`}>
            <Chart key={`records ${range}`} title="Records produced" unit="records/s" values={line("records_per_s")} gapMs={gap} />
            <Chart key={`response ${range}`} title="Response time" unit="ms" values={line("request_ms")} gapMs={gap} />
            <Chart key={`replicas ${range}`} title="Under-replicated" unit="partitions" values={line("under_replicated")} gapMs={gap} />
            <Chart key={`isr ${range}`} title="ISR changes" unit="partitions" values={line("isr_changes")} gapMs={gap} />
          </section>
          <h2>Brokers</h2>
          <Table label="Brokers" head={["Broker", "State", "Address", "Rack", { number: "Leads" }, { number: "Follows" }, { number: "Behind" }, { number: "Holds" }, { number: "Disk free" }]}>
            {data.brokers.map((one) => (
              <tr>
                <td><a href={`#/broker/${one.id}`}>Broker {one.id}</a></td>
                <td>{one.alive ? <Badge kind="good">running</Badge> : <Badge kind="bad">down</Badge>}{one.id === data.controller && <> <Badge>controller</Badge></>}</td>
                <td class="mono">{one.address || "–"}</td><td>{one.rack || "–"}</td>
                <td class="number">{count(one.leads)}</td><td class="number">{count(one.follows)}</td>
                <td class="number">{one.behind ? <strong class="warn">{count(one.behind)}</strong> : 0}</td>
                <td class="number">{bytes(one.bytes)}</td>
                <td class="number">{one.disk ? `${bytes(one.free)} of ${bytes(one.disk)}` : "–"}</td>
              </tr>
            ))}
          </Table>
        </>
      )}
    </>
  );
}
