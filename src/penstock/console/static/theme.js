// Before the first paint: the theme that was chosen, so that a page never flashes in the other one.
const chosen = localStorage.getItem("theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
