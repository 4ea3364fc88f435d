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
  return text.replace(/\.?0+(?=\u202f)/, "");
}

export function duration(seconds: number, of: number = seconds): string {
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]] as const) {
    if (of >= 2 * size) return `${(seconds / size).toFixed(1)}${GAP}${unit}`;
  }
  return `${of < 100 ? seconds.toFixed(2) : seconds.toFixed(0)}${GAP}s`;
}

export function decimal(value: number): string {
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en-US") : value.toFixed(1);
}
