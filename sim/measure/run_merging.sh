#!/usr/bin/env bash
# Build and run merging.cu on this machine's GPU; results under $1. Under a minute.
set -u
out=$1; here=$(dirname "$0")
nvcc -gencode arch=compute_90a,code=sm_90a -O3 -std=c++17 -o /tmp/merging "$here/merging.cu" || exit 1
for what in place policy ring; do timeout 60 /tmp/merging $what > "$out/$what.txt" || echo "$what failed"; done
metrics=lts__t_sectors_srcunit_tex_op_read.sum,l1tex__m_xbar2l1tex_read_bytes.sum,lts__t_sectors_srcunit_ltcfabric.sum,sm__cycles_elapsed.max
for state in "1 none warm" "0 all cold"; do
  set -- $state
  timeout 200 ncu --clock-control none --cache-control "$2" --csv --metrics $metrics /tmp/merging ring "$1" > "$out/ring_$3.csv"
done
wc -l "$out"/*
