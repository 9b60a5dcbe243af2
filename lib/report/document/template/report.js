// What the page does beyond reading: columns sort, a link opens what it points into, one verdict is open at a
// time. Without this script all is there to be read.
"use strict";

const number = (text) => Number(text.replace(/,/g, "").replace("−", "-"));

// An empty cell comes last, whichever way the others go.
function compare(one, other, numeric, sign) {
  if (!one || !other) return (other ? 1 : 0) - (one ? 1 : 0);
  return sign * (numeric ? number(one) - number(other) : one.localeCompare(other));
}

function sort(table, head) {
  const column = head.cellIndex;
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [row.cells[column].textContent.trim(), row]);
  const numeric = rows.every(([text]) => !Number.isNaN(number(text)));
  rows.sort(([one], [other]) => compare(one, other, numeric, sign));
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  body.append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(table, head));
    head.replaceChildren(button);
  }
}

function reveal(hash) {
  const target = document.getElementById(decodeURIComponent(hash.slice(1)));
  if (!target) return;
  for (let each = target.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
  target.scrollIntoView();
}

// The same link followed twice changes no address, so that clicks are listened to as well.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (link) setTimeout(() => reveal(link.hash));
});
window.addEventListener("hashchange", () => reveal(location.hash));
if (location.hash) reveal(location.hash);

const marks = [...document.querySelectorAll("details.mark")];
for (const mark of marks) {
  mark.addEventListener("toggle", () => {
    if (mark.open) marks.filter((other) => other !== mark).forEach((other) => (other.open = false));
  });
}
document.addEventListener("keydown", (event) => {
  const open = event.key === "Escape" && marks.find((mark) => mark.open);
  if (!open) return;
  open.open = false;
  open.querySelector("summary").focus();
});
