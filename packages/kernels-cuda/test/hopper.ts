import "./emulated.ts";

/** To be imported before anything of the package: the GPU that is pretended is Hopper's. */
process.env.MOSAIC_EMULATED_CAPABILITY = "90";
