// Elements are made here. Data enters the page as text or as the value of an attribute, never as markup:
// names of operators, keys and errors come from users and from their data.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Attributes that are functions listen to the event of that name; null and false are left out. */
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** An SVG element, likewise. */
export function s(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "href") setLink(element, value);
    // The content security policy forbids both, and a mistake should be loud in every browser.
    else if (name === "style" || name.startsWith("on")) throw new Error(`attribute ${name} is not allowed`);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Only addresses of the web become links: `javascript:` in a figure of the server must not. */
function setLink(element, address) {
  if (!/^https?:\/\//i.test(address)) return;
  element.setAttribute("href", address);
  element.setAttribute("target", "_blank");
  element.setAttribute("rel", "noopener noreferrer");
}

export function replace(parent, ...children) {
  parent.replaceChildren(...children.flat().filter(Boolean));
}

/** Touches the document only if the text is another one: a screen reader repeats what is written again. */
export function setText(element, text) {
  const wanted = text === null || text === undefined ? "" : String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** Runs `draw` with the width of `element` in pixels, now and whenever it changes. Returns the end of it. */
export function onWidth(element, draw) {
  let last = -1;
  const observer = new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width !== last && width > 0) draw((last = width));
  });
  observer.observe(element);
  return () => observer.disconnect();
}
