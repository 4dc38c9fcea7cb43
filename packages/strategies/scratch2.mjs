import { plan } from "./dist/index.js";
import { causal } from "@mosaic/core";
const N=Number(process.argv[2]);
let list=[];
try { plan({tokens:2**20*4,heads:32,kvHeads:8,headDim:128,mask:causal(),nodes:N,gpusPerNode:8,profile:"h100-ib400",onProgress:(p)=>{ if(p.done===0){console.log(p.stage,p.of); if (p.stage==="simulate"||N>100) throw new Error("stop");} }}); } catch(e){console.log(e.message)}
