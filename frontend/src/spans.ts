// A map as spans of the pool, one after the other without gaps: pieces and the holes between them, or cells of blocks.

import type { Book, Layout } from "./data";

export interface Part {
  account: string;
  size: number;
}

export interface Span {
  kind: "piece" | "hole" | "cell";
  index: number;
  start: number;
  size: number;
  parts: Part[];
}

export function spansOf(book: Book, layout: Layout): Span[] {
  return layout.blocks ? cells(book, layout) : pieces(book, layout);
}

export function capacityOf(layout: Layout): number {
  return Object.values(layout.accounts_bytes).reduce((sum, value) => sum + value, 0);
}

function pieces(book: Book, layout: Layout): Span[] {
  const columns = layout.pieces!;
  const spans: Span[] = [];
  const places = layout.order === "addresses" || layout.order === "segments";
  let at = 0;
  const hole = (end: number) => {
    if (end <= at) return;
    const lost = places && layout.asked_bytes > 0 && end - at < layout.asked_bytes;
    spans.push({ kind: "hole", index: -1, start: at, size: end - at, parts: [{ account: lost ? "external" : "free", size: end - at }] });
    at = end;
  };
  columns.request.forEach((_, index) => {
    const start = columns.start_bytes[index]!;
    hole(start);
    const [size, used, reserved] = [columns.size_bytes[index]!, columns.used_bytes[index]!, columns.reserved_bytes[index]!];
    const whole = columns.end_bytes[index]! - start;
    spans.push({
      kind: "piece",
      index,
      start,
      size: whole,
      parts: [
        { account: "used", size: used },
        { account: "reserved", size: reserved },
        { account: "internal", size: size - used - reserved },
        { account: "free", size: whole - size },
      ],
    });
    at = start + whole;
  });
  hole(book.capacity);
  return spans;
}

function cells(book: Book, layout: Layout): Span[] {
  const columns = layout.blocks!;
  const size = columns.blocks_per_cell * layout.unit_bytes;
  return columns.held_bytes.map((held, index) => {
    const start = index * size;
    const whole = Math.min(size, book.capacity - start);
    const [used, cached] = [columns.used_bytes[index]!, columns.cached_bytes[index]!];
    return {
      kind: "cell",
      index,
      start,
      size: whole,
      parts: [
        { account: "used", size: used },
        { account: "internal", size: held - used },
        { account: "cached", size: cached },
        { account: "free", size: whole - held - cached },
      ],
    };
  });
}
