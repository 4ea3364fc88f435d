// Pictures that Python has drawn save as SVG files of their own: what the style of the page says becomes attributes.

import { button, colour, make, save } from "./dom";
import { say } from "./phrases";
import { listen } from "./state";

const SAID = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "text-anchor", "dominant-baseline"];

export function addFigureButtons(): void {
  for (const figure of document.querySelectorAll<HTMLElement>("figure")) {
    const drawn = [...figure.querySelectorAll<SVGSVGElement>("svg[viewBox]")];
    if (drawn.length === 0) continue;
    const shown = () => drawn.find((one) => getComputedStyle(one).display !== "none") ?? drawn[0]!;
    const name = figure.closest("section")?.id ?? "figure";
    const act = button(say("svg"), () => save(standalone(shown()), `kvledger-${name}.svg`, "image/svg+xml"));
    listen(() => (act.textContent = say("svg")));
    figure.append(make("div", { class: "chartbar" }, act));
  }
}

function standalone(picture: SVGSVGElement): string {
  const copy = picture.cloneNode(true) as SVGSVGElement;
  const nodes = [...picture.querySelectorAll("*")];
  const copies = [...copy.querySelectorAll("*")];
  nodes.forEach((node, index) => {
    const style = getComputedStyle(node);
    const twin = copies[index]!;
    if (style.display === "none") return twin.remove();
    for (const property of SAID) twin.setAttribute(property, style.getPropertyValue(property));
    twin.removeAttribute("class");
  });
  const box = picture.viewBox.baseVal;
  for (const [key, value] of Object.entries({ width: box.width, height: box.height, "font-family": "sans-serif" })) {
    copy.setAttribute(key, String(value));
  }
  copy.removeAttribute("class");
  copy.removeAttribute("aria-hidden");
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [key, value] of Object.entries({ width: "100%", height: "100%", fill: colour("paper") })) paper.setAttribute(key, value);
  copy.prepend(paper);
  return `${new XMLSerializer().serializeToString(copy)}\n`;
}
