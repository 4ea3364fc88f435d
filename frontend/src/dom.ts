// Elements without markup: text is only ever text.

type Child = Node | string;

export function make<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Record<string, string | boolean> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(key, "");
    else if (value !== false) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export function button(text: string, act: () => void): HTMLButtonElement {
  const node = make("button", { type: "button" }, text);
  node.addEventListener("click", act);
  return node;
}

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function save(text: string, name: string, kind: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  const link = make("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
