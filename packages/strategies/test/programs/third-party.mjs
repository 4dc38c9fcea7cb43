// A third-party backend: a ring with a name of its own.
import { ring } from "@mosaic/backend-ring";

export default ({ ranks }) => ({ backend: { ...ring({ axis: "circle" }), name: "circle" }, mesh: { circle: ranks } });
