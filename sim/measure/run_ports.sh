#!/usr/bin/env bash
# Build and run ports.cu on this machine's GPU; ports.csv under $1. Some seconds.
set -u
out=$1; here=$(dirname "$0")
nvcc -gencode arch=compute_90a,code=sm_90a -O3 -std=c++17 -o /tmp/ports "$here/ports.cu" || exit 1
timeout 60 /tmp/ports > "$out/ports.csv" || echo "ports failed"
wc -l "$out/ports.csv"
