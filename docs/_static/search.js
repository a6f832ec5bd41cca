/**
 * Summaries of search results that point to an empty element. The target of an index entry is such an element: Sphinx 9
 * finds no text in it, and appends null to the list of results, which ends the script with an error. Here the summary
 * is that of the whole page.
 */
document.addEventListener("DOMContentLoaded", () => {
  const summary = Search.makeSearchSummary;
  Search.makeSearchSummary = (html, words, anchor) => summary(html, words, anchor) ?? summary(html, words) ?? document.createTextNode("");
});
