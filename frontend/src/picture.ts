// The stacked chart as an SVG file of its own.

import type { Book } from "./data";
import { colour } from "./dom";
import { amount, duration, round, timeSplits } from "./format";
import { hatchDefs, svgFill } from "./hatch";
import { say } from "./phrases";

const WIDTH = 960;
const HEIGHT = 360;
const LEFT = 70;
const TOP = 34;
const RIGHT = 14;
const BOTTOM = 52;

export function stackedSvg(book: Book, shown: string[], range: [number, number], title: string): string {
  const line = book.timeline!;
  const [from, to] = range;
  const x = (seconds: number) => LEFT + ((seconds - from) / (to - from)) * (WIDTH - LEFT - RIGHT);
  const y = (ratio: number) => TOP + (1 - ratio) * (HEIGHT - TOP - BOTTOM);
  const ends = [...line.start_seconds.slice(1), line.end_seconds];
  const inside = line.start_seconds.map((_, i) => i).filter((i) => ends[i]! > from && line.start_seconds[i]! < to);
  const below = new Array<number>(line.start_seconds.length).fill(0);
  const layers = shown.map((account) => {
    const up: string[] = [];
    const down: string[] = [];
    for (const i of inside) {
      const [left, right] = [x(Math.max(from, line.start_seconds[i]!)), x(Math.min(to, ends[i]!))];
      const base = below[i]!;
      below[i] = base + line.ratio[account]![i]!;
      up.push(`L${f(left)} ${f(y(below[i]!))}H${f(right)}`);
      down.push(`L${f(right)} ${f(y(base))}H${f(left)}`);
    }
    const path = (up.join("") + down.reverse().join("")).replace("L", "M");
    return `<path d="${path}Z" fill="${svgFill(account)}"/>`;
  });
  const text = `font-family="sans-serif" font-size="11" fill="${colour("ink-2")}"`;
  const axis = [0, 0.25, 0.5, 0.75, 1].map(
    (ratio) => `<text ${text} x="${LEFT - 8}" y="${f(y(ratio) + 4)}" text-anchor="end">${round(amount(ratio * book.capacity, book.unit))}</text>`,
  );
  const ticks = timeSplits(from, to, 8).map((seconds) => {
    return `<text ${text} x="${f(x(seconds))}" y="${HEIGHT - BOTTOM + 18}" text-anchor="middle">${round(duration(seconds, to))}</text>`;
  });
  let at = LEFT;
  const legend = shown.map((account) => {
    const name = escape(say(`account.${account}`));
    const entry = `<rect x="${at}" y="${HEIGHT - 18}" width="10" height="10" fill="${svgFill(account)}"/><text ${text} x="${at + 15}" y="${HEIGHT - 9}">${name}</text>`;
    at += 40 + 8 * name.length;
    return entry;
  });
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${HEIGHT}" viewBox="0 0 ${WIDTH} ${HEIGHT}">` +
    hatchDefs() +
    `<rect width="${WIDTH}" height="${HEIGHT}" fill="${colour("paper")}"/>` +
    `<text font-family="sans-serif" font-size="14" fill="${colour("ink")}" x="${LEFT}" y="20">${escape(title)}</text>` +
    [...layers, ...axis, ...ticks, ...legend].join("") +
    "</svg>\n"
  );
}

function f(value: number): string {
  return value.toFixed(2).replace(/\.?0+$/, "");
}

export function escape(text: string): string {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
}
