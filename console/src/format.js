export const count = (n) => (n === null || n === undefined || n < 0 ? "–" : n.toLocaleString("en"));
export function bytes(n) {
  if (n === null || n === undefined || n < 0) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export function when(ms) {
  return ms < 0 ? "–" : new Date(ms).toISOString().replace("T", " ").replace("Z", "");
}
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const s = Math.round(ms / 1000);
  return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}
