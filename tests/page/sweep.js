// Looks at everything that can be seen: controls without a name, text whose contrast with its ground is below 4.5.
() => {
  const seen = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const found = [];
  const named = (element) =>
    element.getAttribute("aria-label") || element.getAttribute("aria-labelledby") || element.innerText?.trim() || element.querySelector?.("[aria-label]") ||
    (element.labels && [...element.labels].some((label) => label.innerText.trim()));
  for (const element of document.querySelectorAll("button, a[href], input, select, summary, [tabindex], [role=img], [role=tab]")) {
    if (seen(element) && element.id !== "panel" && !named(element)) found.push(`no name: ${element.outerHTML.slice(0, 120)}`);
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption) found.push("a table without a caption");
    for (const head of table.querySelectorAll("th")) if (!head.scope) found.push("a heading without a scope");
  }

  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (colour) => known.get(colour) ?? known.set(colour, parsed(colour)).get(colour);
  const parsed = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) => [r * a + below[0] * (1 - a), g * a + below[1] * (1 - a), b * a + below[2] * (1 - a), 1];
  const groundOf = (element) => (element === null ? [255, 255, 255, 1] : over(rgba(getComputedStyle(element).backgroundColor), groundOf(element.parentElement)));
  const luminance = ([r, g, b]) => [r, g, b].map((each) => each / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const checked = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !seen(element) || element.closest("noscript, script, svg.flame, option")) continue;
    const style = getComputedStyle(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const ground = groundOf(element instanceof SVGElement ? element.closest("div") : element);
    const key = `${colour} on ${ground.map(Math.round)}`;
    if (checked.has(key)) continue;
    checked.set(key, true);
    const [high, low] = [luminance(over(rgba(colour), ground)), luminance(ground)].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) found.push(`contrast ${contrast.toFixed(2)}: ${key}: ${walker.currentNode.data.slice(0, 60)}`);
  }
  return found;
}
