import { Module, type Tensor } from "@mosaic/core";

/** A model with a single parameter, "x". */
export class PointModel extends Module {
  readonly x: Tensor;
  constructor(x: Tensor) {
    super();
    this.x = this.addParameter("x", x);
  }
}
