// Times a training step of jax-js (WebAssembly, one thread) in Node.js: the model, batch and optimizer of calls.py.
//
//   npm install --prefix FOLDER @jax-js/jax
//   node benchmarks/peers/jax-step.mjs FOLDER/node_modules/@jax-js/jax/dist/index.js
import { pathToFileURL } from "node:url";

const [EMBED_DIM, NUM_LAYERS, NUM_HEADS, BATCH, TOKENS] = [128, 4, 8, 32, 128];
const [LEARNING_RATE, BETA1, BETA2, EPSILON, WEIGHT_DECAY] = [1e-3, 0.9, 0.999, 1e-8, 0.01];
const STEPS = 5;

// jax-js requires the iterator helpers of Node.js 22.
const iteratorPrototype = Object.getPrototypeOf(Object.getPrototypeOf("".matchAll(/a/g)));
iteratorPrototype.map ??= function* map(f) {
  let i = 0;
  for (const x of this) yield f(x, i++);
};
iteratorPrototype.filter ??= function* filter(f) {
  let i = 0;
  for (const x of this) if (f(x, i++)) yield x;
};
iteratorPrototype.toArray ??= function toArray() {
  return [...this];
};

const {
  blockUntilReady,
  defaultDevice,
  init,
  jit,
  nn,
  numpy: np,
  random,
  tree,
  valueAndGrad,
} = await import(pathToFileURL(process.argv[2]).href);
await init("wasm");
defaultDevice("wasm");

let seed = 0;
const normal = (shape, scale = 1) => random.normal(random.key(seed++), shape).mul(scale);
const createNorm = () => ({ weight: np.ones([EMBED_DIM]), bias: np.zeros([EMBED_DIM]) });
const createLinear = (inputs, outputs) => ({
  weight: normal([inputs, outputs], inputs ** -0.5),
  bias: np.zeros([outputs]),
});
const createBlock = () => ({
  norm1: createNorm(),
  norm2: createNorm(),
  qkv: createLinear(EMBED_DIM, 3 * EMBED_DIM),
  out: createLinear(EMBED_DIM, EMBED_DIM),
  up: createLinear(EMBED_DIM, 4 * EMBED_DIM),
  down: createLinear(4 * EMBED_DIM, EMBED_DIM),
});

const linear = (x, { weight, bias }) => np.matmul(x, weight).add(bias);
const norm = (x, { weight, bias }) => nn.standardize(x, -1).mul(weight).add(bias);

// An operation frees its arguments. `ref` keeps an argument for another use.
function applyBlock(x, block) {
  const qkv = linear(norm(x.ref, block.norm1), block.qkv).reshape([BATCH, TOKENS, 3, NUM_HEADS, EMBED_DIM / NUM_HEADS]);
  const [q, k] = [0, 1].map((part) => qkv.ref.slice([], [], part));
  const v = qkv.slice([], [], 2);
  const heads = nn.dotProductAttention(q, k, v, { isCausal: true });
  const y = x.add(linear(heads.reshape([BATCH, TOKENS, EMBED_DIM]), block.out));
  const hidden = nn.gelu(linear(norm(y.ref, block.norm2), block.up), { approximate: false });
  return y.add(linear(hidden, block.down));
}

function computeLoss(blocks, x, target) {
  const difference = blocks.reduce(applyBlock, x).sub(target);
  return np.mean(difference.ref.mul(difference));
}

function updateParameter(parameter, gradient, [mean, meanSquare], step) {
  const newMean = mean.mul(BETA1).add(gradient.ref.mul(1 - BETA1));
  const newMeanSquare = meanSquare.mul(BETA2).add(gradient.ref.mul(gradient).mul(1 - BETA2));
  const correctedMean = newMean.ref.div(np.array(1).sub(np.power(BETA1, step.ref)));
  const correctedMeanSquare = newMeanSquare.ref.div(np.array(1).sub(np.power(BETA2, step)));
  const update = correctedMean.div(np.sqrt(correctedMeanSquare).add(EPSILON)).mul(LEARNING_RATE);
  return [parameter.mul(1 - LEARNING_RATE * WEIGHT_DECAY).sub(update), [newMean, newMeanSquare]];
}

const computeGradients = jit(valueAndGrad(computeLoss));
const update = jit(updateParameter);

const [x, target] = [normal([BATCH, TOKENS, EMBED_DIM]), normal([BATCH, TOKENS, EMBED_DIM])];
let [parameters, treeDefinition] = tree.flatten(Array.from({ length: NUM_LAYERS }, createBlock));
let moments = parameters.map((parameter) => [np.zerosLike(parameter.ref), np.zerosLike(parameter.ref)]);
for (let step = 1; step <= STEPS; step++) {
  const startTime = performance.now();
  const blocks = tree.unflatten(
    treeDefinition,
    parameters.map((parameter) => parameter.ref),
  );
  const [loss, gradients] = computeGradients(blocks, x.ref, target.ref);
  const updates = tree
    .leaves(gradients)
    .map((gradient, i) => update(parameters[i], gradient, moments[i], np.array(step)));
  parameters = updates.map(([parameter]) => parameter);
  moments = updates.map(([, moment]) => moment);
  await blockUntilReady(parameters.map((parameter) => parameter.ref));
  const milliseconds = performance.now() - startTime;
  console.log(`step ${step}: ${milliseconds.toFixed(0)} ms, loss ${(await loss.jsAsync()).toFixed(4)}`);
}
