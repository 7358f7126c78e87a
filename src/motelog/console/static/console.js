// Refreshes this page every few seconds. Without it, pages work as well, and are reloaded by hand.
// Nothing is replaced while the reader uses it: while the focus or a selection is inside, or
// something is open there. If the answer is no longer this page, its content is shown instead,
// since what was shown is out of date.
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
      const freshState = page.getElementById("state");
      if (freshState) state.replaceWith(freshState);
    } catch (error) {
      state.textContent = "no answer";
      state.className = "state bad";
    }
  }
  setTimeout(refresh, PERIOD_MS);
}
setTimeout(refresh, PERIOD_MS);
