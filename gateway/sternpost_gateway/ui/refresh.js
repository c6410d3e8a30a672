// Brings the figures up to date; without this script the page is complete, and is refreshed by its link.
"use strict";

const REFRESH_MS = 2000;
const ANSWER_MS_MAX = 5000;

const figures = document.getElementById("figures");
const lost = document.getElementById("lost");
const pause = document.getElementById("pause");

const isPaused = () => pause.getAttribute("aria-pressed") === "true";

// A table that somebody scrolls or reads with the keyboard keeps its place and its focus: only what is in it changes.
function take(page) {
  const fresh = page.getElementById("figures");
  const [olds, news] = [figures, fresh].map((one) => [...one.children]);
  if (olds.length !== news.length) {
    figures.replaceChildren(...news);
    return;
  }
  olds.forEach((old, index) => {
    const next = news[index];
    if (!old.isEqualNode(next)) {
      old.className = next.className;
      old.replaceChildren(...next.childNodes);
    }
  });
}

async function refresh() {
  try {
    const answer = await fetch(location.href, { signal: AbortSignal.timeout(ANSWER_MS_MAX), cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    take(new DOMParser().parseFromString(await answer.text(), "text/html"));
    lost.textContent = "";
  } catch (error) {
    lost.textContent = `The gateway does not answer (${error.message}); these are its last figures.`;
  }
}

async function run() {
  if (!isPaused() && !document.hidden) await refresh();
  setTimeout(run, REFRESH_MS);
}

pause.hidden = false;
pause.addEventListener("click", () => {
  pause.setAttribute("aria-pressed", String(!isPaused()));
  pause.textContent = isPaused() ? "Resume" : "Pause";
});
setTimeout(run, REFRESH_MS);
