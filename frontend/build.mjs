// Builds the script and the style of the report into the Python package: `npm run build [FOLDER]`.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";
import { dirname, join, resolve } from "node:path";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.argv[2] ?? join(here, "../src/kvledger/report/html/assets"));

await build({
  absWorkingDir: here,
  entryPoints: { "page": "src/main.ts" },
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022"],
  charset: "ascii",
  legalComments: "inline",
  outdir: target,
  logLevel: "warning",
});
await build({
  absWorkingDir: here,
  entryPoints: { "page": "src/page.css" },
  bundle: true,
  minify: true,
  legalComments: "inline",
  outdir: target,
  logLevel: "warning",
});
