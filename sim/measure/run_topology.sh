#!/usr/bin/env bash
# Build and run topology.cu on this machine's GPU; results under $1.
set -u
final=$1; out=$(mktemp -d); here=$(dirname "$0")
nvcc -gencode arch=compute_90a,code=sm_90a -O3 -std=c++17 -o /tmp/topology "$here/topology.cu" || exit 1
for what in place partition home tile; do timeout 100 /tmp/topology $what > "$out/$what.csv" 2> "$out/$what.err" || echo "$what failed"; wc -l "$out/$what.csv"; done
ncu --query-metrics 2>/dev/null | grep -iE "lrc|ltcfabric|lts__t_sectors_srcunit_tex|lts__t_sectors_op_read|lts__t_requests_srcunit_tex" > "$out/metrics.txt"
timeout 200 ncu --clock-control none --csv --metrics lts__t_sectors_srcunit_tex_op_read.sum,lts__t_requests_srcunit_tex_op_read.sum,lts__t_sectors_srcunit_ltcfabric.sum,lts__t_sectors_op_read.sum,l1tex__m_xbar2l1tex_read_bytes.sum,dram__bytes_read.sum,sm__cycles_elapsed.max /tmp/topology share > "$out/share.csv" 2> "$out/share.err"
wc -l "$out/share.csv"; head -c 600 "$out"/*.err
tar -C "$out" -czf "$final/topology.tgz" .
