#!/usr/bin/env bash
# Build and run fills.cu on this machine's GPU; results under $1. Under a minute.
set -u
out=$1; here=$(dirname "$0")
nvcc -gencode arch=compute_90a,code=sm_90a -O3 -std=c++17 -o /tmp/fills "$here/fills.cu" || exit 1
timeout 60 /tmp/fills > "$out/fills.txt"
metrics=dram__bytes_read.sum,lts__t_sectors_srcunit_tex_op_read.sum,lts__t_sectors_srcunit_tex_op_read_lookup_miss.sum
timeout 200 ncu --clock-control none --cache-control all --csv --metrics $metrics /tmp/fills > "$out/fills_ncu.csv"
wc -l "$out"/*
