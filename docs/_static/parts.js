/**
 * Parts of a long page: a page whose text is higher than 5,500 px shows one part of about 5,000 px at a time. A link
 * to a place opens its part; the search of a current browser finds hidden parts too, and a print has all of them.
 */
const LIMIT = 5000;
const WHOLE = "glassformer-whole-pages"; // the key of the choice to see whole pages

/** Return the pieces of an element: itself, or those of its children if it is too high. @param {Element} element @returns {HTMLElement[]} */
function pieces(element) {
  const isParent = /^(SECTION|DL|DD)$/.test(element.tagName) && element.getBoundingClientRect().height > LIMIT / 2;
  return isParent ? [...element.children].flatMap(pieces) : [/** @type {HTMLElement} */ (element)];
}

/** Return the pieces of each part; a heading stays with what follows. @param {HTMLElement[]} all */
function partsOf(all) {
  const parts = [/** @type {HTMLElement[]} */ ([])];
  let start = all[0]?.getBoundingClientRect().top ?? 0;
  let isHeading = false;
  for (const piece of all) {
    const { top, bottom } = piece.getBoundingClientRect();
    if (bottom - start > LIMIT && parts.at(-1)?.length && !isHeading) {
      parts.push([]);
      start = top;
    }
    parts.at(-1)?.push(piece);
    isHeading = /^(H\d|DT)$/.test(piece.tagName);
  }
  return parts;
}

addEventListener("load", () => {
  const article = document.querySelector("article");
  if (!article || article.scrollHeight < 5500) return;
  const title = article.querySelector("h1");
  const all = [...article.querySelectorAll(":scope > section > *")].filter((child) => child !== title).flatMap(pieces);
  const parts = partsOf(all);
  if (parts.length < 2) return;
  const bars = [0, 1].map(() => Object.assign(document.createElement("nav"), { className: "parts", ariaLabel: "Parts of this page" }));
  title?.after(/** @type {HTMLElement} */ (bars[0]));
  article.append(/** @type {HTMLElement} */ (bars[1]));

  /** Show one part, or the whole page (−1). @param {number} shown */
  function show(shown) {
    for (const [i, part] of parts.entries()) for (const piece of part) {
      if (shown === -1 || i === shown) piece.removeAttribute("hidden");
      else piece.setAttribute("hidden", "until-found");
    }
    const entries = [...parts.map((_, i) => [i === shown + 1 && i ? `part ${i + 1} →` : `part ${i + 1}`, i]), ["whole page", -1]];
    for (const bar of bars) bar.replaceChildren(...entries.map(([label, i]) => Object.assign(document.createElement("button"), {
      type: "button", textContent: String(label), ariaPressed: String(i === shown),
      onclick: () => {
        localStorage.setItem(WHOLE, String(i === -1));
        show(Number(i));
        /** @type {HTMLElement | null} */ (bars[0]?.querySelector("[aria-pressed=true]"))?.focus({ preventScroll: true });
        (Number(i) < 1 ? title : parts[Number(i)]?.[0])?.scrollIntoView();
      },
    })));
  }

  /** Show the part that contains the place of the address. */
  function follow() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const found = parts.findIndex((part) => part.some((piece) => target && (piece.contains(target) || target.contains(piece))));
    if (localStorage.getItem(WHOLE) === "true") show(-1);
    else if (found >= 0 || !bars[0]?.firstChild) show(Math.max(0, found));
    target?.scrollIntoView();
  }

  // At the end of a part, the theme takes the last section of the page for the visible one.
  addEventListener("gumshoeActivate", (event) => {
    const { content } = /** @type {CustomEvent<{ content: Element }>} */ (event).detail;
    if (content.closest("[hidden]")) /** @type {Element} */ (event.target).classList.remove("scroll-current");
  });
  follow();
  addEventListener("hashchange", follow);
  addEventListener("click", ({ target, ctrlKey, metaKey }) => { // a link to the place of the address changes no hash
    const link = /** @type {HTMLAnchorElement | null} */ (/** @type {Element} */ (target).closest("a[href]"));
    if (link?.hash && link.hash === location.hash && link.pathname === location.pathname && !ctrlKey && !metaKey) setTimeout(follow);
  });
  for (const [i, part] of parts.entries()) for (const piece of part) piece.addEventListener("beforematch", () => show(i));
});
