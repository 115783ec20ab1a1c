import { useEffect, useState } from "preact/hooks";
import { api, useData } from "../api.js";
import { bytes, count, plural } from "../format.js";
import { Badge, Chart, Loading, Problem, Table, Title } from "../parts.jsx";

const MARKS = { good: "✓", warning: "!", bad: "✕" };
const WORDS = { good: "Good", warning: "Warning", bad: "Serious" };

export function useHistory() {
  const [samples, setSamples] = useState([]);
  useEffect(() => {
    let stream;
    let over = false;
    api("history").then((data) => {
      if (over) return;
      setSamples(data.samples);
      stream = new EventSource("/api/live");
      stream.onmessage = (event) => setSamples((old) => [...old.slice(-1199), JSON.parse(event.data)]);
    }, () => {});
    return () => { over = true; stream?.close(); };
  }, []);
  return samples;
}

export function Overview() {
  const overview = useData("overview", 4000);
  const samples = useHistory();
  const data = overview.data;
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
          <section class="charts" aria-label="The last hour">
            <Chart title="Records produced" unit="records/s" values={line("records_per_s")} />
            <Chart title="Response time" unit="ms" values={line("request_ms")} />
            <Chart title="Under-replicated" unit="partitions" values={line("under_replicated")} />
            <Chart title="ISR changes" unit="partitions" values={line("isr_changes")} />
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
