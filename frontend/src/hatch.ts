// External fragmentation is free memory, and nobody knows what is unattributed: both are hatched, not only coloured.

import { colour } from "./dom";

const STEP = 5;

export function fillOf(account: string): string | CanvasPattern {
  if (account !== "external" && account !== "unattributed") return colour(account);
  const ratio = window.devicePixelRatio || 1;
  const tile = document.createElement("canvas");
  tile.width = tile.height = STEP * ratio * 2;
  const pen = tile.getContext("2d")!;
  pen.scale(ratio, ratio);
  pen.fillStyle = colour("free");
  pen.fillRect(0, 0, STEP * 2, STEP * 2);
  pen.strokeStyle = colour(account);
  pen.lineWidth = account === "external" ? 2 : 1;
  pen.beginPath();
  for (const shift of [-STEP * 2, -STEP, 0, STEP, STEP * 2, STEP * 3]) {
    if (account === "external") {
      pen.moveTo(shift, STEP * 2);
      pen.lineTo(shift + STEP * 2, 0);
    } else {
      pen.moveTo(shift, 0);
      pen.lineTo(shift + STEP * 2, STEP * 2);
    }
  }
  pen.stroke();
  return pen.createPattern(tile, "repeat")!;
}

// The same as a definition in a saved picture.
export function hatchDefs(): string {
  const one = (account: string, angle: number) =>
    `<pattern id="hatch-${account}" width="${STEP}" height="${STEP}" patternUnits="userSpaceOnUse" patternTransform="rotate(${angle})">` +
    `<rect width="${STEP}" height="${STEP}" fill="${colour("free")}"/><rect width="${account === "external" ? 2 : 1}" height="${STEP}" fill="${colour(account)}"/></pattern>`;
  return `<defs>${one("external", 45)}${one("unattributed", -45)}</defs>`;
}

export function svgFill(account: string): string {
  return account === "external" || account === "unattributed" ? `url(#hatch-${account})` : colour(account);
}
