// Fetches this page again every few seconds and shows what has changed; without it, pages are as
// good, and are loaded again by hand. Nothing is replaced under a reader's hands: not while the
// focus or a selection is inside, nor while something is open there. Where the answer is no longer
// this page, it says so instead: what was shown is not so any more.
"use strict";
const PERIOD_MS = 2000, ANSWER_WITHIN_MS = 8000;

function isInUse(live) {
  const selection = document.getSelection();
  return live.contains(document.activeElement) || live.querySelector("details[open]") !== null ||
    (!selection.isCollapsed && live.contains(selection.anchorNode));
}

async function refresh() {
  const live = document.getElementById("live");
  if (!document.hidden && live && !isInUse(live)) {
    const state = document.getElementById("state");
    try {
      const answer = await fetch(location.href, {signal: AbortSignal.timeout(ANSWER_WITHIN_MS)});
      const text = await answer.text();
      const page = new DOMParser().parseFromString(text, "text/html");
      const fresh = page.getElementById("live");
      if (answer.redirected) return location.reload(); // to log in
      if (!isInUse(live)) {
        if (fresh) live.replaceWith(fresh);
        else live.replaceChildren(...page.getElementById("main").children);
      }
      const told = page.getElementById("state");
      if (told) state.replaceWith(told);
    } catch (error) {
      state.textContent = "no answer";
      state.className = "state bad";
    }
  }
  setTimeout(refresh, PERIOD_MS);
}
setTimeout(refresh, PERIOD_MS);
