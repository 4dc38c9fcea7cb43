import "./emulated.ts";

/** Must be imported before anything of the package. Makes the emulated GPU a Hopper. */
process.env.MOSAIC_EMULATED_CAPABILITY = "90";
