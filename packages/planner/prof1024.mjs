var __knownSymbol = (name, symbol) => ((symbol = Symbol[name]) ? symbol : /* @__PURE__ */ Symbol.for("Symbol." + name));
var __typeError = (msg) => {
  throw TypeError(msg);
};
var __using = (stack, value, async) => {
  if (value != null) {
    if (typeof value !== "object" && typeof value !== "function") __typeError("Object expected");
    var dispose, inner;
    if (async) dispose = value[__knownSymbol("asyncDispose")];
    if (dispose === void 0) {
      dispose = value[__knownSymbol("dispose")];
      if (async) inner = dispose;
    }
    if (typeof dispose !== "function") __typeError("Object not disposable");
    if (inner)
      dispose = function () {
        try {
          inner.call(this);
        } catch (e) {
          return Promise.reject(e);
        }
      };
    stack.push([async, dispose, value]);
  } else if (async) {
    stack.push([async]);
  }
  return value;
};
var __callDispose = (stack, error, hasError) => {
  var E =
    typeof SuppressedError === "function"
      ? SuppressedError
      : function (e, s, m, _) {
          return (_ = Error(m)), (_.name = "SuppressedError"), (_.error = e), (_.suppressed = s), _;
        };
  var fail = (e) =>
    (error = hasError ? new E(e, error, "An error was suppressed during disposal") : ((hasError = true), e));
  var next2 = (it) => {
    while ((it = stack.pop())) {
      try {
        var result = it[1] && it[1].call(it[2]);
        if (it[0]) return Promise.resolve(result).then(next2, (e) => (fail(e), next2()));
      } catch (e) {
        fail(e);
      }
    }
    if (hasError) throw error;
  };
  return next2();
};

// prof.mts
import { ring } from "@mosaic/backend-ring";
import "@mosaic/core";

// src/prove/complete.ts
import { clipKeys, clipQueries, slicesOverlap } from "@mosaic/core";

// src/prove/area.ts
function visiblePairs(queries, keys, slices) {
  let pairs = 0;
  for (const slice of slices) {
    for (const q of queries) {
      const rows = rowsWithin(q, slice);
      if (rows.length > 0) for (const k of keys) pairs += pairsOf(rows, k, slice);
    }
  }
  return pairs;
}
function rowsWithin({ start, length, step }, { q0, q1, k0, k1, type }) {
  let low = q0;
  let high = q1;
  if (type === 3) {
    if (k1 - k0 < q1 - q0) high = low;
  } else if (type === 1) low = Math.max(low, k0 - k1 + q1);
  else if (type === 2) high = Math.min(high, k1 - k0 + q0);
  else if (k1 <= k0) high = low;
  const first = Math.max(0, Math.ceil((low - start) / step));
  const end = Math.min(length, Math.ceil((high - start) / step));
  return { start: start + first * step, length: Math.max(0, end - first), step };
}
function pairsOf(rows, keys, { q0, q1, k0, k1, type }) {
  const end = type & 1 ? belowSlant(rows, keys, k1 - q1 + 1) : rows.length * below(keys, k1);
  const start = type & 2 ? belowSlant(rows, keys, k0 - q0) : rows.length * below(keys, k0);
  return end - start;
}
function below({ start, length, step }, x) {
  return Math.min(length, Math.max(0, Math.ceil((x - start) / step)));
}
function belowSlant(rows, keys, shift) {
  const gap = rows.start + shift - keys.start;
  const first = gap > 0 ? 0 : Math.min(rows.length, Math.floor(-gap / rows.step) + 1);
  const all = Math.floor(((keys.length - 1) * keys.step - gap) / rows.step) + 1;
  const end = Math.min(rows.length, Math.max(first, all));
  const some = floorSum(end - first, keys.step, rows.step, gap + first * rows.step + keys.step - 1);
  return some + (rows.length - end) * keys.length;
}
function floorSum(count2, modulus, slope, offset) {
  let [n, m, a, b] = [count2, modulus, slope, offset];
  let sum = 0;
  while (n > 0) {
    sum += ((n * (n - 1)) / 2) * Math.floor(a / m) + n * Math.floor(b / m);
    a %= m;
    b %= m;
    const top = a * n + b;
    if (top < m) break;
    [n, m, a, b] = [Math.floor(top / m), a, m, top % m];
  }
  return sum;
}
function commonPositions(a, b) {
  const low = Math.max(a.start, b.start);
  const high = Math.min(a.start + (a.length - 1) * a.step, b.start + (b.length - 1) * b.step);
  if (a.length === 0 || b.length === 0 || low > high) return void 0;
  const divisor = greatestCommonDivisor(a.step, b.step);
  if ((b.start - a.start) % divisor !== 0) return void 0;
  const step = (a.step / divisor) * b.step;
  let start = a.start + Math.ceil((low - a.start) / a.step) * a.step;
  while (start <= high && (start - b.start) % b.step !== 0) start += a.step;
  return start > high ? void 0 : { start, length: Math.floor((high - start) / step) + 1, step };
}
function greatestCommonDivisor(a, b) {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}

// src/prove/doubles.ts
function findDoubles(tiles, side, collide) {
  const classes = /* @__PURE__ */ new Map();
  for (const tile of tiles) {
    for (const span of side === "queries" ? tile.k : tile.q) {
      const name = `${span.step},${span.start % span.step}`;
      const held = { span, end: span.start + (span.length - 1) * span.step + 1, tile };
      const list = classes.get(name);
      if (list) list.push(held);
      else classes.set(name, [held]);
    }
  }
  for (const list of classes.values()) {
    const double = sweep(list, collide);
    if (double) return double;
  }
  const steps = new Set([...classes.keys()].map((name) => name.split(",")[0]));
  return steps.size > 1 ? across([...classes.values()].flat(), collide) : void 0;
}
function sweep(list, collide) {
  let open = [];
  for (const held of list.toSorted((a, b) => a.span.start - b.span.start)) {
    open = open.filter(({ end }) => end > held.span.start);
    const double = open.find(({ tile }) => collide(tile, held.tile));
    if (double) return [double.tile, held.tile];
    open.push(held);
  }
  return void 0;
}
function across(all, collide) {
  for (const [i, a] of all.entries()) {
    for (const b of all.slice(i + 1)) {
      if (a.span.step === b.span.step || !commonPositions(a.span, b.span)) continue;
      if (collide(a.tile, b.tile)) return [a.tile, b.tile];
    }
  }
  return void 0;
}

// src/prove/values.ts
function tilesOf(sum) {
  const tiles = [];
  const open = [sum];
  for (let next2 = open.pop(); next2 !== void 0; next2 = open.pop()) {
    if (next2.tile) tiles.push(next2.tile);
    if (next2.right) open.push(next2.right);
    if (next2.left) open.push(next2.left);
  }
  return tiles.reverse();
}
function describe(value) {
  if (!value) return "nothing";
  switch (value.kind) {
    case "fill":
      return `a fill with ${value.value}`;
    case "delta":
      return "delta";
    default:
      return value.name;
  }
}
function positionsText(spans) {
  const texts = spans.map(({ start, length, step }) => {
    if (length <= 1) return length === 1 ? `${start}` : "none";
    return step === 1 ? `${start}..${start + length - 1}` : `${start},${start + step}..${start + (length - 1) * step}`;
  });
  return texts.join(" and ") || "none";
}
function tileText({ place, q, k }) {
  return `rank ${place.rank}, ${place.phase}, tile ${place.number} (queries ${positionsText(q)}, keys ${positionsText(k)})`;
}

// src/prove/complete.ts
var Completeness = class {
  #record;
  #known = /* @__PURE__ */ new WeakMap();
  #group;
  #all;
  constructor(record2) {
    const { queries, keys, options } = record2;
    this.#record = record2;
    this.#group = options.heads / options.kvHeads;
    const whole = (length) => [{ start: 0, length, step: 1 }];
    this.#all = { queries: whole(queries.length), keys: whole(keys.length) };
  }
  of(sum, side, rows) {
    let verdicts = this.#known.get(sum);
    if (!verdicts) this.#known.set(sum, (verdicts = /* @__PURE__ */ new Map()));
    const name = `${side},${rows.start},${rows.length},${rows.step}`;
    if (!verdicts.has(name)) verdicts.set(name, this.#judge(tilesOf(sum), side, rows));
    return verdicts.get(name);
  }
  #judge(tiles, side, rows) {
    const foreign = tiles.find(({ mask }) => !this.#isPart(mask));
    if (foreign) return { kind: "data", message: `${tileText(foreign)} has a mask that is no part of the call's` };
    const double = findDoubles(tiles, side, (a, b) => this.#collide({ a, b, side, rows }));
    if (double) {
      return { kind: "twice", message: `${tileText(double[1])} repeats pairs of ${tileText(double[0])}` };
    }
    const expected = this.#pairs(this.#all[other(side)], side, rows) * (side === "keys" ? this.#group : 1);
    const found = tiles.reduce((sum, tile) => sum + this.#share(tile, side, rows), 0);
    return found === expected ? void 0 : this.#missing(tiles, side, rows, expected - found);
  }
  #pairs(others, side, rows, mask = this.#record.slices) {
    return side === "queries" ? visiblePairs([rows], others, mask) : visiblePairs(others, [rows], mask);
  }
  /** Pairs of a tile in these rows, counted once for every query head of a key head's group where rows are keys. */
  #share(tile, side, rows) {
    const [own, others] = side === "queries" ? [tile.q, tile.k] : [tile.k, tile.q];
    const heads = side === "keys" ? tile.heads[1] - tile.heads[0] : 1;
    const [only] = own;
    const same = own.length === 1 && only.start === rows.start && only.length === rows.length;
    return heads * (same ? tile.pairs : this.#pairs(others, side, rows, tile.mask));
  }
  /** Whether both tiles compute some pair of these rows and the positions they share. */
  #collide({ a, b, side, rows }) {
    const heads = side === "queries" || (a.heads[0] < b.heads[1] && b.heads[0] < a.heads[1]);
    if (!heads) return false;
    return spansOf(a, other(side)).some((x) =>
      spansOf(b, other(side)).some((y) => {
        const common = commonPositions(x, y);
        if (!common || this.#pairs([common], side, rows, a.mask) === 0) return false;
        return a.mask === b.mask || a.mask.some((one) => b.mask.some((two) => slicesOverlap(one, two)));
      }),
    );
  }
  /** Whether every slice of a tile's mask is a slice of the call's, cut to some queries and keys. */
  #isPart(mask) {
    const { slices } = this.#record;
    if (mask === slices) return true;
    const equal = (a, b) => a.q0 === b.q0 && a.q1 === b.q1 && a.k0 === b.k0 && a.k1 === b.k1 && a.type === b.type;
    return mask.every((part3) =>
      slices.some((slice) => {
        const rows = clipQueries(slice, part3.q0, part3.q1);
        return rows !== void 0 && clipKeys(rows, part3.k0, part3.k1).some((cut2) => equal(cut2, part3));
      }),
    );
  }
  /** Names the shards whose pairs are missing. */
  // oxlint-disable-next-line max-params -- as the sum was judged, and by how much it fell short
  #missing(tiles, side, rows, short) {
    const layout = this.#record[other(side)];
    const shards = new Set(this.#record.ranks.map(({ at }) => layout.spans(at)));
    const missing = [];
    for (const span of [...shards].flat()) {
      const wanted = this.#pairs([span], side, rows) * (side === "keys" ? this.#group : 1);
      const found = tiles.reduce((sum, tile) => sum + this.#shared(tile, side, rows, span), 0);
      if (found < wanted) missing.push(span);
    }
    const [own, others] = side === "queries" ? ["queries", "keys"] : ["keys", "queries"];
    return {
      kind: "missing",
      message: `${own} ${positionsText([rows])} and ${others} ${positionsText(missing)} do not meet: ${short} pairs are missing`,
    };
  }
  // oxlint-disable-next-line max-params -- a tile's part of a span, as rows see it
  #shared(tile, side, rows, span) {
    const common = spansOf(tile, other(side))
      .map((each) => commonPositions(each, span))
      .filter((each) => each !== void 0);
    const heads = side === "keys" ? tile.heads[1] - tile.heads[0] : 1;
    return heads * this.#pairs(common, side, rows, tile.mask);
  }
};
function other(side) {
  return side === "queries" ? "keys" : "queries";
}
function spansOf(tile, side) {
  return side === "queries" ? tile.q : tile.k;
}

// src/prove/fault.ts
var Faults = class {
  list = [];
  #limit;
  #total = 0;
  constructor(limit) {
    this.#limit = limit;
  }
  get total() {
    return this.#total;
  }
  report(fault) {
    this.#total++;
    if (this.list.length < this.#limit) this.list.push(fault);
  }
};

// src/prove/rank-memory.ts
import { dtypeBytes } from "@mosaic/core";

// src/prove/content.ts
var Content = class _Content {
  static empty = new _Content([]);
  pieces;
  #last;
  #reads;
  constructor(pieces) {
    this.pieces = pieces;
  }
  read(look) {
    if (this.#last?.look === look) return this.#last.read;
    let read = this.#reads?.get(look);
    if (!read) {
      const entries = this.pieces.map((piece) => entryOf(look, piece)).filter((entry) => entry !== void 0);
      const known = entries.reduce((sum, { sizes }) => sum + volume(sizes), 0);
      read = { entries, whole: known === look.size };
      if (this.#last) this.#reads = (this.#reads ?? /* @__PURE__ */ new Map()).set(look, read);
      else this.#last = { look, read };
    }
    return read;
  }
  /** Entries in the place of what the view showed before. */
  write(look, entries) {
    if (look.size === 0) return this;
    return new _Content([...this.#outside(look), ...entries.map((entry) => pieceOf(look, entry))]);
  }
  /** What a dense view shows, as a message: counted from its first element. */
  message(look) {
    return this.range(look.low, look.high);
  }
  /** What a range of elements holds, counted from its first. */
  range(low, high) {
    if (low === 0 && this.pieces.every((piece) => piece.high <= high)) return this;
    const inside = this.pieces.map((piece) => cut(piece, { low, high })).filter((piece) => piece !== void 0);
    return new _Content(inside.map((piece) => moved(piece, -low)));
  }
  #outside(look) {
    const covered = look.high - look.low === look.size;
    if (covered && this.pieces.every(({ low, high }) => look.low <= low && high <= look.high)) return none;
    return this.pieces.flatMap((piece) => rest(piece, look));
  }
  /** This, further on by some elements. */
  shifted(by) {
    return by === 0 ? this.pieces : this.pieces.map((piece) => moved(piece, by));
  }
  /** A message in the place of what a dense view showed; `size` is that of the storage. */
  receive(look, message, size) {
    if (look.offset === 0 && look.size === size) return message;
    return new _Content([...this.#outside(look), ...message.shifted(look.offset)]);
  }
};
var none = [];
var origin = [0, 0, 0, 0];
function volume(sizes) {
  return sizes[0] * sizes[1] * sizes[2] * sizes[3];
}
function rowsAt({ batch, head, start, step }, at) {
  return { batch: batch + at[0], head: head + at[1], start: start + at[2] * step, step };
}
function isDense({ low, high, sizes }) {
  return high - low === volume(sizes);
}
function pieceOf({ box }, { at, sizes, value, rows }) {
  const { strides } = box;
  const offset = at === origin ? box.offset : box.offset + dot(at, strides);
  return { value, rows, offset, sizes, strides, low: offset, high: offset + reach(sizes, strides) };
}
function dot(at, strides) {
  return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2] + at[3] * strides[3];
}
function reach(sizes, strides) {
  return sizes.reduce((sum, size, i) => sum + (size - 1) * strides[i], 1);
}
function moved(piece, by) {
  return { ...piece, offset: piece.offset + by, low: piece.low + by, high: piece.high + by };
}
function entryOf(look, piece) {
  if (look.low >= piece.high || piece.low >= look.high) return void 0;
  const { sizes } = look.box;
  if (isSame(look.box, piece)) return { value: piece.value, rows: piece.rows, at: origin, sizes };
  if (piece.value.kind === "fill" && isDense(piece) && look.low >= piece.low && look.high <= piece.high) {
    return { value: piece.value, rows: piece.rows, at: origin, sizes };
  }
  const from = originIn(look.box, piece);
  if (!from) return void 0;
  const at = from.map((c) => Math.max(0, -c));
  const end = from.map((c, i) => Math.min(sizes[i], piece.sizes[i] - c));
  const within = at.map((a, i) => a + from[i]);
  return { value: piece.value, rows: rowsAt(piece.rows, within), at, sizes: end.map((e, i) => e - at[i]) };
}
function isSame({ offset, sizes, strides }, piece) {
  if (offset !== piece.offset) return false;
  for (let i = 0; i < 4; i++) {
    if (sizes[i] !== piece.sizes[i] || (sizes[i] > 1 && strides[i] !== piece.strides[i])) return false;
  }
  return true;
}
function originIn(box, piece) {
  const axes = [];
  for (let i = 0; i < 4; i++) {
    const [a, b] = [box.sizes[i], piece.sizes[i]];
    if (a === 1 && b === 1) continue;
    if (a > 1 && b > 1 && box.strides[i] !== piece.strides[i]) return void 0;
    axes.push({ i, stride: b > 1 ? piece.strides[i] : box.strides[i], from: 1 - a, to: b - 1 });
  }
  axes.sort((a, b) => b.stride - a.stride);
  const origin2 = [0, 0, 0, 0];
  return solve(axes, box.offset - piece.offset, origin2) ? origin2 : void 0;
}
function solve(axes, distance, origin2, depth = 0) {
  const axis = axes[depth];
  if (!axis) return distance === 0;
  if (axis.stride <= 0) return false;
  const low = Math.floor(distance / axis.stride);
  for (const c of [low, low + 1]) {
    if (c < axis.from || c > axis.to) continue;
    origin2[axis.i] = c;
    if (solve(axes, distance - c * axis.stride, origin2, depth + 1)) return true;
  }
  return false;
}
function rest(piece, look) {
  if (look.low >= piece.high || piece.low >= look.high) return [piece];
  const dense = look.high - look.low === look.size;
  if (dense && look.low <= piece.low && piece.high <= look.high) return [];
  if (dense && isDense(piece)) return outside(piece, look);
  const origin2 = originIn(look.box, piece);
  if (!origin2) return differ(look.box, piece) ? [] : [piece];
  return cutAround(piece, origin2, look.box.sizes);
}
function differ(box, piece) {
  return box.sizes.some((size, i) => size > 1 && piece.sizes[i] > 1 && box.strides[i] !== piece.strides[i]);
}
function outside(piece, look) {
  const before = cut(piece, { low: piece.low, high: look.low });
  const after = cut(piece, { low: look.high, high: piece.high });
  return [before, after].filter((part3) => part3 !== void 0);
}
function cut(piece, { low, high }) {
  if (low <= piece.low && piece.high <= high) return piece;
  if (low >= piece.high || piece.low >= high || low >= high) return void 0;
  const axes = [0, 1, 2, 3].filter((i) => piece.sizes[i] > 1);
  const outer = axes.reduce((best, i) => (piece.strides[i] > piece.strides[best] ? i : best), axes[0]);
  const stride = piece.strides[outer];
  const first = Math.max(0, Math.ceil((low - piece.low) / stride));
  const inner = piece.high - piece.low - (piece.sizes[outer] - 1) * stride;
  const end = Math.min(piece.sizes[outer], Math.floor((high - piece.low - inner) / stride) + 1);
  return end > first ? part(piece, outer, first, end) : void 0;
}
function part(piece, axis, first, end) {
  const at = [0, 0, 0, 0];
  at[axis] = first;
  const sizes = piece.sizes.with(axis, end - first);
  const offset = piece.offset + first * piece.strides[axis];
  return {
    ...piece,
    rows: rowsAt(piece.rows, at),
    offset,
    sizes,
    low: offset,
    high: offset + reach(sizes, piece.strides),
  };
}
function cutAround(piece, origin2, sizes) {
  const parts = [];
  let core = piece;
  for (let axis = 0; axis < 4; axis++) {
    const first = Math.max(0, origin2[axis]);
    const end = Math.min(piece.sizes[axis], origin2[axis] + sizes[axis]);
    if (first > 0) parts.push(part(core, axis, 0, first));
    if (end < piece.sizes[axis]) parts.push(part(core, axis, end, piece.sizes[axis]));
    core = part(core, axis, first, end);
  }
  return parts;
}

// src/prove/rank-memory.ts
var RankMemory = class {
  #views;
  /** Elements of every storage. */
  #sizes;
  #contents = [];
  #pending = /* @__PURE__ */ new Map();
  /** Uses under way, by storage: mostly none, which is quickly seen. */
  #busy;
  constructor({ views, storages }) {
    this.#views = views;
    const bytes = new Map(views.map(({ storage, dtype }) => [storage, dtypeBytes[dtype]]));
    this.#sizes = storages.map((size, id) => size / (bytes.get(id) ?? 1));
    this.#busy = new Int32Array(storages.length);
  }
  view(id) {
    return this.#views[id];
  }
  read(id) {
    const { storage, look } = this.view(id);
    return (this.#contents[storage] ?? Content.empty).read(look);
  }
  write(id, entries) {
    const { storage, look } = this.view(id);
    this.#contents[storage] = (this.#contents[storage] ?? Content.empty).write(look, entries);
  }
  /** What a dense view holds, as a message. */
  message(id) {
    const { storage, look } = this.view(id);
    return (this.#contents[storage] ?? Content.empty).message(look);
  }
  receive(id, message) {
    const { storage, look } = this.view(id);
    const before = this.#contents[storage] ?? Content.empty;
    this.#contents[storage] = before.receive(look, message, this.#sizes[storage]);
  }
  forget(storage) {
    this.#contents[storage] = void 0;
  }
  /** A collective begins to use views; until `release` compute may not write them, nor read what it writes. */
  hold(work, uses) {
    this.#pending.set(work, uses);
    for (const { view } of uses) this.#busy[this.view(view).storage]++;
  }
  release(work) {
    for (const { view } of this.#pending.get(work) ?? []) this.#busy[this.view(view).storage]--;
    this.#pending.delete(work);
  }
  /** The collective under way that a use by compute gets in the way of, if any. */
  rival(id, written) {
    const { storage, look } = this.view(id);
    if (this.#busy[storage] === 0) return void 0;
    for (const [work, uses] of this.#pending) {
      for (const use of uses) {
        if (!written && !use.written) continue;
        const other2 = this.view(use.view);
        if (other2.storage === storage && other2.look.low < look.high && look.low < other2.look.high) return work;
      }
    }
    return void 0;
  }
};

// src/prove/accumulate.ts
var nothing = {};
function isZero(value, name) {
  return value.kind === "fill" && value.value === (name === "lse" ? "-Infinity" : "0");
}
function positionsOf(spans, first, count2) {
  const found = [];
  let row = 0;
  for (const { start, length, step } of spans) {
    const from = Math.max(first, row);
    const end = Math.min(first + count2, row + length);
    if (from < end) found.push({ start: start + (from - row) * step, length: end - from, step });
    row += length;
  }
  return found;
}
function fits({ at, sizes, rows }, { spans, batch, head }) {
  if (rows.batch - at[0] !== batch || rows.head - at[1] !== head) return false;
  let next2 = rows.start;
  for (const { start, length, step } of positionsOf(spans, at[2], sizes[2])) {
    if (start !== next2 || (length > 1 && step !== rows.step)) return false;
    next2 += length * rows.step;
  }
  return true;
}
function accumulated(read, name, expected, add) {
  if (!read.whole) return `${name} is not initialised throughout`;
  const entries = [];
  for (const entry of read.entries) {
    const { value } = entry;
    if (value.kind === "sum" && value.name === name) {
      if (!fits(entry, expected)) return `${name} has other rows than ${positionsText(expected.spans)}`;
      entries.push({ ...entry, value: { kind: "sum", name, sum: add(value.sum) } });
    } else if (isZero(value, name)) {
      const filled = { kind: "sum", name, sum: add(nothing) };
      entries.push(...cutRows(entry, expected).map((each) => ({ ...each, value: filled })));
    } else return `${name} holds ${describe(value)}`;
  }
  return entries;
}
function cutRows({ at, sizes, value }, { spans, batch, head }) {
  let first = at[2];
  return positionsOf(spans, first, sizes[2]).map(({ start, length, step }) => {
    const rows = { batch: batch + at[0], head: head + at[1], start, step };
    const entry = { value, rows, at: at.with(2, first), sizes: sizes.with(2, length) };
    first += length;
    return entry;
  });
}
function* pairsOf2(a, b) {
  for (const one of a.entries) {
    for (const two of b.entries) {
      if (one.at === two.at && sameBut(one.sizes, two.sizes)) {
        yield [one, two];
        continue;
      }
      const at = one.at.map((c, i) => Math.max(c, two.at[i]));
      const sizes = at.map((c, i) => Math.min(one.at[i] + one.sizes[i], two.at[i] + two.sizes[i]) - c);
      if (sizes[0] > 0 && sizes[1] > 0 && sizes[2] > 0) yield [part2(one, at, sizes), part2(two, at, sizes)];
    }
  }
}
function sameBut(a, b) {
  return a[0] === b[0] && a[1] === b[1] && a[2] === b[2];
}
function part2({ value, rows, at, sizes }, from, to) {
  const within = from.map((c, i) => c - at[i]);
  return { value, rows: rowsAt(rows, within), at: from, sizes: to.with(3, sizes[3]) };
}
function sameRows(a, b) {
  const { rows } = b;
  const steps = a.sizes[2] === 1 || a.rows.step === rows.step;
  return a.rows.batch === rows.batch && a.rows.head === rows.head && a.rows.start === rows.start && steps;
}

// src/prove/compute.ts
var Compute = class {
  #record;
  #rank;
  #memory;
  #complete;
  #faults;
  #group;
  #partials = /* @__PURE__ */ new Set();
  #phase = "";
  #tiles = 0;
  constructor(record2, { tape }, means) {
    this.#record = record2;
    this.#rank = tape.rank;
    this.#memory = means.memory;
    this.#complete = means.complete;
    this.#faults = means.faults;
    this.#group = record2.options.heads / record2.options.kvHeads;
  }
  /** The phase, and how many tiles were computed in it. */
  get where() {
    return `${this.#phase}, after tile ${this.#tiles}`;
  }
  get phase() {
    return this.#phase;
  }
  begin(phase) {
    this.#phase = phase;
    this.#tiles = 0;
  }
  attend(event) {
    const [out, lse, q, k, v] = [event.arg(0), event.arg(1), event.arg(2), event.arg(3), event.arg(4)];
    const found = this.#tile(event, 5, { q, k });
    if (!found) return;
    const { tile, queries } = found;
    if (!this.#source(tile, "v", v, found.keys)) return;
    const add = adding(tile);
    this.#add(tile, out, { name: "out", expected: queries, add });
    this.#add(tile, lse, { name: "lse", expected: queries, add });
    this.#agree(tile, out, lse);
  }
  attendBackward(event) {
    const at = (i) => event.arg(i);
    const found = this.#tile(event, 9, { q: at(3), k: at(7) });
    if (!found) return;
    const { tile, queries, keys } = found;
    if (!this.#source(tile, "dOut", at(4), queries) || !this.#source(tile, "v", at(8), keys)) return;
    if (!this.#statistics(tile, queries, { lse: at(5), delta: at(6) })) return;
    const add = adding(tile);
    this.#add(tile, at(0), { name: "dq", expected: queries, add });
    this.#add(tile, at(1), { name: "dk", expected: keys, add });
    this.#add(tile, at(2), { name: "dv", expected: keys, add });
  }
  /** into ← into and from, which are out and lse of the same queries over other keys. */
  merge(event) {
    const place = `rank ${this.#rank}, ${this.where}: merge`;
    const join = joining();
    for (const i of [0, 1]) {
      const entries = this.#joined(event.arg(i), event.arg(i + 2), join);
      if (entries) this.#memory.write(event.arg(i), entries);
      else this.#fault("data", `${place}: ${i === 0 ? "out" : "lse"} are not states of the same queries`);
    }
  }
  /** Sums of the same rows become one; of what else is added nothing is known after. */
  add(event) {
    const [out, a, b] = [event.arg(0), event.arg(1), event.arg(2)];
    this.#memory.write(out, this.#joined(a, b, joining()) ?? []);
  }
  copy(event) {
    const [out, x] = [event.arg(0), event.arg(1)];
    const { sizes } = this.#memory.view(out).look.box;
    const same = sizes.every((size, i) => size === this.#memory.view(x).look.box.sizes[i]);
    this.#memory.write(out, same ? this.#memory.read(x).entries : []);
  }
  fill(event) {
    const out = event.arg(0);
    const { sizes } = this.#memory.view(out).look.box;
    const value = this.#record.names.words[event.arg(1)];
    const rows = { batch: 0, head: 0, start: 0, step: 1 };
    this.#memory.write(out, [{ value: { kind: "fill", value }, rows, at: [0, 0, 0, 0], sizes }]);
  }
  rowDot(event) {
    const entries = [];
    for (const [a, b] of pairsOf2(this.#memory.read(event.arg(1)), this.#memory.read(event.arg(2)))) {
      if (a.value.kind !== "source" || a.value.name !== "dOut") continue;
      const sum = b.value.kind === "sum" && b.value.name === "out" ? b.value.sum : void 0;
      if (isZero(b.value, "out")) entries.push({ ...b, sizes: b.sizes.with(3, 1) });
      else if (sum && sameRows(a, b)) entries.push({ ...b, value: { kind: "delta", sum }, sizes: b.sizes.with(3, 1) });
    }
    this.#memory.write(event.arg(0), entries);
  }
  /** The tile of a kernel call, if it computes anything, and has the queries and keys that it says. */
  #tile(event, first, views) {
    const { names } = this.#record;
    const q = names.rows[event.arg(first)];
    const k = names.rows[event.arg(first + 1)];
    const mask = names.masks[event.arg(first + 2)];
    const place = { rank: this.#rank, phase: this.#phase, number: ++this.#tiles };
    const pairs = visiblePairs(q, k, mask);
    if (pairs === 0) return void 0;
    const bare = { q, k, mask, pairs, place };
    const queries = this.#source(bare, "q", views.q, { spans: q });
    const keys = this.#source(bare, "k", views.k, { spans: k });
    if (!queries || !keys) return void 0;
    const heads = this.#heads(queries, keys, views);
    if (heads) return { tile: { ...bare, heads }, queries, keys };
    this.#fault("data", `${tileText(bare)}: the query heads do not belong to the key heads`);
    return void 0;
  }
  /** Which query heads of its group each key head meets: a kernel gives every key head as many, in order. */
  #heads(queries, keys, { q, k }) {
    const sizes = (id) => this.#memory.view(id).look.box.sizes[1];
    const each = sizes(q) / sizes(k);
    const first = queries.head - keys.head * this.#group;
    const fit = sizes(k) === 1 ? first >= 0 && first + each <= this.#group : first === 0 && each === this.#group;
    return fit && queries.batch === keys.batch ? [first, first + each] : void 0;
  }
  /**
   * Checks that a view holds the rows of an input that the tile says, of whatever heads if none are asked for. Keys that
   * no query of the tile sees may be anything.
   */
  // oxlint-disable-next-line max-params -- whose, which, where, and what it should be
  #source(tile, name, view, expected) {
    const read = this.#memory.read(view);
    const { spans } = expected;
    if (read.memo?.name !== name || read.memo.spans !== spans)
      read.memo = { name, spans, answer: sourceOf(read, name, spans) };
    const found = read.memo.answer;
    const heads =
      expected.head === void 0 || (found?.rows.head === expected.head && found.rows.batch === expected.batch);
    const seen = (entry) => visiblePairs(tile.q, positionsOf(spans, entry.at[2], entry.sizes[2]), tile.mask) > 0;
    const isKey = name === "k" || name === "v";
    if (found && heads && (found.odd.length === 0 || (isKey && !found.odd.some(seen)))) return found.rows;
    const held = [...new Set(read.entries.map(entryText))].join(", ") || "nothing that is known";
    this.#fault("data", `${tileText(tile)}: ${name} should hold rows ${positionsText(spans)}, but holds ${held}`);
    return void 0;
  }
  #add(tile, view, { name, expected, add }) {
    const entries = accumulated(this.#memory.read(view), name, expected, add);
    if (typeof entries === "string") this.#fault("data", `${tileText(tile)}: ${entries}`);
    else this.#memory.write(view, entries);
  }
  /** out and lse must have seen the same keys. */
  #agree(tile, out, lse) {
    for (const [a, b] of pairsOf2(this.#memory.read(out), this.#memory.read(lse))) {
      if (a.value.kind === "sum" && b.value.kind === "sum" && a.value.sum === b.value.sum) continue;
      this.#fault("data", `${tileText(tile)}: out and lse have seen different keys`);
      return;
    }
  }
  /** lse must be that of all keys, and delta belong to it. */
  #statistics(tile, queries, views) {
    const lse = this.#memory.read(views.lse);
    const delta = this.#memory.read(views.delta);
    let problem = lse.whole && delta.whole ? void 0 : "lse or delta is not there throughout";
    for (const [a, b] of pairsOf2(lse, delta)) {
      if (isZero(a.value, "lse") && isZero(b.value, "out")) {
        for (const rows of positionsOf(queries.spans, a.at[2], a.sizes[2])) {
          this.#partial(tile, nothing, rows);
        }
      } else if (a.value.kind !== "sum" || a.value.name !== "lse" || b.value.kind !== "delta") {
        problem ??= `lse holds ${describe(a.value)}, delta ${describe(b.value)}`;
      } else if (!fits(a, queries) || !fits(b, queries)) problem ??= "lse or delta is of other queries";
      else if (a.value.sum !== b.value.sum) problem ??= "delta is not of the output that lse belongs to";
      else {
        const rows = { start: a.rows.start, length: a.sizes[2], step: a.rows.step };
        this.#partial(tile, a.value.sum, rows);
      }
    }
    if (problem) this.#fault("data", `${tileText(tile)}: ${problem}`);
    return problem === void 0;
  }
  /** Reports, once, that an lse is used that is not of all keys; its backward may be right nonetheless. */
  #partial(tile, sum, rows) {
    const verdict = this.#complete.of(sum, "queries", rows);
    if (!verdict || this.#partials.has(sum)) return;
    this.#partials.add(sum);
    this.#fault(verdict.kind, `${tileText(tile)}, lse: ${verdict.message}`);
  }
  /** Both sums in one, box by box; undefined if they do not belong together. */
  #joined(a, b, join) {
    const [one, two] = [this.#memory.read(a), this.#memory.read(b)];
    if (!one.whole || !two.whole) return void 0;
    const entries = [];
    for (const [x, y] of pairsOf2(one, two)) {
      const name = x.value.kind === "sum" ? x.value.name : y.value.kind === "sum" ? y.value.name : void 0;
      if (y.value.kind === "fill" && (!name || isZero(y.value, name))) entries.push(x);
      else if (name && isZero(x.value, name)) entries.push(y);
      else if (name && x.value.kind === "sum" && y.value.kind === "sum" && y.value.name === name && sameRows(x, y)) {
        entries.push({ ...x, value: { kind: "sum", name, sum: join(x.value.sum, y.value.sum) } });
      } else return void 0;
    }
    return entries;
  }
  #fault(kind, message) {
    this.#faults.report({ kind, rank: this.#rank, message });
  }
};
function sourceOf({ whole, entries }, name, spans) {
  const first = entries.find(({ value }) => value.kind === "source" && value.name === name);
  if (!whole || !first) return void 0;
  const rows = { spans, batch: first.rows.batch - first.at[0], head: first.rows.head - first.at[1] };
  const good = (entry) => entry.value.kind === "source" && entry.value.name === name && fits(entry, rows);
  return { rows, odd: entries.filter((entry) => !good(entry)) };
}
function entryText({ value, rows, sizes }) {
  const span = { start: rows.start, length: sizes[2], step: rows.step };
  return value.kind === "fill" ? describe(value) : `${describe(value)} ${positionsText([span])}`;
}
function adding(tile) {
  const made = /* @__PURE__ */ new Map();
  return (left) => {
    const known = made.get(left) ?? { left, tile };
    made.set(left, known);
    return known;
  };
}
function joining() {
  const made = /* @__PURE__ */ new Map();
  return (left, right) => {
    const row = made.get(left) ?? /* @__PURE__ */ new Map();
    const known = row.get(right) ?? { left, right };
    made.set(left, row.set(right, known));
    return known;
  };
}

// src/prove/replay.ts
var Replay = class {
  rank;
  #names;
  #reader;
  #means;
  #streams;
  #compute;
  /** The collective that this rank waits for. */
  #awaited;
  #ended = false;
  constructor(record2, recorded, means) {
    this.rank = recorded.tape.rank;
    this.#names = record2.names;
    this.#reader = recorded.tape.read();
    this.#means = means;
    this.#streams = means.streams;
    this.#compute = new Compute(record2, recorded, means);
  }
  get awaited() {
    return this.#awaited;
  }
  /** Whether all results are there; what follows only frees memory. */
  get ended() {
    return this.#ended;
  }
  /** Goes on until the end, or a collective that is not done. */
  run() {
    while (!this.#ended) {
      if (this.#awaited !== void 0) {
        if (!this.#streams.isDone(this.rank, this.#awaited)) return;
        this.#means.memory.release(this.#awaited);
        this.#awaited = void 0;
      }
      if (!this.#reader.next()) return;
      this.#step(this.#reader);
    }
  }
  #step(event) {
    const compute = this.#compute;
    switch (event.op) {
      case "empty":
        return;
      case "free":
        return this.#means.memory.forget(event.arg(0));
      case "mark": {
        const phase = this.#names.words[event.arg(0)];
        this.#ended = phase === "end";
        return compute.begin(phase);
      }
      case "wait":
        this.#awaited = event.arg(0);
        return;
      case "attend":
        this.#guard(event, { written: 2, count: 5 });
        return compute.attend(event);
      case "attendBackward":
        this.#guard(event, { written: 3, count: 9 });
        return compute.attendBackward(event);
      case "merge":
        this.#guard(event, { written: 2, count: 4 });
        return compute.merge(event);
      case "rowDot":
        this.#guard(event, { written: 1, count: 3 });
        return compute.rowDot(event);
      case "fill":
        this.#guard(event, { written: 1, count: 1 });
        return compute.fill(event);
      case "copy":
        this.#guard(event, { written: 1, count: 2 });
        return compute.copy(event);
      case "add":
        this.#guard(event, { written: 1, count: 3 });
        return compute.add(event);
      case "compute":
        this.#guard(event, { first: 2, written: event.arg(1), count: event.count - 2 });
        for (let i = 0; i < event.arg(1); i++) this.#means.memory.write(event.arg(2 + i), []);
        return;
      default:
        this.#streams.post(this.rank, event, compute.phase);
    }
  }
  /** Compute must not write what a collective under way reads, nor touch what it writes. */
  #guard(event, { first = 0, written, count: count2 }) {
    for (let i = 0; i < count2; i++) {
      const rival = this.#means.memory.rival(event.arg(first + i), i < written);
      if (rival === void 0) continue;
      const what = event.op === "compute" ? this.#names.words[event.arg(0)] : event.op;
      this.#means.faults.report({
        kind: "race",
        rank: this.rank,
        message: `rank ${this.rank}, ${this.#compute.where}: ${what} touches memory of collective #${rival} before it is waited for`,
      });
      return;
    }
  }
};

// src/prove/results.ts
import { spansLength } from "@mosaic/core";
var sides = { out: "queries", dq: "queries", dk: "keys", dv: "keys" };
function checkResults(record2, recorded, { memory, complete, faults }) {
  const { tape, at, firstSequence, ends } = recorded;
  for (const name of ["out", "dq", "dk", "dv"]) {
    let problemOf2 = function (sum) {
      const read = memory.read(ends[name]);
      if (!read.whole) return { kind: "data", message: "not all of it is known" };
      for (const entry of read.entries) {
        const held = sumOf(entry, sum, expected);
        if (typeof held === "string") return { kind: "data", message: held };
        for (const rows of held.rows) {
          const verdict = complete.of(held.sum, side, rows);
          if (verdict) return verdict;
        }
      }
      return void 0;
    };
    var problemOf = problemOf2;
    const side = sides[name];
    const expected = { spans: record2[side].spans(at), batch: firstSequence, head: 0 };
    if (spansLength(expected.spans) === 0) continue;
    const problem = problemOf2(name);
    if (problem)
      faults.report({ ...problem, rank: tape.rank, message: `rank ${tape.rank}, ${name}: ${problem.message}` });
  }
}
function sumOf(entry, name, expected) {
  const { value } = entry;
  const spanOf = ({ rows, sizes }) => ({ start: rows.start, length: sizes[2], step: rows.step });
  if (isZero(value, name)) return { sum: nothing, rows: cutRows(entry, expected).map(spanOf) };
  if (value.kind !== "sum" || value.name !== name) return `holds ${describe(value)}`;
  if (!fits(entry, expected)) return `holds ${positionsText([spanOf(entry)])} in the place of other rows`;
  return { sum: value.sum, rows: [spanOf(entry)] };
}

// src/prove/streams.ts
import { dtypeBytes as dtypeBytes2 } from "@mosaic/core";

// src/prove/batch.ts
function batchText({ rank, phase, label, work }) {
  return `rank ${rank}, ${phase}, ${label} #${work}`;
}
function meetingOf({ group, args }) {
  return `${group},${args[0]}`;
}
function usesOf({ op, transfers, args }) {
  if (op === "sendRecv") return transfers.map(({ sent, view }) => ({ view, written: !sent }));
  const [, out, input] = args;
  const uses = [
    { view: out, written: true },
    { view: input, written: false },
  ];
  return uses.filter(({ view }) => view >= 0);
}

// src/prove/exchange.ts
function exchange(batches, memories) {
  const calls = batches.map(({ args: [, out, input, root, ...counts] }) => {
    return { out, input, root, counts };
  });
  const memoryOf = (i) => memories[batches[i].rank];
  const sent = calls.map(({ input }, i) => (input < 0 ? Content.empty : memoryOf(i).message(input)));
  switch (batches[0].op) {
    case "allGather":
      return allGather(calls, sent, memoryOf);
    case "allToAll":
      return allToAll(calls, sent, memoryOf);
    case "broadcast":
      for (const [i, { out, root }] of calls.entries()) if (i !== root) memoryOf(i).receive(out, sent[root]);
      return void 0;
    case "barrier":
      return void 0;
    default:
      for (const [i, { out }] of calls.entries()) memoryOf(i).receive(out, Content.empty);
      return void 0;
  }
}
function allGather(calls, sent, memoryOf) {
  for (const [i, { out, counts }] of calls.entries()) {
    const wrong = counts.findIndex((count2, j) => count2 !== sizeOf(memoryOf(j), calls[j].input));
    if (wrong >= 0) return `allGather: member ${i} expects ${counts[wrong]} elements of member ${wrong}`;
    const pieces = [];
    let start = 0;
    for (const [j, count2] of counts.entries()) {
      pieces.push(...sent[j].shifted(start));
      start += count2;
    }
    memoryOf(i).receive(out, new Content(pieces));
  }
  return void 0;
}
function allToAll(calls, sent, memoryOf) {
  const size = calls.length;
  for (const [i, { out, counts }] of calls.entries()) {
    const pieces = [];
    let start = 0;
    for (let j = 0; j < size; j++) {
      const theirs = calls[j].counts;
      const count2 = counts[size + j];
      if (theirs[i] !== count2)
        return `allToAll: member ${i} expects ${count2} elements of ${j}, which sends ${theirs[i]}`;
      const from = theirs.slice(0, i).reduce((sum, each) => sum + each, 0);
      pieces.push(...sent[j].range(from, from + count2).shifted(start));
      start += count2;
    }
    memoryOf(i).receive(out, new Content(pieces));
  }
  return void 0;
}
function sizeOf(memory, view) {
  return memory.view(view).look.size;
}

// src/prove/streams.ts
var Streams = class {
  #record;
  #memories;
  #faults;
  /** By rank: batches in order; the first has its turn. */
  queues;
  #channels = /* @__PURE__ */ new Map();
  #meetings = /* @__PURE__ */ new Map();
  #done;
  /** Ranks that may go on since somebody last looked. */
  freed = [];
  constructor(record2, memories, faults) {
    this.#record = record2;
    this.#memories = memories;
    this.#faults = faults;
    this.queues = record2.ranks.map(() => []);
    this.#done = record2.ranks.map(() => /* @__PURE__ */ new Set());
  }
  post(rank, event, phase) {
    const batch = this.#batch(rank, event, phase);
    this.#memories[rank].hold(batch.work, usesOf(batch));
    const queue = this.queues[rank];
    queue.push(batch);
    if (queue.length === 1) this.#begin(batch);
  }
  isDone(rank, work) {
    return this.#done[rank].has(work);
  }
  /** The ranks that a batch still needs. */
  peersOf(batch) {
    if (batch.op !== "sendRecv") {
      const met = this.#meetings.get(meetingOf(batch)) ?? [];
      return this.#record.groups[batch.group].ranks.filter((rank) => !met.some((other2) => other2.rank === rank));
    }
    const waiting = batch.transfers.filter(({ peer, sent }) => {
      const channel = this.#channel(batch.group, sent ? batch.rank : peer, sent ? peer : batch.rank);
      return (sent ? channel.sends : channel.receives).some((half) => half.batch === batch);
    });
    return [...new Set(waiting.map(({ peer }) => peer))];
  }
  #batch(rank, event, phase) {
    const { op } = event;
    const transfers = [];
    const args = [];
    if (op === "sendRecv") {
      for (let i = 3; i < event.count; i += 3) {
        transfers.push({ peer: event.arg(i), sent: event.arg(i + 1) === 1, view: event.arg(i + 2) });
      }
    } else for (let i = 3; i < event.count; i++) args.push(event.arg(i));
    const label = this.#record.names.words[event.arg(2)];
    const open = transfers.length;
    return { rank, work: event.arg(0), op, group: event.arg(1), label, phase, transfers, args, open };
  }
  /** A batch has its turn: it sends what its memory holds now. */
  #begin(batch) {
    if (batch.op !== "sendRecv") {
      this.#meet(batch);
      return;
    }
    if (batch.open === 0) {
      this.#finish(batch);
      return;
    }
    const memory = this.#memories[batch.rank];
    const halves = batch.transfers.map((transfer) => {
      return { batch, transfer, message: transfer.sent ? memory.message(transfer.view) : void 0 };
    });
    for (const half of halves) this.#offer(half);
  }
  #offer(half) {
    const { rank, group } = half.batch;
    const { peer, sent } = half.transfer;
    const channel = this.#channel(group, sent ? rank : peer, sent ? peer : rank);
    const other2 = (sent ? channel.receives : channel.sends).shift();
    if (other2) this.#move(sent ? half : other2, sent ? other2 : half);
    else (sent ? channel.sends : channel.receives).push(half);
  }
  #move(send, receive) {
    const [a, b] = [send, receive].map(({ batch, transfer }) => {
      const { look, dtype } = this.#memories[batch.rank].view(transfer.view);
      return { bytes: look.size * dtypeBytes2[dtype], dtype };
    });
    if (a.bytes !== b.bytes || a.dtype !== b.dtype) {
      const sizes = `sends ${a.bytes} bytes of ${a.dtype}, ${batchText(receive.batch)} expects ${b.bytes} of ${b.dtype}`;
      this.#faults.report({
        kind: "message",
        rank: send.batch.rank,
        message: `${batchText(send.batch)} to rank ${receive.batch.rank} ${sizes}`,
      });
    }
    this.#memories[receive.batch.rank].receive(receive.transfer.view, send.message);
    for (const { batch } of [send, receive]) if (--batch.open === 0) this.#finish(batch);
  }
  /** The last to come to a collective carries it out. */
  #meet(batch) {
    const { ranks } = this.#record.groups[batch.group];
    const name = meetingOf(batch);
    const met = this.#meetings.get(name) ?? [];
    met.push(batch);
    this.#meetings.set(name, met);
    if (met.length < ranks.length) return;
    this.#meetings.delete(name);
    const ordered = ranks.map((rank) => met.find((each) => each.rank === rank));
    const odd = ordered.find(({ op }) => op !== batch.op);
    const problem = odd
      ? `${batchText(odd)} is ${odd.op} where ${batchText(batch)} is ${batch.op}`
      : exchange(ordered, this.#memories);
    if (problem) this.#faults.report({ kind: "message", rank: (odd ?? batch).rank, message: problem });
    for (const each of ordered) this.#finish(each);
  }
  /** The next of the rank has its turn. */
  #finish(batch) {
    const { rank, work } = batch;
    this.#done[rank].add(work);
    const queue = this.queues[rank];
    queue.shift();
    this.freed.push(rank);
    const [next2] = queue;
    if (next2) this.#begin(next2);
  }
  #channel(group, from, to) {
    const name = (group * this.queues.length + from) * this.queues.length + to;
    let channel = this.#channels.get(name);
    if (!channel) this.#channels.set(name, (channel = { sends: [], receives: [] }));
    return channel;
  }
};

// src/prove/unmatched.ts
function findUnmatched(record2) {
  const channels = /* @__PURE__ */ new Map();
  walk(record2, ({ group, from, to, sent }) => {
    const name = `${group},${from},${to}`;
    const channel = channels.get(name) ?? { group, from, to, sends: 0, receives: 0 };
    channels.set(name, channel);
    channel[sent ? "sends" : "receives"]++;
    return false;
  });
  return [...channels.values()]
    .filter(({ sends, receives }) => sends !== receives)
    .map((each) => surplus(record2, each));
}
function surplus(record2, channel) {
  const { group, from, to, sends, receives } = channel;
  const sent = sends > receives;
  const [rank, peer] = sent ? [from, to] : [to, from];
  let left = Math.min(sends, receives);
  let place = "";
  walk(record2, (half) => {
    if (half.group !== group || half.from !== from || half.to !== to || half.sent !== sent || left-- > 0) return false;
    place = `rank ${rank}, ${half.phase}, ${half.label} #${half.work}`;
    return true;
  });
  const message = sent
    ? `${place} sends to rank ${peer}, which never receives it`
    : `${place} receives from rank ${peer}, which never sends it`;
  return { kind: "message", rank, message };
}
function walk({ ranks, names: { words } }, visit) {
  for (const { tape } of ranks) {
    const event = tape.read();
    let phase = "";
    while (event.next()) {
      if (event.op === "mark") phase = words[event.arg(0)];
      if (event.op !== "sendRecv") continue;
      const place = { work: event.arg(0), group: event.arg(1), label: words[event.arg(2)], phase };
      for (let i = 3; i < event.count; i += 3) {
        const sent = event.arg(i + 1) === 1;
        const [from, to] = sent ? [tape.rank, event.arg(i)] : [event.arg(i), tape.rank];
        if (visit({ ...place, from, to, sent })) return;
      }
    }
  }
}

// src/prove/stuck.ts
function whyStuck(record2, streams) {
  const heads = streams.queues.map(([head]) => head).filter((head) => head !== void 0);
  if (heads.length === 0) return [];
  const unmatched = findUnmatched(record2);
  if (unmatched.length > 0) return unmatched;
  const byRank = new Map(heads.map((head) => [head.rank, head]));
  const cycle = findCycle(heads, (head) => next(streams, byRank, head));
  if (!cycle)
    return heads.filter((head) => next(streams, byRank, head).length === 0).map((head) => lonely(streams, head));
  const links = cycle.map((head, i) => `${batchText(head)} waits for rank ${cycle[(i + 1) % cycle.length].rank}`);
  return [{ kind: "cycle", rank: cycle[0].rank, message: links.join("; ") }];
}
function next(streams, heads, head) {
  return streams
    .peersOf(head)
    .map((rank) => heads.get(rank))
    .filter((batch) => batch !== void 0);
}
function lonely(streams, head) {
  const peers = streams.peersOf(head);
  return {
    kind: "message",
    rank: head.rank,
    message: `${batchText(head)}: rank ${peers.join(", ")} does not come to it`,
  };
}
function findCycle(all, nextOf) {
  const done = /* @__PURE__ */ new Set();
  for (const start of all) {
    const path = [];
    const enter = (batch) => {
      done.add(batch);
      path.push({ batch, rest: nextOf(batch) });
    };
    if (!done.has(start)) enter(start);
    while (path.length > 0) {
      const candidate = path.at(-1).rest.pop();
      if (!candidate) {
        path.pop();
        continue;
      }
      const from = path.findIndex(({ batch }) => batch === candidate);
      if (from >= 0) return path.slice(from).map(({ batch }) => batch);
      if (!done.has(candidate)) enter(candidate);
    }
  }
  return void 0;
}

// src/prove/prove.ts
function prove(record2, { limit = 10 } = {}) {
  const faults = new Faults(limit);
  const complete = new Completeness(record2);
  const memories = record2.ranks.map((recorded) => given(record2, recorded));
  const streams = new Streams(record2, memories, faults);
  const replays = record2.ranks.map((recorded, rank) => {
    return new Replay(record2, recorded, { memory: memories[rank], complete, faults, streams });
  });
  for (const replay of replays) replay.run();
  for (let rank = streams.freed.pop(); rank !== void 0; rank = streams.freed.pop()) replays[rank].run();
  for (const fault of whyStuck(record2, streams)) faults.report(fault);
  for (const [rank, recorded] of record2.ranks.entries()) {
    if (replays[rank].ended) checkResults(record2, recorded, { memory: memories[rank], complete, faults });
  }
  const peakBytes = record2.ranks.map(({ peakBytes: peak }) => peak);
  return { faults: faults.list, total: faults.total, peakBytes };
}
function given(record2, { tape, at, firstSequence, ends }) {
  const memory = new RankMemory(tape);
  for (const name of ["q", "dOut", "k", "v"]) {
    const spans = (name === "q" || name === "dOut" ? record2.queries : record2.keys).spans(at);
    const { sizes } = memory.view(ends[name]).look.box;
    let first = 0;
    const entries = spans.map(({ start, length, step }) => {
      const rows = { batch: firstSequence, head: 0, start, step };
      const entry = {
        value: { kind: "source", name },
        rows,
        at: [0, 0, first, 0],
        sizes: sizes.with(2, length),
      };
      first += length;
      return entry;
    });
    memory.write(ends[name], entries);
  }
  return memory;
}

// src/record.ts
import {
  attention,
  checkOptionNames,
  contiguous,
  full,
  layoutOf,
  spansLength as spansLength2,
  without as without2,
} from "@mosaic/core";

// src/symbolic/world.ts
import { coordinateOf, without } from "@mosaic/core";

// src/symbolic/context.ts
import { ClosedError, local, OptionError } from "@mosaic/core";
var SymbolicContext = class {
  device;
  mesh;
  seed = 0;
  #backends;
  #streams = 0;
  #closed = false;
  constructor({ device, mesh, backends }) {
    this.device = device;
    this.mesh = mesh;
    this.#backends = [local(), ...backends];
  }
  get world() {
    return this.mesh.world;
  }
  get rank() {
    return this.world.rank;
  }
  get size() {
    return this.world.size;
  }
  backend(nameOrValue) {
    if (typeof nameOrValue !== "string") return nameOrValue;
    const found = this.#backends.findLast(({ name }) => name === nameOrValue);
    if (found) return found;
    throw new OptionError({
      where: "backend",
      expected: `one of ${this.#backends.map(({ name }) => `"${name}"`).join(", ")}`,
      received: `"${nameOrValue}"`,
      remedy: "pass the backend itself, or register it in symbolicWorld({ backends: [...] })",
    });
  }
  nextRandomStream() {
    return this.#streams++;
  }
  assertOpen(where) {
    if (!this.#closed) return;
    throw new ClosedError({ where, expected: "an open context", received: "one that was closed" });
  }
  startTrace() {}
  async stopTrace() {
    return [];
  }
  async close() {
    this.#closed = true;
  }
  async [Symbol.asyncDispose]() {
    await this.close();
  }
};
function meshOf(shape, coordinate, groups) {
  const axes = Object.keys(shape);
  return {
    shape,
    axes,
    coordinate,
    world: groups.get(""),
    group(axis) {
      const group = groups.get(axis);
      if (group && axis !== "") return group;
      throw new OptionError({
        where: "mesh.group",
        expected: `one of the axes ${axes.join(", ")}`,
        received: `"${axis}"`,
        remedy: "name the axis in symbolicWorld({ mesh })",
      });
    },
  };
}

// src/symbolic/device.ts
import { contiguousStrides, DeviceError, dtypeBytes as dtypeBytes3, sizeOf as sizeOf2, Tensor } from "@mosaic/core";

// src/symbolic/kernels.ts
function symbolicKernels(record2) {
  const { names } = record2;
  const views = (tensors) => tensors.filter((tensor) => tensor !== null).map((tensor) => record2.viewOf(tensor));
  const view = (tensor) => record2.viewOf(tensor);
  const compute = (name, outputs, inputs) => {
    const written = views(outputs);
    record2.push("compute", [names.word(name), written.length, ...written, ...views(inputs)]);
  };
  return {
    attend({ out, lse }, q, { k, v }, tile) {
      const rows = [names.rowsOf(tile.q), names.rowsOf(tile.k), names.maskOf(tile.mask)];
      record2.push("attend", [view(out), view(lse), view(q), view(k), view(v), ...rows]);
    },
    attendBackward({ dq, dk, dv }, q, { dOut, lse, delta }, { k, v }, tile) {
      const rows = [names.rowsOf(tile.q), names.rowsOf(tile.k), names.maskOf(tile.mask)];
      const grads = [view(dq), view(dk), view(dv)];
      record2.push("attendBackward", [
        ...grads,
        view(q),
        view(dOut),
        view(lse),
        view(delta),
        view(k),
        view(v),
        ...rows,
      ]);
    },
    merge: (into, from) => record2.push("merge", views([into.out, into.lse, from.out, from.lse])),
    rowDot: (out, a, b) => record2.push("rowDot", views([out, a, b])),
    fill: (out, value) => record2.push("fill", [view(out), names.word(String(value))]),
    copy: (out, x) => record2.push("copy", views([out, x])),
    binary(op, out, a, b) {
      if (op === "add") record2.push("add", views([out, a, b]));
      else compute(op, [out], [a, b]);
    },
    scalar: (op, out, x) => compute(op, [out], [x]),
    unary: (op, out, x) => compute(op, [out], [x]),
    unaryBackward: (op, dx, x, dy) => compute(`${op}Backward`, [dx], [x, dy]),
    reduce: (kind, out, x) => compute(kind, [out], [x]),
    matmul: (out, a, b, accumulate) => compute("matmul", [out], [a, b, accumulate ? out : null]),
    softmax: (out, x) => compute("softmax", [out], [x]),
    softmaxBackward: (dx, out, dOut) => compute("softmaxBackward", [dx], [out, dOut]),
    layerNorm: (out, x, { weight, bias }, { mean, rstd }) => compute("layerNorm", [out, mean, rstd], [x, weight, bias]),
    layerNormBackward: ({ dx, dWeight, dBias }, x, dOut, weight, { mean, rstd }) =>
      compute("layerNormBackward", [dx, dWeight, dBias], [x, dOut, weight, mean, rstd]),
    rmsNorm: (out, x, { weight, bias }, { rstd }) => compute("rmsNorm", [out, rstd], [x, weight, bias]),
    rmsNormBackward: ({ dx, dWeight, dBias }, x, dOut, weight, { rstd }) =>
      compute("rmsNormBackward", [dx, dWeight, dBias], [x, dOut, weight, rstd]),
    random: (out) => compute("random", [out], []),
  };
}

// src/symbolic/device.ts
var SymbolicDevice = class {
  type = "symbolic";
  index;
  stream;
  kernels;
  record;
  #allocated = 0;
  #peak = 0;
  constructor(record2) {
    this.record = record2;
    this.index = record2.rank;
    this.kernels = symbolicKernels(record2);
    this.stream = new SymbolicStream();
  }
  empty(shape, dtype) {
    const bytes = sizeOf2(shape) * dtypeBytes3[dtype];
    this.#allocated += bytes;
    this.#peak = Math.max(this.#peak, this.#allocated);
    const storage = this.record.allocate(bytes, () => {
      this.#allocated -= bytes;
    });
    return new Tensor({ device: this, dtype, storage, shape, strides: contiguousStrides(shape), offset: 0 });
  }
  write(out) {
    this.record.push("compute", [this.record.names.word("write"), 1, this.record.viewOf(out)]);
  }
  /** Rejects: there is nothing to read. */
  async read(x) {
    throw new DeviceError({
      where: "read",
      expected: "a tensor with values",
      received: String(x),
      remedy: "run the program on a device that computes; this one only records what would be done",
    });
  }
  memory() {
    return { allocated: this.#allocated, reserved: this.#allocated, peak: this.#peak };
  }
  resetPeakMemory() {
    this.#peak = this.#allocated;
  }
  startTrace() {}
  /** Nothing runs, so nothing takes time. */
  async stopTrace() {
    return [];
  }
  [Symbol.dispose]() {}
};
var SymbolicStream = class {
  handle = 0n;
  record() {
    return { stream: this };
  }
  wait() {}
  async synchronize() {}
};

// src/symbolic/group.ts
import {
  CollectiveMismatchError,
  ClosedError as ClosedError2,
  dtypeBytes as dtypeBytes4,
  OptionError as OptionError2,
  ShapeError,
} from "@mosaic/core";
var SymbolicGroup = class _SymbolicGroup {
  device;
  rank;
  members;
  #calls = 0;
  #sent = 0;
  #received = 0;
  #messages = 0;
  #closed = false;
  constructor(device, members) {
    this.device = device;
    this.members = members;
    this.rank = members.ranks.indexOf(device.record.rank);
  }
  get name() {
    return this.members.name;
  }
  get ranks() {
    return this.members.ranks;
  }
  get size() {
    return this.members.ranks.length;
  }
  sendRecv(transfers, { label } = {}) {
    const args = [];
    for (const transfer of transfers) {
      const peer = "to" in transfer ? transfer.to : transfer.from;
      this.#checkPeer(peer);
      const bytes = transfer.tensor.size * dtypeBytes4[transfer.tensor.dtype];
      if ("to" in transfer) {
        this.#sent += bytes;
        this.#messages++;
      } else this.#received += bytes;
      args.push(this.ranks[peer], "to" in transfer ? 1 : 0, this.#view(transfer.tensor));
    }
    return this.#post("sendRecv", label, { tensors: transfers.map(({ tensor }) => tensor), args });
  }
  allGather(out, input, options = {}) {
    return this.#collective("allGather", { out, input, options, counts: options.counts });
  }
  reduceScatter(out, input, _op, options = {}) {
    return this.#collective("reduceScatter", { out, input, options, counts: options.counts });
  }
  allReduce(x, _op, options = {}) {
    return this.#collective("allReduce", { out: x, input: x, options });
  }
  allToAll(out, input, options = {}) {
    const { size } = this;
    const equal = (x) => new Array(size).fill(x.size / size);
    const counts = [...(options.send ?? equal(input)), ...(options.receive ?? equal(out))];
    return this.#collective("allToAll", { out, input, options, counts });
  }
  broadcast(x, root, options = {}) {
    this.#checkPeer(root);
    return this.#collective("broadcast", { out: x, input: x, root, options });
  }
  barrier(options = {}) {
    return this.#collective("barrier", { options });
  }
  async split(color, name = this.name) {
    this.#assertOpen("split");
    const members = await this.members.split({ parent: this.members, rank: this.rank, color, name });
    return new _SymbolicGroup(this.device, members);
  }
  /** Point-to-point messages only; `count` knows the collectives too. */
  traffic() {
    return { bytesSent: this.#sent, bytesReceived: this.#received, messagesSent: this.#messages };
  }
  startTrace() {}
  async stopTrace() {
    return [];
  }
  async [Symbol.asyncDispose]() {
    this.#closed = true;
  }
  #collective(op, call) {
    const { out, input, root = 0, counts, options } = call;
    const shares = counts ?? this.#equalShares(op, call);
    const tensors = [out, input].filter((tensor) => tensor !== void 0);
    const views = [out, input].map((tensor) => (tensor ? this.#view(tensor) : -1));
    return this.#post(op, options.label, { tensors, args: [this.#calls++, ...views, root, ...shares] });
  }
  #equalShares(op, { out, input }) {
    const share = op === "allGather" ? input : op === "reduceScatter" ? out : void 0;
    if (!share) return [];
    const whole = op === "allGather" ? out : input;
    if (whole.size !== share.size * this.size) {
      throw new ShapeError({
        where: `${this.name}: ${op}`,
        expected: `${this.size} equal shares of ${whole.size} elements, or counts`,
        received: String(share.size),
      });
    }
    return new Array(this.size).fill(share.size);
  }
  /** Memory in use by a collective stays allocated until it is waited for: never freed too early, perhaps late. */
  #post(op, label = op, { tensors, args }) {
    this.#assertOpen(op);
    const { record: record2 } = this.device;
    const work = record2.nextWork();
    for (const { storage } of tensors) storage.retain();
    record2.push(op, [work, this.members.id, record2.names.word(label), ...args]);
    let waited = false;
    return {
      wait: () => {
        if (waited) throw new CollectiveMismatchError(`${this.name}: ${op} was waited for twice`);
        waited = true;
        record2.push("wait", [work]);
        for (const { storage } of tensors) storage.release();
      },
    };
  }
  #view(tensor) {
    tensor.assertUsable(this.name);
    if (tensor.isContiguous) return this.device.record.viewOf(tensor);
    throw new ShapeError({
      where: this.name,
      expected: "dense tensors",
      received: String(tensor),
      remedy: "call contiguous() first",
    });
  }
  #checkPeer(peer) {
    if (Number.isInteger(peer) && peer >= 0 && peer < this.size) return;
    throw new OptionError2({ where: this.name, expected: `a rank from 0 to ${this.size - 1}`, received: String(peer) });
  }
  #assertOpen(where) {
    if (!this.#closed) return;
    throw new ClosedError2({ where: `${this.name}: ${where}`, expected: "an open group", received: "a closed one" });
  }
};

// src/symbolic/names.ts
var Names = class {
  rows = [];
  masks = [];
  words = [];
  #byIdentity = /* @__PURE__ */ new Map();
  #byValue = /* @__PURE__ */ new Map();
  #looks = /* @__PURE__ */ new Map();
  rowsOf(spans) {
    return this.#number(spans, this.rows, () => `r${spans.map(({ start, length, step }) => [start, length, step])}`);
  }
  maskOf(mask) {
    return this.#number(mask, this.masks, () => `m${mask.map(({ q0, q1, k0, k1, type }) => [q0, q1, k0, k1, type])}`);
  }
  word(word) {
    return this.#add(`w${word}`, word, this.words);
  }
  look(shape, strides, offset) {
    const name = `${shape}/${strides}/${offset}`;
    let look = this.#looks.get(name);
    if (!look) {
      const size = shape.reduce((product, length) => product * length, 1);
      const reach2 = shape.reduce((sum, length, axis) => sum + (length - 1) * strides[axis], 1);
      const box = boxOf({ shape, strides, offset, size });
      look = { shape, strides, offset, size, low: offset, high: size === 0 ? offset : offset + reach2, box };
      this.#looks.set(name, look);
    }
    return look;
  }
  /** Layouts hand out the same list again and again: known by identity, it need not be compared. */
  #number(value, list, nameOf) {
    let id = this.#byIdentity.get(value);
    if (id === void 0) {
      id = this.#add(nameOf(), value, list);
      this.#byIdentity.set(value, id);
    }
    return id;
  }
  #add(name, value, list) {
    let id = this.#byValue.get(name);
    if (id === void 0) {
      id = list.push(value) - 1;
      this.#byValue.set(name, id);
    }
    return id;
  }
};
function boxOf({ shape, strides, offset, size }) {
  if (shape.length === 4) return { offset, sizes: shape, strides };
  if (shape.length === 3) return { offset, sizes: [...shape, 1], strides: [...strides, 1] };
  return { offset, sizes: [1, 1, 1, size], strides: [size, size, size, 1] };
}

// src/symbolic/rank-record.ts
import { sameShape, Storage } from "@mosaic/core";

// src/symbolic/tape.ts
var ops = [
  "empty",
  "free",
  "mark",
  "attend",
  "attendBackward",
  "merge",
  "rowDot",
  "fill",
  "copy",
  "add",
  "compute",
  "sendRecv",
  "allGather",
  "reduceScatter",
  "allReduce",
  "allToAll",
  "broadcast",
  "barrier",
  "wait",
];
var codeOf = Object.fromEntries(ops.map((op, code) => [op, code]));
var Tape = class {
  #code = new Int32Array(64);
  #length = 0;
  push(op, args) {
    const end = this.#length + 2 + args.length;
    if (end > this.#code.length) {
      const grown = new Int32Array(2 * end);
      grown.set(this.#code.subarray(0, this.#length));
      this.#code = grown;
    }
    this.#code[this.#length] = codeOf[op];
    this.#code[this.#length + 1] = args.length;
    for (let i = 0; i < args.length; i++) this.#code[this.#length + 2 + i] = args[i];
    this.#length = end;
  }
  /** A reader that stands before the first event. */
  reader() {
    return new Reader(this.#code.subarray(0, this.#length));
  }
};
var Reader = class {
  code;
  op = "mark";
  at = 0;
  count = 0;
  #next = 0;
  constructor(code) {
    this.code = code;
  }
  /** Steps to the next event; false at the end. */
  next() {
    if (this.#next >= this.code.length) return false;
    this.op = ops[this.code[this.#next]];
    this.count = this.code[this.#next + 1];
    this.at = this.#next + 2;
    this.#next = this.at + this.count;
    return true;
  }
  /** Argument i of the event. */
  arg(i) {
    return this.code[this.at + i];
  }
};

// src/symbolic/rank-record.ts
var SymbolicStorage = class extends Storage {
  id;
  /** Views of it that events used, and their numbers: few, so that a walk finds one sooner than a hash would. */
  views = [];
  constructor(id, byteLength, free) {
    super((BigInt(id) + 1n) << 44n, byteLength, free);
    this.id = id;
  }
};
var RankRecord = class {
  rank;
  names;
  views = [];
  /** Bytes of every storage, by number. */
  storages = [];
  #tape = new Tape();
  #works = 0;
  constructor(rank, names) {
    this.rank = rank;
    this.names = names;
  }
  push(op, args) {
    this.#tape.push(op, args);
  }
  read() {
    return this.#tape.reader();
  }
  /** A fresh number for a collective. */
  nextWork() {
    return this.#works++;
  }
  allocate(bytes, freed) {
    const id = this.storages.push(bytes) - 1;
    this.push("empty", [id]);
    return new SymbolicStorage(id, bytes, () => {
      this.push("free", [id]);
      freed();
    });
  }
  viewOf({ storage, shape, strides, offset, dtype }) {
    const { id, views } = storage;
    for (const known of views) {
      const { look } = known.view;
      if (look.offset === offset && sameShape(look.shape, shape) && sameShape(look.strides, strides)) return known.id;
    }
    const view = { storage: id, look: this.names.look(copyOf(shape), copyOf(strides), offset), dtype };
    const number = this.views.push(view) - 1;
    views.push({ view, id: number });
    return number;
  }
};
function copyOf(shape) {
  return [...shape];
}

// src/symbolic/world.ts
function symbolicWorld({ mesh, backends = [] }) {
  const names = new Names();
  const registry = new Registry();
  const axes = Object.keys(mesh);
  const size = axes.reduce((product, axis) => product * mesh[axis], 1);
  const coordinates = Array.from({ length: size }, (_, rank) => coordinateOf(rank, mesh));
  const world = registry.add(
    "world",
    coordinates.map((_, rank) => rank),
  );
  const neighbours = /* @__PURE__ */ new Map();
  for (const [rank, at] of coordinates.entries()) {
    for (const axis of axes) push(neighbours, line(at, axis), rank);
  }
  const members = /* @__PURE__ */ new Map();
  for (const [name, ranks] of neighbours) {
    members.set(name, ranks.length === size ? world : registry.add(name.slice(0, name.indexOf(":")), ranks));
  }
  const contexts = coordinates.map((at, rank) => {
    const device = new SymbolicDevice(new RankRecord(rank, names));
    const all = new SymbolicGroup(device, world);
    const groups = /* @__PURE__ */ new Map([["", all]]);
    for (const axis of axes) {
      const own = members.get(line(at, axis));
      groups.set(axis, own === world ? all : new SymbolicGroup(device, own));
    }
    return new SymbolicContext({ device, mesh: meshOf(mesh, at, groups), backends });
  });
  return { contexts, groups: registry.groups, names };
}
function line(at, axis) {
  return `${axis}:${JSON.stringify(without(at, [axis]))}`;
}
function push(lists, key, value) {
  const list = lists.get(key);
  if (list) list.push(value);
  else lists.set(key, [value]);
}
var Registry = class {
  groups = [];
  #waiting = /* @__PURE__ */ new Map();
  add(name, ranks) {
    const split = (call) => this.#split(call);
    const members = { id: this.groups.length, name, ranks, split };
    this.groups.push(members);
    return members;
  }
  #split(call) {
    return new Promise((resolve) => {
      push(this.#waiting, call.parent, { ...call, resolve });
      const all = this.#waiting.get(call.parent);
      if (all.length < call.parent.ranks.length) return;
      this.#waiting.delete(call.parent);
      const colors = /* @__PURE__ */ new Map();
      for (const each of all.toSorted((a, b) => a.rank - b.rank)) push(colors, each.color, each);
      for (const team of colors.values()) {
        const ranks = team.map(({ rank }) => call.parent.ranks[rank]);
        const made = this.add(team[0].name, ranks);
        for (const { resolve: tell } of team) tell(made);
      }
    });
  }
};

// src/record.ts
var legal = [
  "backend",
  "mesh",
  "tokens",
  "keyTokens",
  "heads",
  "kvHeads",
  "headDim",
  "batch",
  "mask",
  "placement",
  "dtype",
];
function record(options) {
  checkOptionNames("record", options, legal);
  const { backend, mesh, tokens } = options;
  const filled = {
    keyTokens: tokens,
    kvHeads: options.heads,
    batch: 1,
    mask: full(),
    placement: contiguous(),
    dtype: "bfloat16",
    ...options,
  };
  const { placement, keyTokens, mask } = filled;
  const { axes } = backend;
  const queries = layoutOf({ mesh, axes, placement, length: tokens });
  const keys = keyTokens === tokens ? queries : layoutOf({ mesh, axes, placement, length: keyTokens });
  const slices = mask.slices(tokens, keyTokens);
  const told = { name: mask.name, slices: () => slices };
  const world = symbolicWorld({ mesh });
  const run2 = { options: { ...filled, mask: told }, queries, keys };
  const ranks = world.contexts.map((ctx) => recordRank(ctx, run2));
  return { options: filled, queries, keys, slices, names: world.names, groups: world.groups, ranks };
}
function recordRank(ctx, { options, queries, keys }) {
  var _stack = [];
  try {
    const { backend, heads, kvHeads, headDim, batch, dtype, mask } = options;
    const { device } = ctx;
    const at = ctx.mesh.coordinate;
    const tape = device.record;
    const made = (of, rows) => device.empty([batch, of, spansLength2(rows.spans(at)), headDim], dtype);
    const mark = (phase) => tape.push("mark", [tape.names.word(phase)]);
    const q = __using(_stack, made(heads, queries));
    const k = __using(_stack, made(kvHeads, keys));
    const v = __using(_stack, made(kvHeads, keys));
    const dOut = __using(_stack, made(heads, queries));
    for (const input of [q, k, v]) input.requiresGrad = true;
    mark("forward");
    const out = __using(_stack, attention(ctx, q, k, v, { backend, mask, queries, keys }));
    mark("backward");
    out.backward(dOut);
    const dq = __using(_stack, q.grad);
    const dk = __using(_stack, k.grad);
    const dv = __using(_stack, v.grad);
    const tensors = { q, k, v, dOut, out, dq, dk, dv };
    const ends = Object.fromEntries(Object.entries(tensors).map(([name, x]) => [name, tape.viewOf(x)]));
    mark("end");
    return { tape, at, firstSequence: batch * sequenceOf(at, options), ends, peakBytes: device.memory().peak };
  } catch (_) {
    var _error = _,
      _hasError = true;
  } finally {
    __callDispose(_stack, _error, _hasError);
  }
}
function sequenceOf(at, { backend, mesh }) {
  const own = Object.entries(without2(at, backend.axes));
  return own.reduce((number, [axis, place]) => number * mesh[axis] + place, 0);
}

// prof.mts
var p = Number(process.argv[2] ?? 4);
var t0 = process.cpuUsage().user / 1e3;
var run = record({ backend: ring(), mesh: { sp: p }, tokens: p * 64, heads: 4, headDim: 8 });
var t1 = process.cpuUsage().user / 1e3;
var proof = prove(run);
var t2 = process.cpuUsage().user / 1e3;
console.log(proof.total, t1 - t0, t2 - t1, Math.round(process.memoryUsage().rss / 1e6));
