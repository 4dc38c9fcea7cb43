import { record, recordClasses, simulate, profiles } from "./dist/index.js";
import { causal, zigzag, full, contiguous, striped } from "@mosaic/core";
import { ring } from "@mosaic/backend-ring";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { ulysses } from "@mosaic/backend-ulysses";
const P=profiles["h100-ib400"];
const C={...profiles["cpu-local"], ranksPerNode:8, cores:{perNode:2}};
const base={tokens:4096,heads:8,kvHeads:2,headDim:64};
const cases=[
 ["ring64",{backend:ring(),mesh:{sp:64}}],
 ["fused 4x16",{backend:mesh2d({shape:[4,16],schedule:"fused"}),mesh:{sp:64}}],
 ["over 4x16",{backend:mesh2d({shape:[4,16],schedule:"overlapped"}),mesh:{sp:64}}],
 ["over2 4x16",{backend:mesh2d({shape:[4,16],schedule:"overlapped",channels:2}),mesh:{sp:64}}],
 ["hier",{backend:ring({axis:"node",inner:ring({axis:"gpu"})}),mesh:{node:8,gpu:8}}],
 ["comp near",{backend:ulysses({axis:"head",inner:ring({axis:"seq"})}),mesh:{seq:8,head:8}}],
 ["comp apart",{backend:ulysses({axis:"head",inner:ring({axis:"seq"})}),mesh:{head:4,seq:16}}],
 ["dp",{backend:ring(),mesh:{dp:8,sp:8}}],
];
for (const [name,o] of cases) for (const [mn,m] of [["full",{mask:full(),placement:contiguous()}],["zz",{mask:causal(),placement:zigzag()}],["strfull",{mask:full(),placement:striped()}]]) for (const [pn,p] of [["h100",P],["cpu",C]]) {
  const opt={...base,...o,...m};
  const a=simulate(record(opt),p,{keep:()=>false});
  let run; try { run=recordClasses(opt,{ranksPerNode:8}); } catch(e) { console.log(name,mn,e.message); continue; }
  const b=simulate(run,p,{keep:()=>false});
  const by=new Map(b.ranks.map(r=>[r.rank,r]));
  let bad=0; for (const r of a.ranks) { const c=by.get(run.classes.representative(r.rank)); for (const k of ["seconds","forwardSeconds","computeSeconds","exposedCommunicationSeconds"]) if (r[k]!==c[k]) bad++; }
  console.log(name,mn,pn,"classes",run.ranks.length, a.seconds===b.seconds, "bad",bad, a.seconds,b.seconds);
}
