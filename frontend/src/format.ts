// How numbers are written; the same as on the static sheet.

const GAP = "\u202f";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function percent(ratio: number): string {
  return `${(100 * ratio).toFixed(1)}${GAP}%`;
}

export function amount(value: number, unit: string): string {
  if (unit !== "bytes") return Math.round(value).toLocaleString("en-US");
  let step = 0;
  let size = value;
  while (size >= 1024 && step < UNITS.length - 1) {
    size /= 1024;
    step += 1;
  }
  return `${step === 0 ? Math.round(size) : size.toFixed(2)}${GAP}${UNITS[step]}`;
}

// On an axis no figure is needed that is the same for all.
export function round(text: string): string {
  return text.replace(/\.0+(?=\u202f)|(\.\d*?[1-9])0+(?=\u202f)/, "$1");
}

export function duration(seconds: number, of: number = seconds): string {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]] as const) {
    if (of >= 2 * size) return `${(seconds / size).toFixed(1)}${GAP}${unit}`;
  }
  return `${of < 100 ? seconds.toFixed(2) : seconds.toFixed(0)}${GAP}s`;
}

// A moment rather than a length: two units, the second whole.
export function moment(seconds: number): string {
  for (const [size, unit, small, part] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]] as const) {
    if (seconds < size * 1.5) continue;
    const rest = Math.floor((seconds % size) / small);
    return `${Math.floor(seconds / size)}${GAP}${unit} ${rest}${GAP}${part}`;
  }
  return `${seconds.toFixed(2)}${GAP}s`;
}

// Where the lines of a time axis go: on whole numbers of the unit that the span is told in.
export function timeSplits(from: number, to: number, most: number): number[] {
  const nice = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const least = (to - from) / Math.max(1, most);
  let step = nice.find((one) => one >= least) ?? 86400 * Math.ceil(least / 86400);
  if (least < 1) step = niceDecimal(least);
  const splits: number[] = [];
  for (let at = Math.ceil(from / step - 1e-9) * step; at <= to * (1 + 1e-12); at += step) splits.push(at);
  return splits;
}

function niceDecimal(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((one) => one * power >= least) ?? 10) * power;
}

export function decimal(value: number): string {
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en-US") : value.toFixed(1);
}
