// What the reader has chosen, kept in the fragment of the address, so that a link shows the same view.

export interface View {
  lang: "en" | "zh";
  theme: "auto" | "light" | "dark";
  books: string[];
  from: number | null;
  to: number | null;
  map: string;
  section: string;
}

type Listener = (view: View, changed: Set<keyof View>) => void;

const listeners: Listener[] = [];
let view: View;

export function start(defaults: View): View {
  view = { ...defaults, ...read(defaults) };
  window.addEventListener("hashchange", () => update(read(defaults), false));
  return view;
}

export function current(): View {
  return view;
}

export function listen(listener: Listener): void {
  listeners.push(listener);
}

export function update(change: Partial<View>, write = true): void {
  const changed = new Set<keyof View>();
  for (const key of Object.keys(change) as (keyof View)[]) {
    if (JSON.stringify(view[key]) !== JSON.stringify(change[key])) changed.add(key);
  }
  if (changed.size === 0) return;
  view = { ...view, ...change };
  if (write) history.replaceState(null, "", fragment());
  for (const listener of listeners) listener(view, changed);
}

function fragment(): string {
  const parts = new URLSearchParams();
  if (view.section) parts.set("section", view.section);
  parts.set("lang", view.lang);
  if (view.theme !== "auto") parts.set("theme", view.theme);
  parts.set("books", view.books.join(","));
  if (view.map) parts.set("map", view.map);
  if (view.from !== null && view.to !== null) {
    parts.set("from", view.from.toPrecision(6));
    parts.set("to", view.to.toPrecision(6));
  }
  return "#" + parts.toString();
}

function read(defaults: View): Partial<View> {
  const text = location.hash.slice(1);
  if (!text.includes("=")) return text ? { section: text } : {};
  const parts = new URLSearchParams(text);
  const lang = parts.get("lang");
  const theme = parts.get("theme");
  const from = number(parts.get("from"));
  const to = number(parts.get("to"));
  const zoomed = from !== null && to !== null && to > from;
  return {
    lang: lang === "zh" || lang === "en" ? lang : defaults.lang,
    theme: theme === "light" || theme === "dark" ? theme : "auto",
    books: parts.get("books")?.split(",") ?? defaults.books,
    from: zoomed ? from : null,
    to: zoomed ? to : null,
    map: parts.get("map") ?? defaults.map,
    section: parts.get("section") ?? "",
  };
}

function number(text: string | null): number | null {
  const value = text === null ? NaN : Number(text);
  return Number.isFinite(value) ? value : null;
}
