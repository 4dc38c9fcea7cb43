import { formatShape, MosaicError, ShapeError, type Tensor } from "@mosaic/core";
import { normOf } from "./clip.ts";

/**
 * A loss or gradients that are NaN or infinite: training with `errorIfNonFinite` stops with it.
 *
 * @example
 * ```ts
 * import { fromArray, init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { AdamW } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using layer = new Linear(ctx, 2, 1, { bias: false });
 * using optimizer = new AdamW(layer, { errorIfNonFinite: true });
 * layer.weight.grad = fromArray(ctx, [1, NaN], [1, 2]);
 * optimizer.step(); // measures, and does not wait
 * await optimizer.assertFinite(); // throws step 0: expected a finite loss and finite gradients, received the gradient of "weight"
 * ```
 */
export class NonFiniteError extends MosaicError {
  /** The step at which they were found, counted from 0. */
  readonly step: number;
  /** Names of the parameters whose gradients are not finite, in the model's order. */
  readonly parameters: readonly string[];

  constructor(where: string, { step, loss, norms }: NonFinite) {
    const named = norms.map(({ name, norm }) => `the gradient of "${name}" has norm ${norm}`);
    const most = 5;
    const details = [...(loss === undefined ? [] : [`the loss is ${loss}`]), ...named.slice(0, most)];
    const rest = named.length > most ? `, and so on for ${named.length - most} more` : "";
    super({
      where: `${where}, step ${step}`,
      expected: "a finite loss and finite gradients",
      received: `${details.join(", ")}${rest}`,
      remedy: "lower the learning rate, clip gradients, or look at the data of this step",
    });
    this.step = step;
    this.parameters = norms.map(({ name }) => name);
  }
}

interface NonFinite {
  readonly step: number;
  readonly loss: number | undefined;
  readonly norms: readonly { readonly name: string; readonly norm: number }[];
}

interface Watched {
  readonly name: string;
  readonly parameter: Tensor;
}

/** Measures the gradients of every step where they lie, and remembers the first that are not finite. */
export class FiniteCheck {
  readonly #where: string;
  #failure: NonFiniteError | undefined;
  /** Resolves when all that was watched is known. */
  known: Promise<void> = Promise.resolve();

  constructor(where: string) {
    this.#where = where;
  }

  throwIfFailed(): void {
    if (this.#failure) throw this.#failure;
  }

  /** Measures, without waiting, the gradients as they are now, and the loss. */
  watch(step: number, slots: readonly Watched[], loss: Tensor | undefined): void {
    const where = `${this.#where}.step ${step}: loss`;
    loss?.assertNotDisposed(where);
    if (loss && loss.size !== 1) {
      throw new ShapeError({ where, expected: "a scalar", received: formatShape(loss.shape) });
    }
    const moved = slots.filter(({ parameter }) => parameter.requiresGrad && parameter.grad);
    const device = moved[0]?.parameter.device ?? loss?.device;
    if (!device) return;
    using measured = device.empty([moved.length + 1], "float32");
    device.kernels.fill(measured, 0);
    const put = (at: number, x: Tensor): void => {
      using place = measured.view({ shape: x.shape, strides: x.shape.map(() => 1), offset: at });
      device.kernels.copy(place, x);
    };
    for (const [i, { parameter }] of moved.entries()) {
      using norm = normOf([parameter.grad!]);
      put(i, norm);
    }
    if (loss) put(moved.length, loss);
    const names = moved.map(({ name }) => name);
    const judged = measured.read().then(
      (values) => this.#judge(step, names, values),
      // A device that has failed reports so itself.
      () => {},
    );
    this.known = Promise.all([this.known, judged]).then(() => {});
  }

  #judge(step: number, names: readonly string[], values: Float32Array): void {
    if (values.every(Number.isFinite)) return;
    const loss = values[names.length]!;
    const norms = names.map((name, i) => ({ name, norm: values[i]! })).filter(({ norm }) => !Number.isFinite(norm));
    this.#failure ??= new NonFiniteError(this.#where, { step, loss: Number.isFinite(loss) ? undefined : loss, norms });
  }
}
