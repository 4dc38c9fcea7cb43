// Language models in Hugging Face folders: load, generate, save.
export * from "@mosaic/models";
