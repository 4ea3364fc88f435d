import { Charts } from "./charts";
import { load, type Data } from "./data";
import { button } from "./dom";
import { addFigureButtons } from "./figures";
import { PoolMap } from "./map";
import { learn, say } from "./phrases";
import { current, listen, start, update, type View } from "./state";
import { addCopyButtons } from "./tables";

const THEMES = ["auto", "light", "dark"] as const;

function defaultBooks(data: Data): string[] {
  const drawn = data.books.filter((book) => book.timeline);
  const named = (test: (name: string) => boolean) => drawn.find((book) => test(book.name));
  const last = data.runs.length - 1;
  if (last > 0) {
    // Two runs: the same policy in both, block tables if there are any.
    const shared = drawn.filter((book) => book.run === last && drawn.some((one) => one.run === 0 && one.name === book.name));
    const chosen = shared.find((book) => book.name.startsWith("paged")) ?? shared[0];
    if (chosen) return drawn.filter((book) => book.name === chosen.name).map((book) => book.key);
  }
  const first = drawn[0];
  const paged = named((name) => name.startsWith("paged"));
  return [...new Set([first?.key, paged?.key ?? drawn[1]?.key])].filter((key) => key !== undefined);
}

function defaultMap(data: Data): string {
  const drawn = data.books.filter((book) => book.layouts.length > 0);
  const holed = drawn.find((book) => book.layouts.some((layout) => layout.moment === "most-holes"));
  return holed ? `${holed.key}/most-holes` : "";
}

function apply(view: View): void {
  const root = document.documentElement;
  root.lang = view.lang === "zh" ? "zh-Hans" : "en";
  if (view.theme === "auto") root.removeAttribute("data-theme");
  else root.dataset["theme"] = view.theme;
}

function addTools(): void {
  const tools = document.getElementById("tools")!;
  const language = button("", () => update({ lang: current().lang === "zh" ? "en" : "zh" }));
  const theme = button("", () => {
    const next = THEMES[(THEMES.indexOf(current().theme) + 1) % THEMES.length]!;
    update({ theme: next });
  });
  const write = () => {
    language.textContent = say("language");
    language.lang = current().lang === "zh" ? "en" : "zh-Hans";
    theme.textContent = say(`theme.${current().theme}`);
  };
  write();
  listen(write);
  tools.append(language, theme);
}

function keepSections(): void {
  for (const link of document.querySelectorAll<HTMLAnchorElement>("#contents a, .brand")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const section = link.hash.slice(1);
      update({ section });
      const target = document.getElementById(section);
      target?.setAttribute("tabindex", "-1");
      target?.focus({ preventScroll: true });
      target?.scrollIntoView();
    });
  }
}

function printLight(): void {
  let theme: string | undefined;
  window.addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset["theme"];
    document.documentElement.dataset["theme"] = "light";
  });
  window.addEventListener("afterprint", () => apply(current()));
  void theme;
}

const data = load();
const view = start({
  lang: document.documentElement.lang.startsWith("zh") ? "zh" : "en",
  theme: "auto",
  books: defaultBooks(data),
  from: null,
  to: null,
  map: defaultMap(data),
  section: "",
});
learn(data);
apply(view);
listen((changed) => apply(changed));
addTools();
keepSections();
printLight();
addCopyButtons();
addFigureButtons();
if (document.getElementById("charts")) new Charts(data);
if (document.getElementById("map")) new PoolMap(data);
performance.mark("kvledger-ready");
if (view.section) document.getElementById(view.section)?.scrollIntoView();
