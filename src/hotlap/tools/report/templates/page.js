"use strict";
(() => {
  const tip = document.getElementById("tip");
  // Titles become our own tooltip: it appears at once, follows the pointer, and answers a tap.
  const take = (node, words) => { node.parentNode.dataset.tip = words; node.remove(); };
  for (const figure of document.querySelectorAll("figure")) {
    // A phone's drawing names its tips by their numbers in the desk's drawing.
    const words = Array.from(figure.querySelectorAll(".desk title"), (title) => title.textContent);
    for (const number of figure.querySelectorAll(".phone desc")) take(number, words[Number(number.textContent)]);
  }
  for (const title of document.querySelectorAll("svg title")) take(title, title.textContent);
  const hide = () => { tip.hidden = true; };
  const show = (event) => {
    const mark = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (!mark) { hide(); return; }
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), gap = 14;
    const x = Math.min(Math.max(event.clientX + gap, 12), innerWidth - box.width - 12);
    const below = event.clientY + gap + box.height < innerHeight;
    const lift = event.pointerType === "touch" || !below;
    tip.style.left = `${Math.max(x, 12)}px`;
    tip.style.top = `${Math.max(lift ? event.clientY - box.height - gap : event.clientY + gap, 8)}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  // A name in a legend takes its marks away and brings them back.
  for (const entry of document.querySelectorAll("[data-hides]")) {
    const figure = entry.closest("figure"), classes = entry.dataset.hides.split(" ").map((name) => `.${name}`).join("");
    const marks = figure.querySelectorAll(`svg ${classes}`);
    if (!marks.length) continue;
    entry.tabIndex = 0;
    entry.setAttribute("role", "button");
    entry.setAttribute("aria-pressed", "true");
    const turn = () => {
      const off = entry.classList.toggle("off");
      entry.setAttribute("aria-pressed", String(!off));
      for (const mark of marks) mark.classList.toggle("away", off);
    };
    entry.addEventListener("click", turn);
    entry.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); turn(); }
    });
  }
  // Paper has no folds.
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details:not([open])")) { fold.open = true; fold.dataset.closed = ""; }
  });
  addEventListener("afterprint", () => {
    for (const fold of document.querySelectorAll("details[data-closed]")) { fold.open = false; delete fold.dataset.closed; }
  });
  for (const button of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.previousElementSibling.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Select and copy by hand";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  }
})();
