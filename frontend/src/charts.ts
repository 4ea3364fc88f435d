// All charts: which books are shown, and what they share: the time axis, the cursor, the zoom.

import { Chart, type Hooks } from "./chart";
import type { Book, Data } from "./data";
import { make } from "./dom";
import { say } from "./phrases";
import { current, listen, update, type View } from "./state";

export class Charts {
  private charts: Chart[] = [];
  private readonly host: HTMLElement;
  private readonly books: Book[];

  constructor(private readonly data: Data) {
    this.host = document.getElementById("charts")!;
    this.books = data.books.filter((book) => book.timeline);
    this.host.hidden = false;
    this.build();
    listen((view, changed) => {
      if (changed.has("lang") || changed.has("theme") || changed.has("books")) this.build();
      else if (changed.has("from") || changed.has("to")) this.zoom(view);
    });
    window.addEventListener("beforeprint", () => this.build());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
  }

  build(): void {
    for (const chart of this.charts) chart.destroy();
    const chosen = new Set(current().books);
    const shown = this.books.filter((book) => chosen.has(book.key));
    const whole = Math.max(...this.books.map((book) => book.timeline!.end_seconds), 1e-9);
    const hooks: Hooks = {
      onCursor: (seconds) => this.charts.forEach((chart) => chart.point(seconds)),
      onZoom: (from, to) => update({ from, to }),
      onReset: () => update({ from: null, to: null }),
    };
    this.charts = shown.map((book) => new Chart(book, this.title(book), whole, hooks));
    this.host.replaceChildren(...this.chips(chosen), ...this.charts.map((chart) => chart.node));
    for (const chart of this.charts) chart.draw();
    this.zoom(current());
  }

  private zoom(view: View): void {
    const shown = this.books.filter((book) => view.books.includes(book.key));
    const end = Math.max(...shown.map((book) => book.timeline!.end_seconds), 1e-9);
    for (const chart of this.charts) chart.zoom(view.from ?? 0, view.to ?? end);
  }

  private title(book: Book): string {
    return this.data.runs.length > 1 ? `${book.name} · ${this.data.runs[book.run]!.name}` : book.name;
  }

  private chips(chosen: Set<string>): HTMLElement[] {
    if (this.books.length < 2) return [];
    const boxes = this.books.map((book) => {
      const box = make("input", { type: "checkbox", value: book.key, checked: chosen.has(book.key) });
      box.addEventListener("change", () => {
        const keys = this.books.map((one) => one.key).filter((key) => (key === book.key ? box.checked : current().books.includes(key)));
        update({ books: keys });
        this.host.querySelector<HTMLInputElement>(`input[value="${CSS.escape(book.key)}"]`)?.focus();
      });
      return make("label", {}, box, make("code", {}, make("bdi", {}, this.title(book))));
    });
    return [make("div", { class: "chips", role: "group", "aria-label": say("shown") }, ...boxes)];
  }
}
