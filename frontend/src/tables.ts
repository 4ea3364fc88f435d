// Tables copy as CSV: raw numbers where a cell has them, its text where not.

import { button, make, save } from "./dom";
import { say } from "./phrases";
import { listen } from "./state";

export function addCopyButtons(): void {
  for (const box of document.querySelectorAll<HTMLElement>("[data-table]")) {
    const copy = button(say("csv"), async () => {
      const text = csv(box.querySelector("table")!);
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = say("copied");
        setTimeout(() => (copy.textContent = say("csv")), 1500);
      } catch {
        // There is no clipboard, or it is not ours: the table comes as a file.
        save(text, `kvledger-${box.dataset["table"]}.csv`, "text/csv");
      }
    });
    listen(() => (copy.textContent = say("csv")));
    const foot = make("div", { class: "foot" }, ...box.querySelectorAll(":scope > .how"), copy);
    box.append(foot);
  }
}

export function csv(table: HTMLTableElement): string {
  const rows = [...table.rows].map((row) => [...row.cells].map((cell) => quote(cell.dataset["raw"] ?? visible(cell))).join(","));
  return rows.join("\r\n") + "\r\n";
}

function visible(cell: HTMLElement): string {
  return cell.innerText.replace(/[\u202f\u00a0]/g, " ").replace(/\s+/g, " ").trim();
}

// A cell that begins like a formula would be run by a spreadsheet.
function quote(text: string): string {
  const number = text !== "" && Number.isFinite(Number(text));
  const safe = !number && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
