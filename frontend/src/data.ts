// What Python has put into the page; it has checked it already.

export interface Timeline {
  start_seconds: number[];
  end_seconds: number;
  ratio: Record<string, number[]>;
  running: (number | null)[];
  waiting: (number | null)[];
  peak_used_ratio: number[];
  peak_held_ratio: number[];
  preemptions: (number | null)[];
  joined: number;
  sampled: boolean;
}

export interface Book {
  key: string;
  run: number;
  name: string;
  capacity: number;
  unit: "bytes" | "tokens";
  timeline: Timeline | null;
  layouts: Layout[];
}

export interface Layout {
  moment: string;
  order: "addresses" | "segments" | "blocks" | "counts";
  step: number;
  time_seconds: number;
  running: number;
  waiting: number;
  asked_bytes: number;
  unit_bytes: number;
  accounts_bytes: Record<string, number>;
  pieces: {
    joined: number;
    request: number[];
    start_bytes: number[];
    end_bytes: number[];
    size_bytes: number[];
    used_bytes: number[];
    reserved_bytes: number[];
  } | null;
  blocks: {
    blocks_per_cell: number;
    blocks: number;
    held_bytes: number[];
    used_bytes: number[];
    cached_bytes: number[];
    shared_blocks: number[];
  } | null;
}

export interface Data {
  phrases: Record<string, [string, string]>;
  books: Book[];
  runs: { name: string }[];
}

export const ACCOUNTS = ["used", "cached", "reserved", "internal", "external", "free", "unattributed"] as const;

export function load(): Data {
  return JSON.parse(document.getElementById("kvledger-data")!.textContent!) as Data;
}
