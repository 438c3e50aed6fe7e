#!/usr/bin/env bash
# Build and run ring.cu on this machine's GPU; ring.csv under $1. Some seconds.
set -u
out=$1; here=$(dirname "$0")
nvcc -gencode arch=compute_90a,code=sm_90a -O3 -std=c++17 -o /tmp/ring "$here/ring.cu" || exit 1
timeout 60 /tmp/ring > "$out/ring.csv" || echo "ring failed"
wc -l "$out/ring.csv"
