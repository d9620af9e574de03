// Elements. Everything that the cluster says (names, bodies, headers) becomes a text node or an attribute, never HTML.

const SVG = "http://www.w3.org/2000/svg";

/** h("button.btn.primary", {onclick, title}, "text", child, [children]); null and false children are left out. */
export function h(selector, attributes, ...children) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  return fill(element, attributes, children);
}

/** The same for SVG. */
export function s(selector, attributes, ...children) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElementNS(SVG, tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  return fill(element, attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) set(element, name, value);
  append(element, children);
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) {
    if (typeof value !== "function") throw new TypeError(`${name} takes a function`);
    element.addEventListener(name.slice(2), value);
  } else if (name === "class") {
    for (const each of String(value).split(" ").filter(Boolean)) element.classList.add(each);
  } else if (name === "style") {
    for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
  } else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") {
    element[name] = value;
  } else {
    if (name === "href" && !/^(\/(?!\/)|#|\?|blob:)/.test(value))
      throw new TypeError(`not an address of the console: ${value}`);
    element.setAttribute(name, value === true ? "" : String(value));
  }
}

export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** Replaces what an element holds. */
export function show(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

export function debounce(action, ms = 200) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...args), ms);
  };
}

export const uid = (() => {
  let last = 0;
  return (prefix) => `${prefix}-${++last}`;
})();
