// Records the hash of every source of the page beside the built files: a test compares them, without Node.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";

const sources = ["index.html", "package.json", "package-lock.json", "vite.config.js"];
for (const entry of readdirSync("src", { recursive: true, withFileTypes: true })) {
  if (entry.isFile()) sources.push(`${entry.parentPath}/${entry.name}`);
}
const hashes = {};
for (const name of sources.sort()) hashes[name] = createHash("sha256").update(readFileSync(name)).digest("hex");
writeFileSync("../parley/tools/console/page/sources.json", JSON.stringify(hashes, null, 1) + "\n");
