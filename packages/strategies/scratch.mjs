import { sketch, profiles } from "@mosaic/planner";
import { causal, zigzag } from "@mosaic/core";
import { ring } from "@mosaic/backend-ring";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { composed, hierarchical } from "./dist/index.js";
const N = Number(process.argv[2]);
const t=(name,f)=>{const a=process.cpuUsage(); let r; try{r=f();}catch(e){r={error:e.message}} const b=process.cpuUsage(a); console.log(name,(b.user/1e6).toFixed(2),(b.system/1e6).toFixed(2), r.seconds??r.error, r.events, (process.memoryUsage().rss/1e9).toFixed(2))};
const call={tokens:2**20*Math.max(1,N/16384),heads:32,kvHeads:8,headDim:128,mask:causal(),placement:zigzag()};
const p=profiles["h100-ib400"];
const s=Math.round(Math.log2(N)/2);
const a=2**Math.floor(Math.log2(N)/2), b=N/a;
const which=process.argv[3];
const all={
 ring:()=>sketch({...call,backend:ring(),mesh:{sp:N}},p,[1]),
 fused:()=>sketch({...call,backend:mesh2d({shape:[a,b],schedule:"fused"}),mesh:{sp:N}},p,[1]),
 over:()=>sketch({...call,backend:mesh2d({shape:[a,b],schedule:"overlapped"}),mesh:{sp:N}},p,[1]),
 over2:()=>sketch({...call,backend:mesh2d({shape:[a,b],schedule:"overlapped",channels:2}),mesh:{sp:N}},p,[1]),
 hier:()=>sketch({...call,backend:hierarchical({intraNodeSize:8}),mesh:{node:N/8,gpu:8}},p,[1]),
 comp:()=>sketch({...call,backend:composed({meshShape:[8,N/8]}),mesh:{seq:N/8,head:8}},p,[1]),
};
for(const k of Object.keys(all)) if(!which||which===k) t(k,all[k]);
