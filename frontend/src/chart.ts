// One book over time: its accounts stacked up to the pool, and its requests below.

import uPlot from "uplot";
import { ACCOUNTS, type Book, type Timeline } from "./data";
import { button, colour, make, save } from "./dom";
import { amount, decimal, duration, percent, round } from "./format";
import { say } from "./phrases";
import { stackedSvg } from "./picture";

const HEIGHT = 190;
const BELOW = 74;

export interface Hooks {
  onCursor(seconds: number | null): void;
  onZoom(from: number, to: number): void;
  onReset(): void;
}

export class Chart {
  readonly node: HTMLElement;
  private readonly plots: uPlot[] = [];
  private readonly readout = make("dl", { class: "readout" });
  private readonly slider: HTMLElement;
  private readonly line: Timeline;
  private readonly shown: string[];
  private quiet = false;
  private at: number | null = null;
  private range: [number, number];

  constructor(
    private readonly book: Book,
    title: string,
    private readonly whole: number,
    private readonly hooks: Hooks,
  ) {
    this.line = book.timeline!;
    this.shown = ACCOUNTS.filter((account) => this.line.ratio[account]);
    this.range = [0, whole];
    this.slider = make("div", {
      class: "plot",
      tabindex: "0",
      role: "slider",
      "aria-label": say("chart", { name: title }),
      "aria-valuemin": "0",
      "aria-valuemax": String(whole),
      "aria-valuenow": "0",
    });
    this.slider.addEventListener("keydown", (event) => this.onKey(event));
    this.node = make(
      "div",
      { class: "chart" },
      make("h3", {}, make("code", {}, make("bdi", {}, title))),
      this.slider,
      this.readout,
      make(
        "div",
        { class: "chartbar" },
        button(say("reset"), () => hooks.onReset()),
        button(say("svg"), () => this.saveSvg(title)),
      ),
    );
  }

  draw(): void {
    const width = Math.max(240, this.slider.clientWidth);
    this.plots.push(new uPlot(this.stackOptions(width), this.stackData(), this.slider));
    this.plots.push(new uPlot(this.loadOptions(width), this.loadData(), this.slider));
    new ResizeObserver(() => this.resize()).observe(this.slider);
    this.tell(null);
  }

  resize(): void {
    const width = Math.max(240, this.slider.clientWidth);
    this.plots.forEach((plot, index) => {
      if (plot.width !== width) plot.setSize({ width, height: index ? BELOW : HEIGHT });
    });
  }

  destroy(): void {
    for (const plot of this.plots) plot.destroy();
  }

  zoom(from: number, to: number): void {
    this.range = [from, to];
    this.quiet = true;
    for (const plot of this.plots) plot.setScale("x", { min: from, max: to });
    this.quiet = false;
  }

  point(seconds: number | null): void {
    this.quiet = true;
    for (const plot of this.plots) {
      const left = seconds === null ? -10 : plot.valToPos(seconds, "x");
      plot.setCursor({ left, top: seconds === null ? -10 : 10 }, false);
    }
    this.quiet = false;
    this.tell(seconds);
  }

  private xs(): number[] {
    return [...this.line.start_seconds, this.line.end_seconds];
  }

  private stackData(): uPlot.AlignedData {
    const count = this.line.start_seconds.length;
    const sums: (number | null)[][] = [];
    let below = new Array<number>(count).fill(0);
    for (const account of this.shown) {
      const column = this.line.ratio[account]!;
      below = below.map((value, i) => value + column[i]!);
      sums.push(below);
    }
    const total = sums.at(-1) ?? [];
    const closed = sums.map((column) => {
      const cells = column.map((value, i) => (total[i] ? value : null));
      return [...cells, cells.at(-1) ?? null];
    });
    const held = this.line.peak_held_ratio.map((value, i) => (total[i] ? value : null));
    return [this.xs(), ...closed.reverse(), [...held, held.at(-1) ?? null]] as uPlot.AlignedData;
  }

  private loadData(): uPlot.AlignedData {
    const close = (column: number[]) => [...column, column.at(-1) ?? 0];
    return [this.xs(), close(this.line.waiting), close(this.line.running)];
  }

  private stackOptions(width: number): uPlot.Options {
    const stepped = uPlot.paths.stepped!({ align: 1 });
    const none = { show: false };
    const bands = [...this.shown].reverse().map((account) => ({
      label: account,
      fill: colour(account),
      width: 0,
      paths: stepped,
      points: none,
    }));
    const peak = { label: "peak", stroke: colour("ink"), width: 0.75, dash: [2, 3], paths: stepped, points: none };
    return {
      ...this.common(width, HEIGHT),
      scales: { x: { time: false, range: () => this.range }, y: { range: [0, 1] } },
      series: [{}, ...bands, peak],
      axes: [
        { show: false },
        this.axis({
          splits: () => [0, 0.25, 0.5, 0.75, 1],
          values: (_, splits) => splits.map((value) => round(amount(value * this.book.capacity, this.book.unit))),
        }),
      ],
    };
  }

  private loadOptions(width: number): uPlot.Options {
    const stepped = uPlot.paths.stepped!({ align: 1 });
    const none = { show: false };
    return {
      ...this.common(width, BELOW),
      scales: { x: { time: false, range: () => this.range }, y: { range: (_, __, max) => [0, Math.max(1, max)] } },
      series: [
        {},
        { label: "waiting", stroke: colour("ink-3"), width: 1, dash: [3, 3], paths: stepped, points: none },
        { label: "running", stroke: colour("ink"), width: 1.25, paths: stepped, points: none },
      ],
      axes: [
        {
          ...this.axis({ values: (_, splits) => splits.map((value) => round(duration(value, this.range[1]))) }),
          size: 28,
          space: 90,
        },
        this.axis({ space: 24 }),
      ],
    };
  }

  private common(width: number, height: number): Omit<uPlot.Options, "series"> {
    return {
      width,
      height,
      padding: [6, 6, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false }, bind: { dblclick: () => null } },
      hooks: {
        setCursor: [
          (plot) => {
            if (this.quiet) return;
            const left = plot.cursor.left ?? -1;
            this.hooks.onCursor(left < 0 ? null : plot.posToVal(left, "x"));
          },
        ],
        setSelect: [
          (plot) => {
            const { left, width: across } = plot.select;
            if (across < 3) return;
            const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + across, "x")];
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            this.hooks.onZoom(from, to);
          },
        ],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => this.hooks.onReset())],
      },
    };
  }

  private axis(more: uPlot.Axis): uPlot.Axis {
    return {
      stroke: colour("ink-3"),
      font: "11px system-ui, sans-serif",
      grid: { stroke: colour("rule"), width: 1 },
      ticks: { show: false },
      gap: 6,
      size: 66,
      ...more,
    };
  }

  private index(seconds: number): number {
    const starts = this.line.start_seconds;
    let low = 0;
    let high = starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (starts[middle]! <= seconds) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  private tell(seconds: number | null): void {
    this.at = seconds;
    const index = seconds === null || seconds >= this.line.end_seconds ? -1 : this.index(seconds);
    const rows: HTMLElement[] = [];
    const value = (account: string) => (index < 0 ? null : this.line.ratio[account]![index]!);
    const known = index >= 0 && this.shown.some((account) => value(account));
    const when = make("p", { class: "when" });
    if (index >= 0) {
      const end = this.line.start_seconds[index + 1] ?? this.line.end_seconds;
      const start = this.line.start_seconds[index]!;
      when.append(`${duration(start, this.whole)} · ${say("mean", { span: duration(end - start) })}`);
    }
    for (const account of this.shown) {
      const ratio = value(account);
      rows.push(
        make(
          "div",
          {},
          make("dt", {}, make("i", { class: `swatch s-${account}` }), say(`account.${account}`)),
          make("dd", {}, ratio === null || !known ? "" : amount(ratio * this.book.capacity, this.book.unit)),
          make("dd", {}, ratio === null || !known ? "" : percent(ratio)),
        ),
      );
    }
    const pool = amount(this.book.capacity, this.book.unit);
    rows.push(make("div", { class: "total" }, make("dt", {}, say("pool")), make("dd", {}, pool), make("dd", {}, "")));
    for (const name of ["running", "waiting"] as const) {
      const text = index < 0 ? "" : decimal(this.line[name][index]!);
      rows.push(make("div", {}, make("dt", {}, say(name)), make("dd", {}, text), make("dd", {}, "")));
    }
    this.readout.replaceChildren(when, ...rows);
    this.slider.setAttribute("aria-valuenow", String(Math.round((seconds ?? 0) * 1000) / 1000));
    const spoken = this.shown.map((account) => `${say(`account.${account}`)} ${percent(value(account) ?? 0)}`);
    this.slider.setAttribute(
      "aria-valuetext",
      index < 0 ? say("idle") : `${duration(seconds!, this.whole)}: ${known ? spoken.join(", ") : say("idle")}`,
    );
  }

  private onKey(event: KeyboardEvent): void {
    const starts = this.line.start_seconds;
    const [from, to] = this.range;
    const at = this.at ?? from;
    const jump = event.shiftKey ? 10 : 1;
    const step = (to - from) / 200;
    const go = (seconds: number) => this.hooks.onCursor(Math.min(to, Math.max(from, seconds)));
    switch (event.key) {
      case "ArrowRight":
        go(Math.max(at + step * jump, starts[Math.min(starts.length - 1, this.index(at) + jump)] ?? at));
        break;
      case "ArrowLeft":
        go(Math.min(at - step * jump, starts[Math.max(0, this.index(at) - jump)] ?? at));
        break;
      case "Home":
        go(from);
        break;
      case "End":
        go(to);
        break;
      case "+":
      case "=":
        this.hooks.onZoom(at - (at - from) / 2, at + (to - at) / 2);
        break;
      case "-":
        this.hooks.onZoom(Math.max(0, at - 2 * (at - from)), Math.min(this.whole, at + 2 * (to - at)));
        break;
      case "Escape":
        this.hooks.onReset();
        break;
      default:
        return;
    }
    event.preventDefault();
  }

  private saveSvg(title: string): void {
    save(stackedSvg(this.book, this.shown, this.range, title), `kvledger-${title}.svg`, "image/svg+xml");
  }
}
