#!/usr/bin/env bash
# Build and run overheads.cu and empty_kernels.py on this machine's GPU; results under $1.
set -u
final=$1; out=$(mktemp -d); here=$(dirname "$0")
nvcc -gencode arch=compute_90a,code=sm_90a -O3 -std=c++17 -o /tmp/overheads "$here/overheads.cu" || exit 1
timeout 60 /tmp/overheads > "$out/overheads.csv" 2> "$out/overheads.err"; tail -2 "$out/overheads.err"; wc -l "$out/overheads.csv"
nvcc -gencode arch=compute_90a,code=sm_90a -O3 -std=c++17 -o /tmp/narrow "$here/narrow.cu" && timeout 60 /tmp/narrow >> "$out/overheads.csv" 2>> "$out/overheads.err"
timeout 120 python3 "$here/empty_kernels.py" > "$out/empty.csv" 2> "$out/empty.err"; wc -l "$out/empty.csv"; tail -2 "$out/empty.err"
cat > /tmp/clk.py <<'P'
import torch
a=torch.randn(8192,8192,device="cuda",dtype=torch.bfloat16); b=torch.randn(8192,8192,device="cuda",dtype=torch.bfloat16); c=torch.empty_like(a); x=torch.randn(1,8192,device="cuda",dtype=torch.bfloat16)
for _ in range(3): torch.mm(a,b.t(),out=c)
torch.cuda.synchronize(); torch.cuda.cudart().cudaProfilerStart()
torch.mm(a,b.t(),out=c); torch.cuda.synchronize(); torch.mm(x,b.t()); torch.cuda.synchronize(); c.copy_(a); torch.cuda.synchronize(); c[:64,:64].add_(1); torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
P
timeout 120 ncu --clock-control none --profile-from-start off --csv --metrics lts__cycles_elapsed.avg.per_second,sm__cycles_elapsed.avg.per_second,dram__cycles_elapsed.avg.per_second,l1tex__cycles_elapsed.avg.per_second,gpc__cycles_elapsed.avg.per_second,lrc__cycles_elapsed.avg.per_second,gpu__time_duration.sum python3 /tmp/clk.py > "$out/clocks.csv" 2> "$out/clocks.err"
wc -l "$out/clocks.csv"; tar -C "$out" -czf "$final/overheads.tgz" .
cat "$out/overheads.csv" "$out/empty.csv"; grep -v "^==" "$out/clocks.csv" | cut -d, -f5,10- | cut -c1-200
