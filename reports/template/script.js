"use strict";

// A link into what is folded opens it. The same link followed twice changes no address, hence the clicks.
function reveal(hash) {
  const target = hash && document.getElementById(decodeURIComponent(hash.slice(1)));
  if (!target) return;
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target.scrollIntoView();
}
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (link) setTimeout(() => reveal(link.hash));
});
addEventListener("hashchange", () => reveal(location.hash));
reveal(location.hash);

// The contents mark the chapter that is read.
const links = [...document.querySelectorAll("nav > div a")];
const chapters = links.map((link) => document.getElementById(link.hash.slice(1)));
addEventListener("scroll", mark, { passive: true });
function mark() {
  const current = chapters.findLastIndex((chapter) => chapter && chapter.getBoundingClientRect().top < innerHeight / 3);
  links.forEach((link, index) => link.toggleAttribute("aria-current", index === current));
}
mark();
