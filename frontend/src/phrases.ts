import type { Data } from "./data";
import { current } from "./state";

let phrases: Data["phrases"] = {};

export function learn(data: Data): void {
  phrases = data.phrases;
}

export function say(key: string, values: Record<string, string> = {}): string {
  const pair = phrases[key];
  if (!pair) return key;
  return pair[current().lang === "zh" ? 1 : 0].replace(/\{(\w+)\}/g, (_, name: string) => values[name] ?? "");
}
