// Keeps a page as it is now: asks for the same address every second, and changes only what differs (idiomorph).
// What is typed, selected, opened or focused stays. Without this script pages work, and stand still.
"use strict";
(() => {
  const EVERY_MS = 1000, TYPED_MS = 150, PATIENCE_MS = 8000;
  let asking = null, typed = 0;

  function lost(why) {
    const fresh = document.getElementById("fresh");
    if (fresh) { fresh.classList.add("lost"); fresh.textContent = why; }
  }

  async function refresh(anew) {
    if (asking && !anew) return;
    if (asking) asking.abort();
    const mine = asking = new AbortController();
    const late = setTimeout(() => mine.abort(), PATIENCE_MS);
    try {
      const answer = await fetch(location.href, { signal: mine.signal, credentials: "same-origin", redirect: "error" });
      if (!(answer.headers.get("content-type") || "").startsWith("text/html")) { lost("open it anew"); return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (asking !== mine) return;
      Idiomorph.morph(document.body, page.body, {
        morphStyle: "innerHTML",
        ignoreActiveValue: true,
        callbacks: {
          beforeNodeMorphed: (old) => !(old.nodeType === 1 && old === document.activeElement && old.tagName === "SELECT"),
          beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
        },
      });
      document.title = page.title;
      under(pointed);
    } catch (error) {
      if (asking === mine) lost("no console");
    } finally {
      clearTimeout(late);
      if (asking === mine) asking = null;
    }
  }

  // A filter is applied while it is typed, and stays in the address.
  document.addEventListener("input", (event) => {
    const form = event.target.closest && event.target.closest("form[data-filter]");
    if (!form || event.target.type !== "search") return;
    clearTimeout(typed);
    typed = setTimeout(() => {
      const wish = new URLSearchParams(new FormData(form));
      for (const name of [...wish.keys()]) if (!wish.get(name)) wish.delete(name);
      history.replaceState(null, "", wish.size ? "?" + wish : location.pathname);
      refresh(true);
    }, TYPED_MS);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const box = document.getElementById("q");
    if (box) { event.preventDefault(); box.focus(); box.select(); }
  });

  // The value below the pointer.
  let pointed = null;
  function under(event) {
    const chart = event && document.elementFromPoint(event.clientX, event.clientY)?.closest(".chart");
    for (const each of document.querySelectorAll(".chart")) {
      const output = each.querySelector("output"), cross = each.querySelector(".cross");
      const labels = each.dataset.labels.split("|");
      if (each !== chart || labels.length < 2) { output.textContent = ""; cross.setAttribute("d", ""); continue; }
      const box = each.querySelector("svg").getBoundingClientRect();
      const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
      const at = Math.round(share * (labels.length - 1));
      const ago = Math.round((labels.length - 1 - at) * each.dataset.step / 60);
      output.textContent = (labels[at] || "not known") + (ago ? ", " + ago + " min ago" : ", now");
      cross.setAttribute("d", "M" + (at * 720 / (labels.length - 1)).toFixed(1) + " 0V160");
    }
  }
  document.addEventListener("pointermove", (event) => { pointed = { clientX: event.clientX, clientY: event.clientY }; under(pointed); });

  function selecting() { const chosen = document.getSelection(); return chosen && chosen.type === "Range"; }
  setInterval(() => {
    if (document.hidden || selecting() || !document.querySelector("main[data-live]")) return;
    refresh(false);
  }, EVERY_MS);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && document.querySelector("main[data-live]")) refresh(false); });
})();
