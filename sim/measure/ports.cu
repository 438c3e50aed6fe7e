// How fast chosen SMs read (or write) lines that L2 holds: one SM, the two of a TPC, some or all of a GPC, the same number spread out;
// and one SM against bytes in flight. Which SMs share a GPC is found first, from where clusters land.
// Usage: ports   (CSV on standard output: bench,param1,param2,value,unit)
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>
#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)
__device__ unsigned smid() { unsigned r; asm volatile("mov.u32 %0, %%smid;" : "=r"(r)); return r; }
using Set = std::vector<int>;

// ---- which SMs share a GPC ----
__global__ void where(int* out) { if (threadIdx.x == 0) out[blockIdx.x] = smid(); long long c0 = clock64(); while (clock64() - c0 < 20000) {} }
static int root(Set& parent, int i) { return parent[i] == i ? i : parent[i] = root(parent, parent[i]); }
static std::vector<Set> find_gpcs(int sms) {  // GPCs by their smallest SM; TPCs that take no cluster of 4 stand alone at the end
  int* d; CK(cudaMalloc(&d, 1 << 16)); Set parent(sms); std::iota(parent.begin(), parent.end(), 0);
  CK(cudaFuncSetAttribute(where, cudaFuncAttributeNonPortableClusterSizeAllowed, 1)); CK(cudaFuncSetAttribute(where, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
  for (int size : {16, 8, 4, 2}) for (int again = 0; again < 8; again++) {
    cudaLaunchConfig_t cfg = {}; cudaLaunchAttribute at[1]; at[0].id = cudaLaunchAttributeClusterDimension; at[0].val.clusterDim.x = size; at[0].val.clusterDim.y = at[0].val.clusterDim.z = 1;
    cfg.blockDim = dim3(128); cfg.gridDim = dim3(sms / size * size * 3); cfg.dynamicSmemBytes = (again % 2 ? 100 : 200) * 1024; cfg.attrs = at; cfg.numAttrs = 1;
    if (cudaLaunchKernelEx(&cfg, where, d) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) { cudaGetLastError(); continue; }
    Set h(cfg.gridDim.x); CK(cudaMemcpy(h.data(), d, h.size() * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < h.size(); i++) parent[root(parent, h[i])] = root(parent, h[i / size * size]);
  }
  std::map<int, Set> groups; for (int i = 0; i < sms; i++) groups[root(parent, i)].push_back(i);
  std::vector<Set> gpcs; for (auto& g : groups) gpcs.push_back(g.second);
  std::sort(gpcs.begin(), gpcs.end(), [](const Set& a, const Set& b) { return (a.size() < 4) != (b.size() < 4) ? a.size() > b.size() : a[0] < b[0]; });
  return gpcs;
}

// ---- the transfers: each chosen SM repeats over its own `bytes`, all starting together ----
struct Job { char* data; size_t bytes; const int* rank; int reps, depth, piece; unsigned* go; long long* out; };
__device__ int start_together(const Job& j) {  // rank of this SM among the chosen, or -1
  int me = j.rank[smid()];
  if (threadIdx.x == 0) { atomicAdd(j.go, 1); while (atomicAdd(j.go, 0) < gridDim.x) {} }  // those not chosen wait too, so that none takes another's place
  __syncthreads(); return me;
}
__device__ void finish(const Job& j, int me, long long c0) { __syncthreads(); if (threadIdx.x == 0) j.out[me] = clock64() - c0; }
__device__ uint32_t folded(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }  // all of it: the compiler narrows a load of which a part is used
template <int DEPTH> __global__ void __launch_bounds__(1024) load(Job j) {  // DEPTH x 16 B a thread in flight
  int me = start_together(j); if (me < 0) return;
  const char* p = j.data + me * j.bytes + threadIdx.x * 16; uint32_t x = 0; long long c0 = clock64();
  for (int r = 0; r < j.reps; r++) for (size_t at = 0; at + DEPTH * blockDim.x * 16 <= j.bytes; at += DEPTH * blockDim.x * 16) {
    uint4 v[DEPTH];
#pragma unroll
    for (int i = 0; i < DEPTH; i++) asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w) : "l"(p + at + i * blockDim.x * 16));
#pragma unroll
    for (int i = 0; i < DEPTH; i++) x ^= folded(v[i]);
  }
  finish(j, me, c0); if (x == 12345) *j.out = x;
}
__global__ void __launch_bounds__(1024) async(Job j) {  // cp.async: `depth` groups of 16 B a thread in flight (at most 8)
  extern __shared__ __align__(128) char sm[];
  int me = start_together(j); if (me < 0) return;
  const char* p = j.data + me * j.bytes + threadIdx.x * 16; unsigned dst = (unsigned)__cvta_generic_to_shared(sm) + threadIdx.x * 16; int step = blockDim.x * 16, slot = 0; long long c0 = clock64();
  for (int r = 0; r < j.reps; r++) for (size_t at = 0; at < j.bytes; at += step) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.commit_group;" :: "r"(dst + slot * step), "l"(p + at) : "memory");
    slot = slot + 1 == j.depth ? 0 : slot + 1;
    if (j.depth == 1) asm volatile("cp.async.wait_group 0;" ::: "memory"); else if (j.depth == 4) asm volatile("cp.async.wait_group 3;" ::: "memory"); else if (j.depth == 2) asm volatile("cp.async.wait_group 1;" ::: "memory"); else asm volatile("cp.async.wait_group 7;" ::: "memory");
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory"); finish(j, me, c0);
}
__global__ void __launch_bounds__(1024) store(Job j) {
  int me = start_together(j); if (me < 0) return;
  char* p = j.data + me * j.bytes + threadIdx.x * 16; long long c0 = clock64();
  for (int r = 0; r < j.reps; r++) for (size_t at = 0; at < j.bytes; at += blockDim.x * 16) asm volatile("st.global.v4.u32 [%0], {%1,%1,%1,%1};" :: "l"(p + at), "r"(r) : "memory");
  __threadfence(); finish(j, me, c0);
}
__device__ void wait_bar(unsigned b, unsigned phase) {
  unsigned ok = 0;
  while (!ok) asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(ok) : "r"(b), "r"(phase) : "memory");
}
__global__ void bulk(Job j) {  // `depth` bulk copies of `piece` bytes always in flight
  extern __shared__ __align__(128) char sm[]; __shared__ __align__(8) unsigned long long bars[64];
  unsigned dst = (unsigned)__cvta_generic_to_shared(sm), bar = (unsigned)__cvta_generic_to_shared(bars);
  if (threadIdx.x == 0) for (int i = 0; i < j.depth; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar + 8 * i));
  asm volatile("fence.proxy.async.shared::cta;"); __syncthreads();
  int me = start_together(j); if (me < 0 || threadIdx.x) return;
  const char* p = j.data + me * j.bytes; int n = (int)(j.bytes / j.piece) * j.reps, mask = j.bytes / j.piece - 1, slot = 0; unsigned phase = 0; long long c0 = clock64();
  for (int i = 0; i < n; i++) {
    if (i >= j.depth) wait_bar(bar + 8 * slot, phase ^ 1);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar + 8 * slot), "r"(j.piece) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" :: "r"(dst + slot * j.piece), "l"(p + (i & mask) * j.piece), "r"(j.piece), "r"(bar + 8 * slot) : "memory");
    if (++slot == j.depth) { slot = 0; phase ^= 1; }
  }
  for (int i = 0; i < j.depth; i++) { wait_bar(bar + 8 * slot, phase ^ 1); if (++slot == j.depth) { slot = 0; phase ^= 1; } }
  j.out[me] = clock64() - c0;
}

// ---- the host's side ----
struct Bench { int sms; char* data; int* rank; unsigned* go; long long* out; };
enum Mode { LOAD, LOAD_SMALL_L1, ASYNC, BULK, STORE };
static const char* MODE[] = {"ld.global.cg", "ld.global.cg;l1=small", "cp.async.cg", "cp.async.bulk", "st.global"};
static void launch(const Bench& b, Mode mode, Job j, int threads) {
  const int large = 200 * 1024, smem = mode == LOAD || mode == STORE ? 0 : large; CK(cudaMemset(b.go, 0, 4));
  if (mode == LOAD || mode == LOAD_SMALL_L1) { if (j.depth == 8) load<8><<<b.sms, threads, smem>>>(j); else if (j.depth == 4) load<4><<<b.sms, threads, smem>>>(j); else if (j.depth == 2) load<2><<<b.sms, threads, smem>>>(j); else load<1><<<b.sms, threads, smem>>>(j); }
  if (mode == ASYNC) async<<<b.sms, threads, smem>>>(j);
  if (mode == STORE) store<<<b.sms, threads, smem>>>(j);
  if (mode == BULK) bulk<<<b.sms, 32, smem>>>(j);
  CK(cudaGetLastError()); CK(cudaDeviceSynchronize());
}
// bytes per cycle of each chosen SM: mean, least, most; from L2 (a first launch brings the lines near) or, `cold`, from HBM
static void rate(const Bench& b, const char* bench, const std::string& name, const Set& set, Mode mode, int threads, int depth, int piece, bool cold = false, size_t bytes = 128 << 10) {
  Set rank(b.sms, -1); for (size_t i = 0; i < set.size(); i++) rank[set[i]] = i;
  CK(cudaMemcpy(b.rank, rank.data(), b.sms * 4, cudaMemcpyHostToDevice)); CK(cudaMemset(b.out, 0, 8 * set.size()));
  static size_t turn = 0; char* data = cold ? b.data + (turn++ % 32 << 26) : b.data;  // elsewhere each time: more than L2 holds lies between two uses
  Job j{data, cold ? 16ul << 20 : bytes, b.rank, 8, depth, piece, b.go, b.out};
  if (!cold) launch(b, mode, j, threads);
  j.reps = cold ? 1 : std::max<int>(2, (8 << 20) / bytes); launch(b, mode, j, threads);
  std::vector<long long> h(set.size()); CK(cudaMemcpy(h.data(), b.out, h.size() * 8, cudaMemcpyDeviceToHost));
  double sum = 0, least = 1e9, most = 0; for (long long c : h) { if (!c) { fprintf(stderr, "no CTA on an SM of %s\n", name.c_str()); return; } double v = (double)j.bytes * j.reps / c; sum += v; least = std::min(least, v); most = std::max(most, v); }
  printf("%s,%s;mode=%s,mean;min;max,%.2f;%.2f;%.2f,B/clk/SM\n", bench, name.c_str(), MODE[mode], sum / h.size(), least, most);
}
static std::string say(const std::string& kind, const Set& s) { return "set=" + kind + ";sms=" + std::to_string(s.size()); }
static void rates(const Bench& b, const std::string& kind, const Set& s) {
  rate(b, "l2_port", say(kind, s), s, LOAD, 1024, 8, 0); rate(b, "l2_port", say(kind, s), s, LOAD_SMALL_L1, 1024, 8, 0); rate(b, "l2_port", say(kind, s), s, ASYNC, 1024, 8, 0); rate(b, "l2_port", say(kind, s), s, BULK, 0, 12, 16384); rate(b, "l2_port", say(kind, s), s, STORE, 1024, 0, 0);
}
static void within_gpc(const Bench& b, const Set& g, const std::string& name) {
  for (size_t n = 1; n <= g.size(); n++) { if (n > 2 && n % 2) continue; rates(b, name + ";order=tpc", Set(g.begin(), g.begin() + n)); }
  for (size_t n = 2; n <= g.size() / 2; n++) { Set s; for (size_t i = 0; i < n; i++) s.push_back(g[2 * i]); rates(b, name + ";order=one_of_each_tpc", s); }
}
static void pairs_of_tpcs(const Bench& b, const Set& g) {  // two TPCs with a shared port below the GPC's would stand out
  for (size_t i = 0; i < g.size(); i += 2) for (size_t k = i + 2; k < g.size(); k += 2)
    rate(b, "tpc_pair", "tpcs=" + std::to_string(g[i] / 2) + "+" + std::to_string(g[k] / 2), {g[i], g[i + 1], g[k], g[k + 1]}, BULK, 0, 12, 16384);
}
static void triples_of_tpcs(const Bench& b, const Set& g) {  // one SM of each
  for (size_t i = 0; i < g.size(); i += 2) for (size_t k = i + 2; k < g.size(); k += 2) for (size_t l = k + 2; l < g.size(); l += 2)
    rate(b, "tpc_triple", "tpcs=" + std::to_string(g[i] / 2) + "+" + std::to_string(g[k] / 2) + "+" + std::to_string(g[l] / 2), {g[i], g[i + 1], g[k], g[k + 1], g[l], g[l + 1]}, BULK, 0, 12, 16384);
}
static void spread(const Bench& b, const std::vector<Set>& gpcs) {
  std::vector<Set> whole; for (auto& g : gpcs) if (g.size() >= 4) whole.push_back(g);
  for (size_t a = 0; a < whole.size(); a++) for (size_t c = a + 1; c < whole.size(); c++) rates(b, "gpcs=" + std::to_string(a) + "+" + std::to_string(c) + ";order=one_sm_each", {whole[a][0], whole[c][0]});
  for (size_t per : {1, 2, 4, 6, 8, 12, 16}) { Set s; for (auto& g : whole) s.insert(s.end(), g.begin(), g.begin() + std::min(per, g.size())); rates(b, "all_gpcs;each=" + std::to_string(per), s); }
  for (size_t n = 2; n <= whole.size(); n++) { Set s; for (size_t i = 0; i < n; i++) s.insert(s.end(), whole[i].begin(), whole[i].end()); rates(b, "whole_gpcs=" + std::to_string(n), s); }
  Set all; for (auto& g : gpcs) all.insert(all.end(), g.begin(), g.end()); rates(b, "all", all);
  Set alone; for (auto& g : gpcs) if (g.size() < 4) { alone.insert(alone.end(), g.begin(), g.end()); rates(b, "singleton_tpcs", alone); }
}
static void in_flight(const Bench& b, const Set& s, const char* name) {  // Little's law
  std::string head = "set=" + std::string(name);
  for (int piece : {1024, 2048, 4096, 8192, 16384, 32768, 65536}) for (int depth : {1, 2, 4, 8, 16, 32, 64}) if (piece * depth <= 192 * 1024)
    rate(b, "bytes_in_flight", head + ";piece=" + std::to_string(piece) + ";bytes=" + std::to_string(piece * depth), s, BULK, 0, depth, piece);
  for (int depth : {1, 2, 8}) for (int threads : {32, 64, 128, 256, 512, 1024})
    for (Mode mode : {LOAD, LOAD_SMALL_L1, ASYNC}) rate(b, "bytes_in_flight", head + ";threads=" + std::to_string(threads) + ";bytes=" + std::to_string(threads * 16 * depth), s, mode, threads, depth, 0);
}
static void footprints(const Bench& b, const Set& s, const char* name) {  // the same, over more of L2
  for (size_t kib : {64, 128, 256, 512, 1024, 2048, 4096}) if (kib * s.size() <= 16384) for (Mode mode : {LOAD, ASYNC, BULK})
    rate(b, "l2_footprint", "set=" + std::string(name) + ";kib_per_sm=" + std::to_string(kib), s, mode, 1024, mode == BULK ? 3 : 4, 65536, false, kib << 10);
}
static void hbm_in_flight(const Bench& b, const Set& s, const char* name) {
  for (int piece : {2048, 16384}) for (int depth : {1, 2, 4, 8, 12, 32, 64}) if (piece * depth <= 192 * 1024)
    rate(b, "hbm_bytes_in_flight", "set=" + std::string(name) + ";piece=" + std::to_string(piece) + ";bytes=" + std::to_string(piece * depth), s, BULK, 0, depth, piece, true);
}
int main() {
  cudaDeviceProp p; CK(cudaGetDeviceProperties(&p, 0)); Bench b{p.multiProcessorCount};
  CK(cudaMalloc(&b.data, 5ul << 30)); CK(cudaMemset(b.data, 1, 5ul << 30)); CK(cudaMalloc(&b.rank, 4096)); CK(cudaMalloc(&b.go, 4)); CK(cudaMalloc(&b.out, 8 * 1024));
  CK(cudaFuncSetAttribute(load<1>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024)); CK(cudaFuncSetAttribute(load<2>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
  CK(cudaFuncSetAttribute(load<8>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024)); CK(cudaFuncSetAttribute(async, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024)); CK(cudaFuncSetAttribute(bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
  std::vector<Set> gpcs = find_gpcs(b.sms); const Set* large = &gpcs[0];
  for (size_t g = 0; g < gpcs.size(); g++) { for (int s : gpcs[g]) printf("gpc_of_sm,sm=%d,,%zu,gpc\n", s, g); if (gpcs[g].size() > large->size()) large = &gpcs[g]; }
  for (size_t g = 0; g < gpcs.size(); g++) { rates(b, "gpc=" + std::to_string(g) + ";order=tpc", {gpcs[g][0]}); if (gpcs[g].size() >= 2) rates(b, "gpc=" + std::to_string(g) + ";order=tpc", {gpcs[g][0], gpcs[g][1]}); }
  within_gpc(b, gpcs[0], "gpc=0"); within_gpc(b, *large, "gpc=" + std::to_string(large - &gpcs[0]));
  pairs_of_tpcs(b, *large); triples_of_tpcs(b, *large); spread(b, gpcs);
  in_flight(b, {gpcs[0][0]}, "one_sm"); in_flight(b, {gpcs[0][0], gpcs[0][1]}, "one_tpc"); in_flight(b, gpcs[0], "one_gpc"); Set all(b.sms); std::iota(all.begin(), all.end(), 0); in_flight(b, all, "all");
  footprints(b, {gpcs[0][0]}, "one_sm"); footprints(b, gpcs[0], "one_gpc"); footprints(b, all, "all");
  hbm_in_flight(b, {gpcs[0][0]}, "one_sm"); hbm_in_flight(b, {gpcs[0][0], gpcs[0][1]}, "one_tpc"); hbm_in_flight(b, gpcs[0], "one_gpc"); hbm_in_flight(b, all, "all");
}
