// The page in a real browser. Run by tests/report/html/test_browser.py, which makes the pages: PAGES is their folder.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { open, reason } from "./browser.mjs";

const PAGES = process.env.PAGES;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf-8");
const NAMES = ["replay", "measure", "compared", "prove", "sweep", "sharing", "log", "size", "sizes", "trace", "cache", "check", "unmapped"];
const HOSTILE = ["hostile", ...["prove", "sweep", "sharing", "log", "size", "sizes", "trace", "cache", "check"].map((name) => `hostile-${name}`)];
const file = (name) => join(PAGES, `${name}.html`);
const skip = reason ?? (PAGES ? false : "PAGES is not set");

let browser;
before(async () => {
  if (!skip) browser = await open();
});
after(async () => browser?.close());

for (const name of [...NAMES, ...HOSTILE]) {
  test(`${name}: opens without a request, a message on the console or an error`, { skip }, async () => {
    const { page, faults } = await browser.page(file(name));
    await page.waitForTimeout(200);
    for (const section of await page.$$("section")) await section.scrollIntoViewIfNeeded();
    assert.deepEqual(faults, []);
  });

  for (const [scheme, lang] of [["light", "en"], ["dark", "zh"]]) {
    test(`${name}: axe finds no serious violation (${scheme}, ${lang})`, { skip }, async () => {
      const { page } = await browser.page(file(name), { colorScheme: scheme, hash: `#lang=${lang}` });
      for (const details of await page.$$("details")) await details.evaluate((node) => (node.open = true));
      await page.evaluate(AXE);
      const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
      const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
      assert.deepEqual(serious.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" | ").slice(0, 400)}`), []);
    });
  }

  test(`${name}: fits a phone without scrolling sideways`, { skip }, async () => {
    const { page } = await browser.page(file(name), { viewport: { width: 360, height: 740 } });
    const [needed, given] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(needed <= given, `${needed} > ${given}`);
  });
}

test("without scripting the words and tables are there", { skip }, async () => {
  const { page, faults } = await browser.page(file("replay"), { javaScriptEnabled: false });
  const text = await page.innerText("main");
  assert.match(text, /runs 3\.0 requests at a time/);
  assert.match(text, /512\.00/);
  assert.match(text, /static sheet/);
  assert.equal(await page.isVisible("#charts"), false);
  assert.deepEqual(faults, []);
});

test("the keyboard moves the cursor of all charts, zooms, and goes back", { skip }, async () => {
  const { page } = await browser.page(file("replay"));
  const charts = page.locator(".plot[role=slider]");
  assert.equal(await charts.count(), 2);
  await charts.first().focus();
  await page.keyboard.press("End");
  const end = Number(await charts.first().getAttribute("aria-valuenow"));
  assert.equal(Number(await charts.nth(1).getAttribute("aria-valuenow")), end);
  await page.keyboard.press("ArrowLeft");
  assert.ok(Number(await charts.first().getAttribute("aria-valuenow")) < end);
  assert.match(await charts.first().getAttribute("aria-valuetext"), /used \d/);
  await page.keyboard.press("+");
  assert.match(await page.evaluate(() => location.hash), /from=.*to=/);
  await page.keyboard.press("Escape");
  assert.doesNotMatch(await page.evaluate(() => location.hash), /from=/);
});

test("the cursor reads out every account in bytes", { skip }, async () => {
  const { page } = await browser.page(file("replay"));
  await page.locator(".plot").first().scrollIntoViewIfNeeded();
  const box = await page.locator(".plot .u-over").first().boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  const readout = await page.locator(".readout").first().innerText();
  for (const part of ["256.00", "512.00", "25.0", "used", "reserved", "internal", "external", "free"]) {
    assert.ok(readout.includes(part), `${part} is not in ${readout}`);
  }
});

test("the map tells every piece by keyboard and by pointer", { skip }, async () => {
  const { page } = await browser.page(file("replay"));
  const map = page.locator(".mapped");
  await map.focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await map.getAttribute("aria-valuetext"), /request 7: used/);
  await page.keyboard.press("ArrowRight");
  assert.match(await map.getAttribute("aria-valuetext"), /hole: external/);
  await page.keyboard.press("Escape");
  await map.scrollIntoViewIfNeeded();
  const box = await map.boundingBox();
  await page.mouse.move(box.x + 80, box.y + 5);
  assert.match(await page.locator("#map .readout").innerText(), /request 7/);
});

test("a link keeps language, theme, policies, zoom and map", { skip }, async () => {
  const hash = "#lang=zh&theme=dark&books=0.1&map=0.0/most-waste&from=2&to=9";
  const { page } = await browser.page(file("replay"), { hash });
  assert.equal(await page.getAttribute("html", "lang"), "zh-Hans");
  assert.equal(await page.getAttribute("html", "data-theme"), "dark");
  assert.equal(await page.locator(".plot").count(), 1);
  assert.equal(await page.locator("input[name=moment]:checked").getAttribute("value"), "most-waste");
  assert.equal(await page.locator(".plot").getAttribute("aria-valuenow"), "2");
  assert.match(await page.innerText("h2 >> nth=0"), /每个字节去了哪里/);
  await page.getByRole("button", { name: "English" }).click();
  assert.equal(await page.getAttribute("html", "lang"), "en");
  assert.match(await page.evaluate(() => location.hash), /lang=en.*theme=dark.*books=0\.1.*from=2/);
});

test("a fragment that makes no sense changes nothing", { skip }, async () => {
  const hash = "#lang=xx&books=%3Cscript%3E,9.9&map=//&from=nan&to=-1&section=%22%3E";
  const { page, faults } = await browser.page(file("replay"), { hash });
  assert.deepEqual(faults, []);
  assert.equal(await page.locator(".mapped").count(), 1);
});

test("a table copies as CSV with raw numbers, and runs nothing in a spreadsheet", { skip }, async () => {
  const { page } = await browser.page(file("hostile"));
  await page.locator("[data-table=balance-table] .foot button").click();
  const rows = (await page.evaluate(() => navigator.clipboard.readText())).split("\r\n");
  assert.equal(rows[0].split(",")[1], "used");
  assert.ok(rows.some((row) => row.includes(String(2 ** 28))));
  assert.ok(!rows.some((row) => /^"?[=+@]/.test(row)), rows.join("\n"));
});

test("charts and maps save as SVG that stands alone", { skip }, async () => {
  const { page } = await browser.page(file("hostile"));
  for (const place of [".chart .chartbar button >> nth=1", "#map .chartbar button"]) {
    const [download] = await Promise.all([page.waitForEvent("download"), page.locator(place).click()]);
    const text = readFileSync(await download.path(), "utf-8");
    const fault = await page.evaluate((source) => {
      const root = new DOMParser().parseFromString(source, "image/svg+xml").documentElement;
      const bad = root.querySelector("script, image, foreignObject, parsererror");
      return root.localName !== "svg" || bad ? root.outerHTML.slice(0, 200) : "";
    }, text);
    assert.equal(fault, "");
    assert.match(text, /<path /);
  }
});

test("a picture of a sweep saves as SVG that stands alone, in one language", { skip }, async () => {
  const { page, faults } = await browser.page(file("sweep"));
  const [download] = await Promise.all([page.waitForEvent("download"), page.locator("figure .chartbar button").first().click()]);
  const text = readFileSync(await download.path(), "utf-8");
  const [name, fills, words] = await page.evaluate((source) => {
    const root = new DOMParser().parseFromString(source, "image/svg+xml").documentElement;
    return [root.localName, [...root.querySelectorAll("circle")].every((one) => one.getAttribute("fill")), root.textContent];
  }, text);
  assert.equal(name, "svg");
  assert.ok(fills);
  assert.match(words, /queue, p99/);
  assert.doesNotMatch(words, /排队/);
  assert.deepEqual(faults, []);
});

test("printing from a dark screen is light", { skip }, async () => {
  const { page } = await browser.page(file("replay"), { colorScheme: "dark" });
  await page.emulateMedia({ media: "print" });
  await page.evaluate(() => window.dispatchEvent(new Event("beforeprint")));
  const [paper, pixel] = await page.evaluate(() => {
    const canvas = document.querySelector(".plot canvas");
    const data = canvas.getContext("2d").getImageData(canvas.width / 2, canvas.height - 30, 1, 1).data;
    return [getComputedStyle(document.documentElement).backgroundColor, [...data]];
  });
  assert.equal(paper, "rgb(253, 252, 249)");
  assert.deepEqual(pixel, [0x27, 0x49, 0x84, 255]);
});

test("the largest page is ready within a second of computing", { skip }, async () => {
  // The time of the page's thread, not of the clock: the machine may have other things to do.
  const { page, faults, context } = await browser.page("about:blank");
  const session = await context.newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  await page.goto(`file://${file("largest")}`);
  const { metrics } = await session.send("Performance.getMetrics");
  const seconds = metrics.find((one) => one.name === "TaskDuration").value;
  const wall = await page.evaluate(() => performance.getEntriesByName("kvledger-ready")[0].startTime / 1000);
  assert.deepEqual(faults, []);
  console.log(`computed ${seconds.toFixed(2)} s, ready after ${wall.toFixed(2)} s`);
  assert.ok(seconds < 1, `${seconds} s`);
});
