#!/usr/bin/env bash
# Build and run power.cu on this machine's GPU; power.csv under $1. About 3 minutes.
set -u
out=$1; here=$(dirname "$0")
nvcc -gencode arch=compute_90a,code=sm_90a -O3 -std=c++17 -o /tmp/power "$here/power.cu" -ldl || exit 1
timeout 300 /tmp/power "${2:-2}" > "$out/power.csv" || echo "power failed"
wc -l "$out/power.csv"
