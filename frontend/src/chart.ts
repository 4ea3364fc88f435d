// One book over time: its accounts stacked up to the pool, and its requests below.

import uPlot from "uplot";
import { ACCOUNTS, type Book, type Timeline } from "./data";
import { button, colour, make, save } from "./dom";
import { amount, decimal, duration, moment, percent, round, timeSplits } from "./format";
import { fillOf } from "./hatch";
import { say } from "./phrases";
import { stackedSvg } from "./picture";

const HEIGHT = 196;
const LANE = 52;
const LANE_WITH_AXIS = 74;

export interface Hooks {
  onCursor(seconds: number | null): void;
  onZoom(from: number, to: number): void;
  onReset(): void;
}

export class Chart {
  readonly node: HTMLElement;
  private readonly plots: uPlot[] = [];
  private readonly readout = make("div", { class: "readout" });
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
    const lanes = (["running", "waiting"] as const).filter((name) => this.line[name].some((value) => (value ?? 0) > 0));
    lanes.forEach((name, index) => {
      const last = index === lanes.length - 1;
      this.plots.push(new uPlot(this.laneOptions(width, name, last), this.laneData(name), this.slider));
    });
    new ResizeObserver(() => this.resize()).observe(this.slider);
    this.tell(null);
  }

  resize(): void {
    const width = Math.max(240, this.slider.clientWidth);
    for (const plot of this.plots) if (plot.width !== width) plot.setSize({ width, height: plot.height });
  }

  destroy(): void {
    for (const plot of this.plots) plot.destroy();
  }

  zoom(from: number, to: number): void {
    this.range = [from, to];
    this.quiet = true;
    for (const plot of this.plots) plot.setScale("x", { min: from, max: to });
    this.quiet = false;
    this.tell(this.at);
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

  private laneData(name: "running" | "waiting"): uPlot.AlignedData {
    const column = this.line[name];
    return [this.xs(), [...column, column.at(-1) ?? null]];
  }

  private stackOptions(width: number): uPlot.Options {
    const stepped = uPlot.paths.stepped!({ align: 1 });
    const none = { show: false };
    const bands = [...this.shown].reverse().map((account) => ({
      label: account,
      fill: () => fillOf(account),
      width: 0,
      paths: stepped,
      points: none,
    }));
    const peak = { label: "peak", stroke: colour("ink-3"), width: 0.75, paths: stepped, points: none };
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

  private laneOptions(width: number, name: "running" | "waiting", last: boolean): uPlot.Options {
    const stepped = uPlot.paths.stepped!({ align: 1 });
    const time: uPlot.Axis = {
      ...this.axis({
        splits: (plot) => timeSplits(this.range[0], this.range[1], plot.width / 110),
        values: (_, splits) => splits.map((value) => round(duration(value, this.range[1]))),
      }),
      size: 24,
    };
    const label = (plot: uPlot) => {
      plot.ctx.save();
      plot.ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      plot.ctx.fillStyle = colour("ink-3");
      plot.ctx.textAlign = "right";
      plot.ctx.textBaseline = "middle";
      plot.ctx.fillText(say(name), plot.bbox.left - 6 * devicePixelRatio, plot.bbox.top + plot.bbox.height / 2);
      plot.ctx.restore();
    };
    const common = this.common(width, last ? LANE_WITH_AXIS : LANE);
    return {
      ...common,
      hooks: { ...common.hooks, draw: [label] },
      scales: { x: { time: false, range: () => this.range }, y: { range: (_, __, max) => [0, Math.max(1, max) * 1.08] } },
      series: [{}, { label: name, stroke: colour("ink"), width: 1.1, paths: stepped, points: { show: false } }],
      axes: [last ? time : { show: false }, this.axis({ splits: (_, __, ___, max) => [0, topOf(max / 1.08)] })],
    };
  }

  private common(width: number, height: number): Omit<uPlot.Options, "series"> {
    return {
      width,
      height,
      padding: [8, 6, 8, 0],
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

  // What the cursor points at; without one, the mean of all that is visible.
  private tell(seconds: number | null): void {
    this.at = seconds;
    const [from, to] = this.range;
    const end = Math.min(to, this.line.end_seconds);
    const index = seconds === null || seconds > this.line.end_seconds ? -1 : this.index(seconds);
    const { unit, capacity } = this.book;
    const when = make("p", { class: "when" });
    const ratios = new Map<string, number>();
    for (const account of this.shown) {
      const column = this.line.ratio[account]!;
      ratios.set(account, index >= 0 ? column[index]! : (this.mean(column) ?? 0));
    }
    const known = [...ratios.values()].some((ratio) => ratio > 0);
    if (index >= 0) {
      const start = this.line.start_seconds[index]!;
      const stop = this.line.start_seconds[index + 1] ?? this.line.end_seconds;
      when.append(`${moment(start)} · ${say("mean", { span: duration(stop - start) })}`);
    } else if (seconds === null) {
      when.append(say("mean", { span: duration(Math.max(0, end - from)) }));
    }
    const blank = (seconds !== null && index < 0) || !known;
    const nothing = say(this.line.sampled ? "unsampled" : "idle");
    if (blank) when.append(` ${nothing}`);
    const rows: HTMLElement[] = [];
    for (const [account, ratio] of ratios) {
      const name = [make("i", { class: `swatch s-${account}` }), say(`account.${account}`)];
      rows.push(readoutRow(name, blank ? "" : amount(ratio * capacity, unit), blank ? "" : percent(ratio)));
    }
    rows.push(readoutRow([say("pool")], amount(capacity, unit), "", "total"));
    for (const name of ["running", "waiting"] as const) {
      const value = index >= 0 ? this.line[name][index]! : this.mean(this.line[name]);
      rows.push(readoutRow([say(name)], (seconds !== null && index < 0) || value === null ? "" : decimal(value), ""));
    }
    this.readout.replaceChildren(when, make("dl", {}, ...rows));
    const spoken = [...ratios].map(([account, ratio]) => `${say(`account.${account}`)} ${percent(ratio)}`).join(", ");
    this.slider.setAttribute("aria-valuenow", String(Math.round((seconds ?? from) * 1000) / 1000));
    this.slider.setAttribute("aria-valuetext", `${when.textContent}: ${blank ? nothing : spoken}`);
  }

  private mean(column: (number | null)[]): number | null {
    const [from, to] = this.range;
    let sum = 0;
    let whole = 0;
    this.line.start_seconds.forEach((start, i) => {
      const stop = this.line.start_seconds[i + 1] ?? this.line.end_seconds;
      const seconds = Math.min(stop, to) - Math.max(start, from);
      if (seconds <= 0 || column[i] === null) return;
      sum += column[i]! * seconds;
      whole += seconds;
    });
    return whole > 0 ? sum / whole : null;
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

export function readoutRow(name: (Node | string)[], value: string, ratio: string, kind = ""): HTMLElement {
  return make("div", { class: kind }, make("dt", {}, ...name), make("dd", {}, value), make("dd", {}, ratio));
}

// One number says how high a lane is: the largest with two figures that fits.
function topOf(max: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, max)));
  return Math.max(1, Math.floor(max / (power / 10 || 1)) * (power / 10 || 1));
}
