// A browser without network for the tests, and everything that must not happen while a page is open.
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const ARGUMENTS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

export const reason = existsSync(CHROMIUM) ? undefined : `no browser at ${CHROMIUM}`;

export async function open() {
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ARGUMENTS });
  return {
    close: () => browser.close(),
    async page(file, { hash = "", ...options } = {}) {
      const context = await browser.newContext({
        offline: true,
        viewport: { width: 1280, height: 900 },
        permissions: ["clipboard-read", "clipboard-write"],
        ...options,
      });
      const page = await context.newPage();
      const faults = [];
      page.on("console", (message) => faults.push(`console ${message.type()}: ${message.text()}`));
      page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
      page.on("dialog", (dialog) => (faults.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
      page.on("request", (request) => {
        if (!/^(file|data|blob|about):/.test(request.url())) faults.push(`request: ${request.url()}`);
      });
      await page.goto(file.startsWith("/") ? `file://${file}${hash}` : file);
      return { page, faults, context };
    },
  };
}
