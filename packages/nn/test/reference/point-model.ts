import { Module, type Tensor } from "@mosaic/core";

/** A model that is one parameter, "x". */
export class PointModel extends Module {
  readonly x: Tensor;
  constructor(x: Tensor) {
    super();
    this.x = this.addParameter("x", x);
  }
}
