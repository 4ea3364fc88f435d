// Photographs pages for the documentation: reads views as JSON, as docs/page_pictures.py writes them, and writes PNG.
import { readFileSync } from "node:fs";
import { open, reason } from "./test/browser.mjs";

if (reason) throw new Error(reason);
const browser = await open();
for (const { page: file, file: target, width, height, hash, top, cursor } of JSON.parse(readFileSync(0, "utf-8"))) {
  const { page, faults, context } = await browser.page(file, { hash, viewport: { width, height }, deviceScaleFactor: 1.25 });
  if (top) {
    await page.evaluate((selector) => {
      window.scrollTo(0, document.querySelector(selector).getBoundingClientRect().top + window.scrollY - 24);
    }, top);
  }
  if (cursor !== null) {
    const box = await page.locator(".plot .u-over").first().boundingBox();
    await page.mouse.move(box.x + cursor * box.width, box.y + box.height / 2);
  }
  await page.waitForTimeout(200);
  await page.screenshot({ path: target });
  if (faults.length > 0) throw new Error(`${file}: ${faults.join("; ")}`);
  await context.close();
}
await browser.close();
