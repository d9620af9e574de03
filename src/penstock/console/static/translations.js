// Words in the reader's language. The English text is the key, so a page reads as it looks; zh.js has the Chinese.
import { CHINESE } from "./zh.js";

let current = "en";

export function useLanguage(wanted) {
  const spoken = wanted || localStorage.getItem("language") || navigator.language || "en";
  current = spoken.startsWith("zh") ? "zh" : "en";
  document.documentElement.lang = current === "zh" ? "zh-CN" : "en";
  if (wanted) localStorage.setItem("language", current);
}

useLanguage();

export const language = () => (current === "zh" ? "zh-CN" : "en");

/** The text in the reader's language, with {names} filled in. */
export function t(text, values) {
  const template = (current === "zh" && CHINESE[text]) || text;
  return values
    ? template.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole))
    : template;
}

/** "1 partition", "3 partitions". */
export function plural(number, one, many) {
  return t(number === 1 ? one : many, { n: new Intl.NumberFormat(language()).format(number) });
}
