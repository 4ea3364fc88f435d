// Builds the script and the style of the report into the Python package: `npm run build [-- FOLDER]`.
// What was built from which sources is written into the first line, so that stale files are seen without building.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.argv[2] ?? join(here, "../src/kvledger/report/html/assets"));

const sources = createHash("sha256");
for (const name of ["build.mjs", "package-lock.json", ...readdirSync(join(here, "src")).sort().map((file) => `src/${file}`)]) {
  sources.update(`${name}\n`).update(readFileSync(join(here, name)));
}
const line = `/*! sources ${sources.digest("hex")} */`;
// Copies of uPlot carry its licence.
const licence = `${line}\n/*! uPlot\n${readFileSync(join(here, "node_modules/uplot/LICENSE"), "utf-8").trim()}\n*/`;

for (const [entry, options] of [
  ["src/main.ts", { format: "iife", target: ["es2022"], charset: "ascii" }],
  ["src/page.css", { charset: "ascii" }],
]) {
  await build({
    ...options,
    absWorkingDir: here,
    entryPoints: { page: entry },
    bundle: true,
    minify: true,
    legalComments: "inline",
    banner: entry.endsWith(".css") ? { css: line } : { js: licence },
    outdir: target,
    logLevel: "warning",
  });
}
