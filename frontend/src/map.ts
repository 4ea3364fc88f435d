// The pool at one instant, drawn as SVG: line after line of memory, each account one path.

import { readoutRow } from "./chart";
import { ACCOUNTS, type Book, type Data, type Layout } from "./data";
import { button, colour, make, save } from "./dom";
import { amount, decimal, moment, percent, round } from "./format";
import { hatchDefs, svgFill } from "./hatch";
import { say } from "./phrases";
import { escape } from "./picture";
import { capacityOf, spansOf, type Span } from "./spans";
import { current, listen, update } from "./state";

const NAMESPACE = "http://www.w3.org/2000/svg";
const LEFT = 62;
const LARGEST = 8;

interface Sheet {
  width: number;
  rows: number;
  line: number;
  gap: number;
  perRow: number;
}

export class PoolMap {
  private readonly host = document.getElementById("map")!;
  private readonly books: Book[];
  private spans: Span[] = [];
  private sheet!: Sheet;
  private chosen = -1;
  private slider!: HTMLElement;
  private readout!: HTMLElement;
  private outline!: SVGPathElement;
  private book!: Book;
  private layout!: Layout;

  constructor(private readonly data: Data) {
    this.books = data.books.filter((book) => book.layouts.length > 0);
    this.host.hidden = false;
    this.build();
    listen((_, changed) => {
      if (changed.has("lang") || changed.has("map") || changed.has("theme")) this.build();
    });
    let width = this.host.clientWidth;
    new ResizeObserver(() => {
      if (this.host.clientWidth === width) return;
      width = this.host.clientWidth;
      this.draw();
    }).observe(this.host);
  }

  private build(): void {
    const [key, moment] = current().map.split("/");
    this.book = this.books.find((book) => book.key === key) ?? this.books[0]!;
    this.layout = this.book.layouts.find((layout) => layout.moment === moment) ?? this.book.layouts[0]!;
    this.spans = spansOf(this.book, this.layout);
    this.chosen = -1;
    this.slider = make("div", {
      class: "mapped",
      tabindex: "0",
      role: "slider",
      "aria-label": say("map", { name: this.book.name }),
      "aria-valuemin": "0",
      "aria-valuemax": String(this.spans.length - 1),
      "aria-valuenow": "0",
    });
    this.slider.addEventListener("keydown", (event) => this.onKey(event));
    this.slider.addEventListener("pointermove", (event) => this.onPointer(event));
    this.slider.addEventListener("pointerleave", () => this.choose(-1));
    this.readout = make("div", { class: "readout" });
    this.host.replaceChildren(
      this.choices(),
      make("div", { class: "mapbox" }, this.slider, this.readout),
      make("div", { class: "chartbar" }, button(say("svg"), () => this.saveSvg())),
    );
    this.draw();
    this.choose(-1);
  }

  private choices(): HTMLElement {
    const many = this.data.runs.length > 1;
    const name = (book: Book) => (many ? `${book.name} · ${this.data.runs[book.run]!.name}` : book.name);
    const policy = make("select", { "aria-label": say("policy") });
    for (const book of this.books) policy.append(make("option", { value: book.key, selected: book === this.book }, name(book)));
    policy.addEventListener("change", () => {
      update({ map: `${policy.value}/${this.layout.moment}` });
      this.host.querySelector("select")?.focus();
    });
    const moments = this.book.layouts.map((layout) => {
      const box = make("input", { type: "radio", name: "moment", value: layout.moment, checked: layout === this.layout });
      box.addEventListener("change", () => {
        update({ map: `${this.book.key}/${layout.moment}` });
        this.host.querySelector<HTMLInputElement>(`input[value="${layout.moment}"]`)?.focus();
      });
      return make("label", {}, box, say(`moment.${layout.moment}`));
    });
    return make(
      "div",
      { class: "chips" },
      policy,
      make("span", { class: "radios", role: "radiogroup", "aria-label": say("moment") }, ...moments),
      make("span", { class: "note" }, say(`order.${this.layout.order}`)),
    );
  }

  private measure(width: number): Sheet {
    const [line, gap] = [width < 500 ? 9 : 13, 3];
    const perRow = roundSize(this.book.capacity / (width < 500 ? 40 : 28));
    return { width: width - LEFT, rows: Math.ceil(this.book.capacity / perRow), line, gap, perRow };
  }

  private draw(): void {
    this.sheet = this.measure(Math.max(240, this.slider.clientWidth));
    const { width, rows, line, gap } = this.sheet;
    const picture = document.createElementNS(NAMESPACE, "svg");
    picture.setAttribute("width", String(width + LEFT));
    picture.setAttribute("height", String(rows * (line + gap)));
    picture.setAttribute("aria-hidden", "true");
    picture.append(...this.shapes((account) => ({ class: `s-${account}` })));
    this.outline = document.createElementNS(NAMESPACE, "path");
    this.outline.setAttribute("class", "outline");
    picture.append(this.outline);
    this.slider.replaceChildren(picture);
  }

  private shapes(style: (account: string) => Record<string, string>): SVGElement[] {
    const paths = new Map<string, string[]>();
    const edges: string[] = [];
    for (const span of this.spans) {
      let at = span.start;
      for (const part of span.parts) {
        if (part.size <= 0) continue;
        const fragments = paths.get(part.account) ?? paths.set(part.account, []).get(part.account)!;
        this.lines(at, part.size, (x, y, w, h) => fragments.push(`M${f(x)} ${f(y)}h${f(w)}v${f(h)}h${f(-w)}z`));
        at += part.size;
      }
      this.lines(span.start, 0, (x, y, _, h) => edges.push(`M${f(x)} ${f(y)}v${f(h)}`));
    }
    const drawn: SVGElement[] = [];
    for (const account of ACCOUNTS) {
      const fragments = paths.get(account);
      if (!fragments) continue;
      drawn.push(shape("path", { d: fragments.join(""), ...style(account) }));
    }
    const tight = this.spans.length > this.sheet.rows * (this.sheet.width / 5);
    if (!tight) drawn.push(shape("path", { d: edges.join(""), class: "edges", stroke: colour("paper"), fill: "none" }));
    for (let row = 0; row < this.sheet.rows; row += 4) {
      const text = shape("text", { x: String(LEFT - 8), y: String(this.y(row) + this.sheet.line - 2), "text-anchor": "end", class: "tick" });
      text.textContent = round(amount(row * this.sheet.perRow, this.book.unit));
      drawn.push(text);
    }
    return drawn;
  }

  private y(row: number): number {
    return row * (this.sheet.line + this.sheet.gap);
  }

  private lines(start: number, size: number, draw: (x: number, y: number, w: number, h: number) => void): void {
    const { perRow, width, line, rows } = this.sheet;
    let row = Math.min(rows - 1, Math.floor(start / perRow));
    let at = start;
    const end = start + size;
    do {
      const stop = Math.min(end, (row + 1) * perRow);
      const x = LEFT + ((at - row * perRow) / perRow) * width;
      draw(x, this.y(row), Math.max(0, ((stop - at) / perRow) * width), line);
      at = stop;
      row += 1;
    } while (at < end && row < rows);
  }

  private onPointer(event: PointerEvent): void {
    const box = this.slider.getBoundingClientRect();
    const { width, rows, line, gap, perRow } = this.sheet;
    const row = Math.floor((event.clientY - box.top) / (line + gap));
    const across = (event.clientX - box.left - LEFT) / width;
    if (row < 0 || row >= rows || across < 0 || across > 1) return this.choose(-1);
    const at = (row + across) * perRow;
    let low = 0;
    let high = this.spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.spans[middle]!.start <= at) low = middle + 1;
      else high = middle;
    }
    this.choose(low - 1);
  }

  private onKey(event: KeyboardEvent): void {
    const last = this.spans.length - 1;
    const jump = event.shiftKey ? 10 : 1;
    const next: Record<string, number> = {
      ArrowRight: Math.min(last, this.chosen + jump),
      ArrowLeft: Math.max(0, this.chosen - jump),
      Home: 0,
      End: last,
      Escape: -1,
    };
    const index = next[event.key];
    if (index === undefined) return;
    event.preventDefault();
    this.choose(index);
  }

  private choose(index: number): void {
    this.chosen = index;
    const span = this.spans[index];
    const fragments: string[] = [];
    if (span) this.lines(span.start, span.size, (x, y, w, h) => fragments.push(`M${f(x)} ${f(y)}h${f(w)}v${f(h)}h${f(-w)}z`));
    this.outline.setAttribute("d", fragments.join(""));
    this.slider.setAttribute("aria-valuenow", String(Math.max(0, index)));
    this.slider.setAttribute("aria-valuetext", span ? this.spoken(span) : this.title());
    this.readout.replaceChildren(...(span ? this.told(span) : this.summary()));
  }

  private title(): string {
    const { time_seconds, step, running, waiting } = this.layout;
    return [
      moment(time_seconds),
      say("step", { step: step.toLocaleString("en-US") }),
      `${decimal(running)} ${say("running")}`,
      `${decimal(waiting)} ${say("waiting")}`,
    ].join(" · ");
  }

  private nameOf(span: Span): string {
    const { pieces, blocks } = this.layout;
    if (span.kind === "hole") return say("hole");
    if (span.kind === "piece") {
      const number = String(pieces!.request[span.index]);
      const next = pieces!.joined;
      return next > 1 ? say("joined", { count: String(next), number }) : say("request", { number });
    }
    const number = String(span.index * blocks!.blocks_per_cell);
    return blocks!.blocks_per_cell > 1
      ? say("blocks", { count: String(blocks!.blocks_per_cell), number })
      : say("block", { number });
  }

  private spoken(span: Span): string {
    const parts = span.parts.filter((part) => part.size > 0);
    return `${this.nameOf(span)}: ${parts.map((part) => `${say(`account.${part.account}`)} ${amount(part.size, this.book.unit)}`).join(", ")}`;
  }

  private told(span: Span): HTMLElement[] {
    const unit = this.book.unit;
    const rows: HTMLElement[] = [];
    for (const part of span.parts) {
      if (part.size <= 0) continue;
      const name = [make("i", { class: `swatch s-${part.account}` }), say(`account.${part.account}`)];
      rows.push(readoutRow(name, amount(part.size, unit), percent(part.size / span.size)));
    }
    rows.push(readoutRow([say("held")], amount(span.size, unit), "", "total"));
    rows.push(readoutRow([say("address")], amount(span.start, unit), ""));
    const shared = this.layout.blocks?.shared_blocks[span.index];
    if (span.kind === "cell" && shared) rows.push(readoutRow([say("shared")], String(shared), ""));
    if (span.kind === "hole" && this.layout.asked_bytes) {
      rows.push(readoutRow([say("asked")], amount(this.layout.asked_bytes, unit), ""));
    }
    return [make("p", { class: "when" }, this.nameOf(span)), make("dl", {}, ...rows)];
  }

  private summary(): HTMLElement[] {
    const unit = this.book.unit;
    const capacity = capacityOf(this.layout);
    const rows: HTMLElement[] = [];
    const head = [
      make("p", { class: "which" }, make("code", {}, make("bdi", {}, this.book.name)), ` · ${say(`moment.${this.layout.moment}`)}`),
      make("p", { class: "when" }, this.title()),
    ];
    for (const account of ACCOUNTS) {
      const value = this.layout.accounts_bytes[account] ?? 0;
      if (!value) continue;
      const name = [make("i", { class: `swatch s-${account}` }), say(`account.${account}`)];
      rows.push(readoutRow(name, amount(value, unit), percent(value / capacity)));
    }
    rows.push(readoutRow([say("pool")], amount(capacity, unit), "", "total"));
    if (this.layout.asked_bytes) rows.push(readoutRow([say("asked")], amount(this.layout.asked_bytes, unit), ""));
    return [...head, make("dl", {}, ...rows), ...this.largest(unit, capacity)];
  }

  // The largest requests, and one band for all the others.
  private largest(unit: string, capacity: number): HTMLElement[] {
    const pieces = this.layout.pieces;
    if (!pieces || pieces.joined > 1 || pieces.request.length < 2) return [];
    const order = pieces.size_bytes.map((_, index) => index).sort((a, b) => pieces.size_bytes[b]! - pieces.size_bytes[a]! || a - b);
    const rows = order.slice(0, LARGEST).map((index) => {
      const size = pieces.size_bytes[index]!;
      return readoutRow([say("request", { number: String(pieces.request[index]) })], amount(size, unit), percent(size / capacity));
    });
    const rest = order.slice(LARGEST);
    const others = rest.reduce((sum, index) => sum + pieces.size_bytes[index]!, 0);
    if (rest.length) rows.push(readoutRow([say("other", { count: String(rest.length) })], amount(others, unit), percent(others / capacity)));
    return [make("p", { class: "when second" }, say("largest")), make("dl", {}, ...rows)];
  }

  private saveSvg(): void {
    const { width, rows, line, gap } = this.sheet;
    const size = [width + LEFT + 8, rows * (line + gap) + 34] as const;
    const inner = this.shapes((account) => ({ fill: svgFill(account) }));
    const text = inner.map((node) => {
      if (node.classList.contains("tick")) node.setAttribute("style", `font:11px sans-serif;fill:${colour("ink-3")}`);
      return new XMLSerializer().serializeToString(node);
    });
    const title = `${this.book.name} · ${say(`moment.${this.layout.moment}`)} · ${this.title()}`;
    save(
      `<svg xmlns="${NAMESPACE}" width="${size[0]}" height="${size[1]}" viewBox="0 0 ${size[0]} ${size[1]}">` +
        hatchDefs() +
        `<rect width="100%" height="100%" fill="${colour("paper")}"/>` +
        `<text x="${LEFT}" y="20" font-family="sans-serif" font-size="13" fill="${colour("ink")}">${escape(title)}</text>` +
        `<g transform="translate(0 32)">${text.join("")}</g></svg>\n`,
      `kvledger-map-${this.book.name}.svg`,
      "image/svg+xml",
    );
  }
}

function shape(name: string, attributes: Record<string, string>): SVGElement {
  const node = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// The next size up of which a line can be told in a word: 2 GiB rather than 1.92.
function roundSize(size: number): number {
  const power = 2 ** Math.floor(Math.log2(size));
  return [1, 1.25, 1.5, 2].map((one) => one * power).find((one) => one >= size)!;
}

function f(value: number): string {
  return String(Math.round(value * 100) / 100);
}
