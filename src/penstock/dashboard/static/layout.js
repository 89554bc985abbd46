// Where the vertices of a graph stand: layers by longest path, an order within each layer that avoids crossings.
// Pure: no document, no sizes of text.

/**
 * `direction` is "right" or "down". Returns {places: Map id → {x, y}, width, height}; x and y are top left corners.
 */
export function layout(ids, edges, { direction, width, height, gapAlong, gapAcross }) {
  const known = edges.filter(({ from, to }) => ids.includes(from) && ids.includes(to) && from !== to);
  const layers = ordered(layered(ids, known), known);
  const isRight = direction === "right";
  const [sizeAlong, sizeAcross] = isRight ? [width, height] : [height, width];
  const across = Math.max(0, ...layers.map((layer) => extent(layer.length, sizeAcross, gapAcross)));
  const places = new Map();
  layers.forEach((layer, depth) => {
    const start = (across - extent(layer.length, sizeAcross, gapAcross)) / 2;
    layer.forEach((id, index) => {
      const along = depth * (sizeAlong + gapAlong);
      const aside = start + index * (sizeAcross + gapAcross);
      places.set(id, isRight ? { x: along, y: aside } : { x: aside, y: along });
    });
  });
  const length = extent(layers.length, sizeAlong, gapAlong);
  return { places, width: isRight ? length : across, height: isRight ? across : length };
}

const extent = (number, size, gap) => number * size + Math.max(number - 1, 0) * gap;

function layered(ids, edges) {
  const depth = new Map(ids.map((id) => [id, 0]));
  // A graph has no cycles. Should one come, the number of rounds ends the search.
  for (let round = 0; round < ids.length; round++) {
    let isChanged = false;
    for (const { from, to } of edges) {
      if (depth.get(to) > depth.get(from) || depth.get(from) + 1 >= ids.length) continue;
      depth.set(to, depth.get(from) + 1);
      isChanged = true;
    }
    if (!isChanged) break;
  }
  pullSources(ids, edges, depth);
  const layers = [];
  for (const id of ids) (layers[depth.get(id)] ??= []).push(id);
  return layers.filter(Boolean);
}

/** A source stands beside the operator that reads it, not at the far end: its edge crosses nothing. */
function pullSources(ids, edges, depth) {
  for (const id of ids) {
    const readers = edges.filter((edge) => edge.from === id).map((edge) => depth.get(edge.to));
    const isSource = !edges.some((edge) => edge.to === id);
    if (isSource && readers.length) depth.set(id, Math.max(Math.min(...readers) - 1, 0));
  }
}

function ordered(layers, edges) {
  for (let round = 0; round < 4; round++) {
    const isDown = round % 2 === 0;
    const walk = isDown ? layers.slice(1) : layers.slice(0, -1).reverse();
    for (const layer of walk) sortByNeighbours(layer, layers, edges, isDown);
  }
  return layers;
}

function sortByNeighbours(layer, layers, edges, isDown) {
  const position = new Map(layers.flatMap((each) => each.map((id, index) => [id, index - (each.length - 1) / 2])));
  const weight = new Map(layer.map((id, index) => {
    const near = edges.filter((edge) => (isDown ? edge.to : edge.from) === id).map((edge) => position.get(isDown ? edge.from : edge.to));
    return [id, near.length ? near.reduce((sum, at) => sum + at, 0) / near.length : index - (layer.length - 1) / 2];
  }));
  layer.sort((a, b) => weight.get(a) - weight.get(b));
}

/** The curve of an edge between two places, and the point in its middle. */
export function curve(from, to, { direction, width, height }) {
  const isRight = direction === "right";
  const start = isRight ? { x: from.x + width, y: from.y + height / 2 } : { x: from.x + width / 2, y: from.y + height };
  const end = isRight ? { x: to.x, y: to.y + height / 2 } : { x: to.x + width / 2, y: to.y };
  const half = isRight ? (end.x - start.x) / 2 : (end.y - start.y) / 2;
  const [a, b] = isRight
    ? [`${start.x + half} ${start.y}`, `${end.x - half} ${end.y}`]
    : [`${start.x} ${start.y + half}`, `${end.x} ${end.y - half}`];
  return { path: `M${start.x} ${start.y}C${a} ${b} ${end.x} ${end.y}`, middle: { x: (start.x + end.x) / 2, y: (start.y + end.y) / 2 } };
}
